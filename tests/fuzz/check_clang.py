#!/usr/bin/env python3
"""check_clang.py CMAKE FOLDER: the preset fuzz, which no other test builds, in a folder of its own that the next run goes on
with. Every target is built as the preset builds it, but without optimization, and takes its corpus; what other compilers
clone for instruction sets (collectives_tests) is linked; all other C files are looked at by clang, warnings as errors."""
import concurrent.futures
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGETS = sorted(p.stem for p in HERE.glob("fuzz_*.c"))
RUNS = {"fuzz_craft": 30}  # it has no corpus


def run(command, **how):
    """What it said where it failed, else ""."""
    done = subprocess.run([str(x) for x in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **how)
    return f"{done.stdout}status {done.returncode}" if done.returncode else ""


def looked_at(build, objects):
    """Commands of all C files that are in no target, without optimization; clang's analysis is the same as with it. Objects
    are made, not only looked at, since the compiler's launcher (ccache) knows a file again by what came of it."""
    launcher = shlex.split(os.environ.get("CMAKE_C_COMPILER_LAUNCHER", ""))
    built = set(subprocess.run(["ninja", "-C", str(build), "-t", "inputs", "fuzz"], stdout=subprocess.PIPE, text=True,
                               check=True).stdout.splitlines())
    found = {}
    for i, entry in enumerate(json.loads((build / "compile_commands.json").read_text())):
        words = shlex.split(entry["command"])
        at = words.index("-o")
        if words[at + 1] not in built:
            words[at + 1] = pathlib.Path(objects) / f"{i}.o"
            found[entry["file"]] = (launcher if words[:len(launcher)] != launcher else []) + words + ["-O0", "-fno-sanitize=all"]
    return found.values()


def take_corpus(build, target):
    corpus = HERE / "corpus" / target.removeprefix("fuzz_")
    return run([build / "tests/fuzz" / target, f"-runs={RUNS.get(target, 0)}", "-detect_leaks=0",
                *([corpus] if corpus.is_dir() else [])], cwd=build)


def lacking(build):
    """What is not installed, else None."""
    for tool in ("clang", "ninja"):
        if not shutil.which(tool):
            return tool
    trial = build / "trial.c"
    build.mkdir(parents=True, exist_ok=True)
    trial.write_text("int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }\n")
    return "libFuzzer" if run(["clang", "-fsanitize=fuzzer", trial, "-o", build / "trial"]) else None


def main():
    cmake, build = sys.argv[1], pathlib.Path(sys.argv[2])
    if tool := lacking(build):
        print(f"skipped: {tool} is not installed (Debian: clang, libclang-rt-14-dev)")
        return 77
    for command in ([cmake, "--preset", "fuzz", "-B", build, "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O0"],
                    [cmake, "--build", build, "--target", "fuzz", "collectives_tests", "--parallel", 2]):
        if said := run(command, cwd=ROOT):
            print(said[-20000:])
            return 1
    with tempfile.TemporaryDirectory() as objects, concurrent.futures.ThreadPoolExecutor(2) as pool:
        files = looked_at(build, objects)
        wrong = [f"{target}: {said[-5000:]}" for target, said in
                 zip(TARGETS, pool.map(lambda target: take_corpus(build, target), TARGETS)) if said]
        wrong += [said for said in pool.map(lambda command: run(command, cwd=build), files) if said]
    print(*wrong, f"{len(TARGETS)} targets, {len(files)} other files, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
