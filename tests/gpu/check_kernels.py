#!/usr/bin/env python3
"""Every kernel of ours says what it costs, and kernels/cuda/KERNELS.md says the same. Needs no compiler: what one
says (registers, spills, shared memory) is left to `kernel_table.py`, which writes the table."""
import os
import sys

sys.dont_write_bytecode = True
import kernel_table as table


def main():
    wrong, kernels, rows = [], 0, {}
    with open(table.TABLE, encoding="utf-8") as f:
        for line in f:
            cells = [c.strip() for c in line.split("|")[1:-1]]
            if len(cells) == 11 and cells[0] != "file" and not cells[0].startswith("-"):
                rows[cells[0], cells[1]] = cells[3:8]
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
                said = table.table_row(path, name, cost, [(name, "", 0, 0, 0)])
                cells = [c.strip() for c in said.split("|")[1:-1]]
                have = rows.pop((cells[0], name), None)
                if have is None:
                    wrong.append(f"{os.path.relpath(path, table.ROOT)}: kernel {name} has no row in KERNELS.md")
                elif have != cells[3:8]:
                    wrong.append(f"{os.path.relpath(path, table.ROOT)}: kernel {name}: KERNELS.md says {have}, "
                                 f"the source {cells[3:8]}")
    wrong += [f"KERNELS.md has a row for {k} of {f}, which is no more" for f, k in rows]
    if kernels < 40:
        wrong.append(f"only {kernels} kernels found: the test looks in the wrong place")
    print("\n".join(wrong + [f"{kernels} kernels, {len(wrong)} wrong; after changes: build the target kernel_table"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
