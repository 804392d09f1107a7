#!/usr/bin/env python3
"""The arrows of the house go one way: which folder's headers each folder may include."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAY_USE = {
    "runtime": {"runtime"},
    "kernels": {"kernels", "runtime"},
    "collectives": {"collectives", "runtime"},
    "optimize": {"optimize", "runtime", "kernels", "collectives"},
    "trainer": {"trainer", "optimize", "runtime", "kernels", "collectives"},
}
# Inside runtime/: which rooms a room may use besides itself.
ROOMS = {
    "base": set(),
    "config": {"base"},
    "metrics": {"base"},
    "graph": {"base", "config"},
    "device": {"base", "config", "graph"},
    "plan": {"base", "config", "graph", "device"},
    "store": {"base", "config", "graph"},
    "data": {"base", "config", "graph", "store", "device"},
}
# Whose headers only these folders may include: the rest of the program builds without CUDA.
CUDA = re.compile(r'^\s*#\s*include\s+<((?:cuda|cublas|cudnn|nccl|nvml|cupti)[^>]*)>', re.M)
CUDA_FOLDERS = ("kernels/cuda/", "collectives/nccl/")
# Kernels say what happened in their own terms; which key of the config changes it, the trainer knows.
KEY = re.compile(r'"[^"\n]*\b(?:run|train|data)\.[a-z_]+[^"\n]*"')
SOURCES = {".c", ".h", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def main():
    wrong, checked = [], 0
    for top, allowed in MAY_USE.items():
        for path in sorted(p for p in (ROOT / top).rglob("*") if p.suffix in SOURCES):
            where, text = path.relative_to(ROOT), path.read_text()
            if not str(where).startswith(CUDA_FOLDERS):
                wrong += [f"{where}: only {' and '.join(CUDA_FOLDERS)} may use <{h}>" for h in CUDA.findall(text)]
            if str(where).startswith(("kernels/", "collectives/nccl/")):
                wrong += [f"{where}: a key of the config in {k}" for k in KEY.findall(INCLUDE.sub("", text))]
            for target in INCLUDE.findall(text):
                checked += 1
                parts = target.split("/")
                if not (ROOT / target).exists():
                    wrong.append(f'{where}: "{target}" is not a path from the top of the tree')
                elif parts[0] not in allowed:
                    wrong.append(f"{where}: {top}/ may not use {target}")
                elif top == "runtime" and len(parts) > 2 and len(where.parts) > 2:
                    room, other = where.parts[1], parts[1]
                    if other != room and other not in ROOMS[room]:
                        wrong.append(f"{where}: runtime/{room} may not use runtime/{other}")
    print("\n".join(wrong))
    if checked < 100:
        wrong.append(f"only {checked} includes found: the test looks in the wrong place")
    print(f"{checked} includes checked, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
