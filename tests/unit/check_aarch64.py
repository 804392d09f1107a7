#!/usr/bin/env python3
"""check_aarch64.py BUILD: everything that a program for 64-bit Arm is made of, through its cross compiler: the C files of a
build for this machine, warnings as errors, without what is for one instruction set alone. The loops, whose code is the
compiler's, are optimized. None may want headers of CUDA, either. Headers of libraries are this machine's: their types are the
same on both, and only the C library's are Arm's own. Linking and running: cmake/aarch64.cmake."""
import concurrent.futures
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

GCC = "aarch64-linux-gnu-gcc"
FOLDERS = ("runtime", "kernels/cpu", "collectives", "optimize", "trainer")  # of the build, as of the house
# The least that each folder has, or this looks at a build that is not whole.
LEAST = 10


def arguments(words):
    """What is left of a compiler's command for any machine, or None: it is for an instruction set of this one."""
    words = words[next(i for i, w in enumerate(words) if w.startswith("-")):]
    if any(w.startswith("-march=") for w in words):
        return None
    out = words.index("-o")
    del words[out:out + 2]
    # what only cmake's branches for x86 define
    return [w for w in words if w != "-c" and not w.startswith(("-DTR_ISA_LEVELS=", "-DTR_INT8_LEVELS="))]


def compile_one(entry, words, made):
    """What the compiler says where it fails, else "". An object is made, since the compiler's launcher (ccache) knows a file
    again by what came of it."""
    launcher = shlex.split(os.environ.get("CMAKE_C_COMPILER_LAUNCHER", ""))
    optimized = [] if "kernels/cpu/loops" in entry["file"] else ["-O0"]
    # the cross compiler's own folders, with its C library, come before this machine's
    other = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"]
    done = subprocess.run([*launcher, GCC, *words, *optimized, "-Werror", *other, "-c", "-o", made], cwd=entry["directory"],
                          capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def main():
    if not shutil.which(GCC):
        print(f"skipped: {GCC} is not installed (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross)")
        return 77
    jobs, count = {}, dict.fromkeys(FOLDERS, 0)
    for entry in json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        out = words[words.index("-o") + 1]
        room = next((f for f in FOLDERS if out.startswith(f + "/CMakeFiles/")), None)
        words = arguments(words) if room and entry["file"] not in jobs else None
        if words:
            jobs[entry["file"]] = (entry, words)
            count[room] += 1
    if min(count.values()) < LEAST:
        print(f"too few files: {count}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as objects, concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        made = (f"{objects}/{i}.o" for i in range(len(jobs)))
        errors = [e for e in pool.map(compile_one, *zip(*jobs.values()), made) if e]
    print(*errors, sep="\n", end="", file=sys.stderr)
    print(f"{len(jobs)} files for aarch64, {len(errors)} with errors")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
