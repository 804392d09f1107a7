#!/usr/bin/env python3
"""Every kernel of ours says what it costs, and kernels/cuda/KERNELS.md says the same; by that table no kernel has a stack
frame, and those that read 16 bytes at a time write so, too. Needs no compiler: `kernel_table.py` writes the table.

    tests/gpu/check_kernels.py                the table
    tests/gpu/check_kernels.py --nvcc PATH    and what is compiled now, all of it (a minute)
"""
import argparse
import concurrent.futures
import os
import sys

sys.dont_write_bytecode = True
import kernel_table as table


FEW = 1 / 8  # what a kernel writes of all that it moves, where the width of its stores is of no concern


def objections(cost, access, stack):
    """What is wrong with a kernel that has this cost line, these bytes of access (`load / store`) and of stack."""
    found = []
    if stack not in ("0", "-"):
        found.append(f"has a stack frame of {stack} bytes")
    loads, stores = (int(n) for n in access.split("/"))
    if isinstance(cost, dict) and loads >= 16 > stores:
        if cost["write_bytes"] >= FEW * (cost["read_bytes"] + cost["write_bytes"]):
            found.append(f"reads {loads} bytes at a time and writes {stores}")
    return found


def compiled(nvcc, jobs=2):
    """The same of what nvcc makes of the sources now."""
    def one(path):
        try:
            known, inst = table.costs(path), table.instances(path, nvcc, "sm_90")
        except table.Bad as e:
            return [str(e)]
        wrong = []
        for name, cost in known.items():
            mine = [i for i in inst if i[0] == name]
            wrong += [f"{os.path.relpath(path, table.ROOT)}: kernel {name} {o}"
                      for o in objections(cost, table.access(mine), table.span([i[3] for i in mine]))]
        return wrong
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return [line for lines in pool.map(one, table.sources()) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--nvcc")
    nvcc = parser.parse_args().nvcc
    wrong, kernels, rows = [], 0, {}
    with open(table.TABLE, encoding="utf-8") as f:
        for line in f:
            cells = [c.strip() for c in line.split("|")[1:-1]]
            if len(cells) == 12 and cells[0] != "file" and not cells[0].startswith("-"):
                rows[cells[0], cells[1]] = cells[3:]
    for folder, _, files in sorted(os.walk(table.LOOPS)):
        for path in sorted(os.path.join(folder, f) for f in files if f.endswith(".cu")):
            try:
                found = table.costs(path)
            except table.Bad as e:
                wrong.append(str(e))
                continue
            for name, cost in found.items():
                kernels += 1
                if isinstance(cost, str):
                    wrong.append(f"{cost}: kernel {name} has no cost line above it")
                said = table.table_row(path, name, cost, [(name, "", 0, 0, 0, 0, 0)])
                cells = [c.strip() for c in said.split("|")[1:-1]]
                have = rows.pop((cells[0], name), None)
                if have is None:
                    wrong.append(f"{os.path.relpath(path, table.ROOT)}: kernel {name} has no row in KERNELS.md")
                    continue
                if have[:5] != cells[3:8]:
                    wrong.append(f"{os.path.relpath(path, table.ROOT)}: kernel {name}: KERNELS.md says {have[:5]}, "
                                 f"the source {cells[3:8]}")
                wrong += [f"{os.path.relpath(path, table.ROOT)}: kernel {name} {o}, by KERNELS.md"
                          for o in objections(cost, have[5], have[7])]
    wrong += [f"KERNELS.md has a row for {k} of {f}, which is no more" for f, k in rows]
    if kernels < 40:
        wrong.append(f"only {kernels} kernels found: the test looks in the wrong place")
    if nvcc:
        wrong += compiled(nvcc)
    print("\n".join(wrong + [f"{kernels} kernels, {len(wrong)} wrong; after changes: build the target kernel_table"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
