#!/usr/bin/env python3
"""compute-sanitizer looks for races only in the tests that kernels.py lists (SHARING), because that is slow: this runs
them on the stand-in for a GPU and sees that together they launch every kernel whose threads share memory.

    tests/gpu/check_sharing.py BUILD      a build folder with the targets cuda_test_*
"""
import os
import pathlib
import subprocess
import sys
import tempfile

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
    build = pathlib.Path(sys.argv[1]).resolve()
    wanted = {name: path for path in sorted(pathlib.Path(table.LOOPS).rglob("*.cu")) if "TR_SHARED" in path.read_text()
              for name in sharing(path)}
    with tempfile.TemporaryDirectory() as scratch:
        log = pathlib.Path(scratch) / "kernels"
        for test in kernels.SHARING:
            env = dict(os.environ, FAKEGPU_KERNELS=str(log))
            done = subprocess.run([build / "tests" / f"cuda_{test}"], cwd=scratch, env=env, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
            if done.returncode != 0:
                sys.exit(f"{done.stdout}\n{test} fails")
        seen = set(log.read_text().split())
    missing = sorted(set(wanted) - seen)
    for name in missing:
        print(f"{os.path.relpath(wanted[name], table.ROOT)}: {name} shares memory, and no test in SHARING launches it")
    print(f"{len(wanted)} kernels that share memory, {len(wanted) - len(missing)} of them seen")
    return 1 if missing or len(wanted) < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
