#!/usr/bin/env python3
"""compute-sanitizer looks for races only in the tests that kernels.py lists (SHARING), because that is slow: this sees
that together they launch every kernel whose threads share memory.

    tests/gpu/check_sharing.py FOLDER      where those tests left the names of the kernels that they launched on the
                                           stand-in for a GPU (FAKEGPU_KERNELS=FOLDER/TEST); the files are removed
    tests/gpu/check_sharing.py --tests     prints SHARING
"""
import os
import pathlib
import sys

sys.dont_write_bytecode = True
import kernel_table as table
import kernels


def sharing(path):
    """Names of the kernels of one file that have shared memory: what stands between a kernel's head and the next's. Where
    a function before them has some, any of them may call it."""
    names, parts = list(table.costs(path)), [[]]
    for line in path.read_text().split("\n"):
        if table.is_head(line):
            parts.append([])
        parts[-1].append(line)
    parts = ["TR_SHARED" in "\n".join(lines) for lines in parts]
    if len(parts) != len(names) + 1:
        sys.exit(f"{path}: two kernels of one name")
    return {name for name, shares in zip(names, parts[1:]) if shares or parts[0]}


def main():
    if sys.argv[1] == "--tests":
        print(";".join(kernels.SHARING))
        return 0
    folder = pathlib.Path(sys.argv[1])
    wanted = {name: path for path in sorted(pathlib.Path(table.LOOPS).rglob("*.cu")) if "TR_SHARED" in path.read_text()
              for name in sharing(path)}
    seen = set()
    for test in kernels.SHARING:
        log = folder / test
        if not log.is_file():
            sys.exit(f"{log}: {test} left no names of kernels: did it run?")
        seen |= set(log.read_text().split())
        log.unlink()
    missing = sorted(set(wanted) - seen)
    for name in missing:
        print(f"{os.path.relpath(wanted[name], table.ROOT)}: {name} shares memory, and no test in SHARING launches it")
    print(f"{len(wanted)} kernels that share memory, {len(wanted) - len(missing)} of them seen")
    return 1 if missing or len(wanted) < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
