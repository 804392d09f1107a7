#!/usr/bin/env python3
"""Writes kernels/cuda/KERNELS.md: what every kernel of our own costs, by the compiler and by its own account.

Compiles each .cu file with `nvcc -Xptxas -v` (needs no GPU) and reads registers, stack and shared memory of
each instance, and from its PTX how many bytes its accesses of global memory move. Beside them stands what the
line above each kernel says:

    // cost: read 2x+1f write 1x min 3x+1f flops 18 [on tensor cores] shape 8192x1024 [per WHAT]
    // cost: fixed                        (runs once over next to nothing)

read, write: bytes moved per element; min: what any implementation must move. Units: x an activation (here
bfloat16: 2 bytes), f 4 bytes, d 8 bytes, b 1 byte. The product of shape is the number of elements. The time is the
larger of bytes over memory bandwidth and flops over float32 peak, or that of 16-bit products on tensor cores: no run
can be faster, none is claimed to be as fast.

    tests/gpu/kernel_table.py [--nvcc PATH] [--arch sm_90] [FILE.cu ...]

A kernel without a cost line has question marks in the table, and the script fails in the end; a line that
cannot be read, or a file that does not compile, leaves KERNELS.md as it is. With files, prints their part
only. Whether the table is of today's sources, `check_kernels.py` tells without a compiler.
"""
import argparse
import concurrent.futures
import hashlib
import math
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOOPS = os.path.join(ROOT, "kernels", "cuda")
TABLE = os.path.join(LOOPS, "KERNELS.md")
BANDWIDTH, FLOPS, TENSOR_FLOPS = 3.35e12, 67e12, 989e12  # H100 SXM: bytes/s, operations/s in float32, of 16-bit products
SOURCES = "SHA-256 of the sources: {}"
UNITS = {"x": 2, "f": 4, "d": 8, "b": 1}
COST = re.compile(
    r"read (?P<read>\S+)(?: write (?P<write>\S+))? min (?P<min>\S+) flops (?P<flops>[\d.]+) "
    r"(?P<tensor>on tensor cores )?shape (?P<shape>\d+(?:x\d+)*)(?: per (?P<per>.+?))?\s*(?:\*/)?$")


ACCESS = re.compile(r"\s*(@!?%p\d+\s+)?(ld|st)\.(?!param|shared|local|const)([\w.]+)\s")
COPY = re.compile(r"\s*cp\.async\.\w+\.shared\.global\s.*\], (\d+)")
BRANCH = re.compile(r"\s*(?:[\w$]+:|(?:@!?%p\d+\s+)?(?:bra|brx|ret|exit|call|bar)\b)")


class Bad(Exception):
    pass


def text_in(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def traffic(text):
    """Bytes of a sum like 2x+0.5f."""
    total = 0.0
    for term in text.split("+"):
        m = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)([xfdb])", term)
        if not m:
            raise Bad(f"'{term}' is not a count and one of the units x f d b")
        total += float(m[1]) * UNITS[m[2]]
    return total


def is_head(line):
    """A kernel begins here."""
    return re.search(r"\b__global__\b", line) and not re.match(r"\s*(//|\*|/\*)", line)


