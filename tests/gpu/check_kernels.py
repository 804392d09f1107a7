#!/usr/bin/env python3
"""Every kernel of ours says what it costs, and kernels/cuda/KERNELS.md says the same; by that table no kernel has a stack
frame, and all store 16 bytes at a time but those of NARROW, each with its reason. Needs no compiler: the table, which
`kernel_table.py` writes, has the digest of the sources that were compiled.
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import kernel_table as table


FEW = 1 / 8  # what a kernel writes of all that it moves, where the width of its stores is of no concern
ARITHMETIC = "bound by arithmetic: each value is the sum of hundreds of products"
TILES = "goes through a tile in shared memory; a warp writes whole sectors"
ONE_ROW = "one place of each sample: some KB in all"
NARROW = {
    "attention": ARITHMETIC, "attention_grad_queries": ARITHMETIC, "attention_grad_keys": ARITHMETIC,
    "hold_rows": ONE_ROW, "place_rows": ONE_ROW, "embedding_rows": "writes one number a row",
    "concat": "copies by the widest unit that the sizes of all parts allow, and a unit is its type",
    "pack_kernel": TILES, "unpack_kernel": TILES, "pack_steps": TILES, "transpose_tiles": TILES,
    "transpose_gather": "each value comes from elsewhere",
    "recurrent": "one feature of the state a thread, after products that take a hundred times as long",
    "recurrent_grad": "as recurrent", "sketch_kernel": "each value is drawn: arithmetic",
    "soft_targets": "rows of any width, read four times, written once",
}


def objections(name, cost, access, stack):
    """What is wrong with a kernel that has this cost line, these bytes of access (as `access` says them) and of stack."""
    found = []
    if stack not in ("0", "-"):
        found.append(f"has a stack frame of {stack} bytes")
    stores = min(int(re.search(r"/ (\d+)", kind)[1]) for kind in access.split(","))
    few = not isinstance(cost, dict) or cost["write_bytes"] < FEW * (cost["read_bytes"] + cost["write_bytes"])
    if stores < 16 and not few and name not in NARROW:
        found.append(f"writes {stores} bytes at a time, not 16")
    if name in NARROW and (stores >= 16 or few):
        found.append("stands in NARROW and is not narrow")
    return found


def main():
    wrong, kernels, rows, said = [], 0, {}, set()
    with open(table.TABLE, encoding="utf-8") as f:
        for line in f:
            said.add(line.strip())
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
                known = table.table_row(path, name, cost, [(name, "", *[0] * 6)])
                cells = [c.strip() for c in known.split("|")[1:-1]]
                have = rows.pop((cells[0], name), None)
                if have is None:
                    wrong.append(f"{os.path.relpath(path, table.ROOT)}: kernel {name} has no row in KERNELS.md")
                    continue
                if have[:5] != cells[3:8]:
                    wrong.append(f"{os.path.relpath(path, table.ROOT)}: kernel {name}: KERNELS.md says {have[:5]}, "
                                 f"the source {cells[3:8]}")
                wrong += [f"{os.path.relpath(path, table.ROOT)}: kernel {name} {o}, by KERNELS.md"
                          for o in objections(name, cost, have[5], have[7])]
    wrong += [f"KERNELS.md has a row for {k} of {f}, which is no more" for f, k in rows]
    if kernels < 40:
        wrong.append(f"only {kernels} kernels found: the test looks in the wrong place")
    names = {name for path in table.sources() for name in table.costs(path)}
    wrong += [f"NARROW has {name}, which is no kernel" for name in NARROW if name not in names]
    if table.SOURCES.format(table.digest()) not in said:
        wrong.append("KERNELS.md is of other sources than today's")
    print("\n".join(wrong + [f"{kernels} kernels, {len(wrong)} wrong; after changes: build the target kernel_table"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