def costs(path):
    """{kernel name: {read, write, min, flops, shape, per}, None for `fixed`, or where it is, without a
    cost line} of one file."""
    found, cost, where = {}, None, 0
    lines = text_in(path).split("\n")
    for n, line in enumerate(lines, 1):
        at = f"{os.path.relpath(path, ROOT)}:{n}"
        if m := re.match(r"\s*(?://|/\*|\*)\s*cost:\s*(.*)", line):
            text = m[1].strip()
            if re.fullmatch(r"fixed(\s*\*/)?", text):
                cost = (None,)
            elif m := COST.match(text):
                cost = (m.groupdict(),)
                try:
                    for key in ("read", "write", "min"):
                        cost[0][key + "_bytes"] = traffic(m[key] or "0b")
                except Bad as e:
                    raise Bad(f"{at}: {e}") from e
            else:
                raise Bad(f"{at}: cannot read '{text}'; see the head of tests/gpu/kernel_table.py")
            where = n
        elif is_head(line):
            head = " ".join(lines[n - 1:n + 4])
            head = head[head.index("__global__"):]
            # launch bounds may hold brackets of their own
            head = re.sub(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", "", head)
            m = re.match(r"__global__\s+(?:void\s+)?(\w+)\s*\(", head)
            if not m:
                raise Bad(f"{at}: no kernel's name behind __global__")
            found[m[1]] = at if cost is None or n - where > 4 else cost[0]
            cost = None
    return found


def in_pieces(stores):
    """The narrowest of these stores of one thread, in bytes, of which there are 16 bytes or more: one store could have
    written as much. 16 where there is none."""
    return min((n for n in set(stores) if n * stores.count(n) >= 16), default=16)


def widths(ptx):
    """{mangled kernel name: (widest load, narrowest store, widest store)} of one file's PTX, in bytes of global memory. An
    access whose address space is not known there (a row that may be kept in shared memory) counts, too. The narrowest store
    is the widest one, too, but where a thread writes 16 bytes in pieces, with nothing between them. In a tail there is a
    condition or a load before each store; single numbers of 8 bytes are sums."""
    found = {}
    for kernel in ptx.split(".entry ")[1:]:
        loads, stores, runs = [0], [0], [[]]
        for line in kernel.split("\n"):
            if copy := COPY.match(line):
                loads.append(int(copy[1]))
            if m := ACCESS.match(line):
                guard, way, kind = m.groups()
                parts = kind.split(".")
                nbytes = int(parts[-1][1:]) // 8 * int(next((p[1:] for p in parts if re.fullmatch(r"v\d", p)), 1))
                (loads if way == "ld" else stores).append(nbytes)
                if way == "st" and not guard:
                    if parts[-1][1:] != "64":
                        runs[-1].append(nbytes)
                    continue
            if m or BRANCH.match(line):
                runs.append([])
        found[re.match(r"\w+", kernel)[0]] = (max(loads), min(max(stores), *map(in_pieces, runs)), max(stores))
    return found


def resources(log):
    """{mangled kernel name: (registers, stack bytes, shared bytes)} of what ptxas -v says. Functions that a kernel calls have
    a stack frame of their own: the largest counts."""
    found, name, stack = {}, None, 0
    for line in log.split("\n"):
        if m := re.search(r"Compiling entry function '(\S+)'", line):
            name, stack = m[1], 0
        elif m := re.search(r"(\d+) bytes stack frame", line):
            stack = max(stack, int(m[1]))
        elif (m := re.search(r"Used (\d+) registers", line)) and name:
            shared = re.search(r"(\d+) bytes smem", line)
            found[name] = (int(m[1]), stack, int(shared[1]) if shared else 0)
    return found


def instances(path, nvcc, arch):
    """[(kernel name, instance, registers, stack bytes, shared bytes, *widths)] of one file."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [nvcc, "-std=c++17", f"-I{ROOT}", f"-arch={arch}", "-Xptxas", "-v", "--keep", "--keep-dir", folder, "-cubin",
             path, "-o", os.path.join(folder, "out.cubin")], capture_output=True, text=True)
        if done.returncode != 0:
            raise Bad(f"nvcc failed:\n{done.stdout}{done.stderr}")
        wide = widths(text_in(os.path.join(folder, os.path.basename(path)[:-3] + ".ptx")))
    used = resources(done.stdout + done.stderr)
    plain = subprocess.run(["c++filt", *used], capture_output=True, text=True, check=True).stdout.split("\n")
    out = []
    for name, text in zip(used, plain):
        # a namespace of the file's own has a name that differs from machine to machine
        text = re.sub(r"\b_GLOBAL__N__\w+::|\(anonymous namespace\)::|<unnamed>::", "", text)
        m = re.match(r"(?:void )?(?:\w+::)*(\w+)(<.*?>)?(?=\()", text)
        if not m:
            raise Bad(f"{path}: cannot read the name {text}")
        out.append((m[1], (m[2] or "").replace("__nv_bfloat16", "bf16").replace("__half", "f16"),
                    *used[name], *wide[name]))
    return sorted(out)


def span(values):
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def number(v):
    return f"{v:.3g}"


def types(instance):
    """The types among a template's arguments: `<bf16, 8, (tr_act)0>` has one, a number and a value of an enum are none."""
    return tuple(a for a in instance.strip("<>").split(", ") if not re.match(r"-?\d|\(|true$|false$", a))


def access(inst):
    """Widest load / narrowest-widest store of the instances that read widest, of each kind of elements; of several the least
    that one of them writes by. Kinds that are alike are said once."""
    kinds = {}
    for i in inst:
        kinds.setdefault(types(i[1]), []).append(i)
    said = set()
    for kind in kinds.values():
        loads = max(i[5] for i in kind)
        narrow, wide = (min(i[k] for i in kind if i[5] == loads) for k in (6, 7))
        said.add((loads, wide, narrow))
    return ", ".join(f"{loads} / {span([narrow, wide])}" for loads, wide, narrow in sorted(said, reverse=True))


def table_row(path, name, cost, inst):
    regs, stack, shared = (span([i[k] for i in inst]) for k in (2, 3, 4))
    head = f"| {os.path.basename(path)[:-3]} | {name} | {len(inst)} |"
    tail = f"{access(inst)} | {regs} | {stack} | {shared} |"
    if isinstance(cost, str):
        return f"{head} ? | ? | ? | ? | ? | {tail}"
    if cost is None:
        return f"{head} - | - | - | - | - | {tail}"
    elements = math.prod(int(d) for d in cost["shape"].split("x"))
    moved, least = cost["read_bytes"] + cost["write_bytes"], cost["min_bytes"]
    flops = float(cost["flops"])
    by_memory = moved * elements / BANDWIDTH
    by_flops = flops * elements / (TENSOR_FLOPS if cost["tensor"] else FLOPS)
    bound = "" if by_memory >= by_flops else " (arithmetic)"
    per = f" per {cost['per']}" if cost["per"] else ""
    return (f"{head} {number(moved)} / {number(least)}{per} | {number(moved / least)} | {number(flops)} | "
            f"{cost['shape']} | {number(1e6 * max(by_memory, by_flops))}{bound} | {tail}")


def section(path, nvcc, arch):
    """The rows of one file, and the instances that have a stack frame."""
    known, inst, rows, stacks = costs(path), instances(path, nvcc, arch), [], []
    for name in known:
        mine = [i for i in inst if i[0] == name]
        if not mine:
            raise Bad(f"{os.path.relpath(path, ROOT)}: kernel {name} is never instantiated")
        rows.append(table_row(path, name, known[name], mine))
        stacks += [f"{name}{i[1]}: {i[3]} bytes at {i[2]} registers" for i in mine if i[3]]
    if lost := {i[0] for i in inst} - set(known):
        raise Bad(f"{os.path.relpath(path, ROOT)}: compiled, but not found in the text: {sorted(lost)}")
    lacking = [f"{at}: kernel {n} has no cost line above it" for n, at in known.items()
               if isinstance(at, str)]
    return rows, stacks, lacking


def text_of(sections, nvcc, arch):
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"release ([\d.]+)", version)
    out = ["# Our own kernels, and what they cost", "",
           "Written by `tests/gpu/kernel_table.py` (target `kernel_table`), which says what the columns mean.",
           f"Compiled for {arch} by nvcc {version[1] if version else '?'}. Bytes are of bfloat16 activations, "
           "moved / least possible, per element.",
           "Roofline: the larger of bytes / 3.35 TB/s and operations / 67 TFLOP/s (989 on tensor cores) of an H100 for",
           "the shape, a bound that is computed, not a time that was measured. Access: bytes of the widest load / store of global",
           "memory, in the instances that read widest, for each type of elements where types differ; of stores that",
           "are as wide in part only, the narrowest-widest. Registers, bytes of stack and of static shared memory are",
           "those of the least and the most demanding instance. `-`: runs once over next to nothing. `?`: its",
           "author has not said.", "", SOURCES.format(digest()), "",
           "| file | kernel | instances | bytes | of least | flops | shape | roofline us | access | registers | "
           "stack | shared |",
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    stacks = []
    for rows, some, _ in sections:
        out += rows
        stacks += some
    if stacks:
        out += ["", "Instances with a stack frame:", ""] + [f"- `{s}`" for s in stacks]
    return "\n".join(out) + "\n"


def sources():
    """All files with kernels of our own."""
    return sorted(
        os.path.join(folder, f) for folder, _, files in os.walk(LOOPS) for f in files
        if f.endswith(".cu") and "__global__" in text_in(os.path.join(folder, f)))


def digest():
    """Of the files with kernels, and of those in kernels/ that they include."""
    texts, left = {}, sources()
    while left:
        path = left.pop()
        texts[path] = text_in(path)
        found = [os.path.join(ROOT, name) for name in re.findall(r'#include "(.+)"', texts[path])]
        left += [p for p in found if p not in texts and p not in left and p.startswith(os.path.join(ROOT, "kernels"))]
    return hashlib.sha256("".join(texts[path] for path in sorted(texts)).encode()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("files", nargs="*")
    a = parser.parse_args()
    paths = [os.path.abspath(f) for f in a.files] or sources()
    sections, wrong = [], []
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for job in [pool.submit(section, p, a.nvcc, a.arch) for p in paths]:
            try:
                sections.append(job.result())
            except (Bad, OSError) as e:
                wrong.append(str(e))
    for w in wrong:
        print(f"kernel_table: {w}", file=sys.stderr)
    if wrong:
        return 1
    text = text_of(sections, a.nvcc, a.arch)
    if a.files:
        print(text, end="")
    else:
        with open(TABLE + ".new", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(TABLE + ".new", TABLE)
    lacking = [line for section_ in sections for line in section_[2]]
    for line in lacking:
        print(f"kernel_table: {line}", file=sys.stderr)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
