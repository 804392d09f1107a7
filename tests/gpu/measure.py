#!/usr/bin/env python3
"""What a training step moves, computes and takes, op by op: the lines of bench_gpu (tests/bench/gpu.c) summed up.

    tests/gpu/measure.py BENCH_GPU CONFIG [key=value ...]      bytes and flops of a step by the plan; needs no GPU

Bytes are those of each op's operands, each read or written once: what a launch must move. Tiles that overlap, scratch of
libraries and weights that are read more than once come on top. Of several launches of one op (a convolution that cuDNN
does not fuse, partial sums) what goes between them is not counted; batchnorm's partial sums are told by themselves.

Bounds: the larger of bytes over an H100's bandwidth and flops over its peak: computed, not measured.
"""
import collections
import json
import subprocess
import sys

BANDWIDTH = 3.35e12  # H100 SXM, bytes/s
TENSOR = {"float32": 67e12, "bfloat16": 989e12, "float16": 989e12}  # flop/s of products and convolutions; no TF32
PLAIN = 67e12
# Dense products in bfloat16, flop/s, as NVIDIA's data sheets have them; the first whose name is in the device's counts.
PEAKS = (("H100 PCIe", 756e12), ("H100 NVL", 835e12), ("H200 NVL", 835e12), ("H100", 989e12), ("H200", 989e12),
         ("A100", 312e12))
LIBRARIES = ("conv2d", "linear")
LONGEST = 30


def parse(text):
    """The lines of JSON in what a bench said."""
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def is_library(row):
    return row["op"].split(".")[0] in LIBRARIES


def bound(row):
    """(us, by what) that no H100 is faster than."""
    peak = TENSOR.get(row["type"], PLAIN) if is_library(row) or "tensor cores" in row["kernel"] else PLAIN
    by_bytes, by_flops = row["bytes"] / BANDWIDTH, row["flops"] / peak
    return 1e6 * max(by_bytes, by_flops), "bytes" if by_bytes >= by_flops else "flops"


def full_name(row):
    return f"{row['op']}: {row['kernel']}" + (f" ({row['choice']})" if row.get("choice") else "")


def device_peak(device, rows):
    """(flop/s, where that is from): of products in bfloat16, by the device's name; of one that PEAKS has not, the fastest
    product among the ops that were timed; None: there is none."""
    found = next(((peak, f"{name}'s data sheet") for name, peak in PEAKS if name in device), None)
    if found:
        return found
    rates = [1e6 * r["flops"] / r["us"] for r in rows if is_library(r) and r["us"]]
    return (max(rates), "the fastest product of this step") if rates else None


def share(rows, op):
    """Of the time of all ops, that of `op` and its gradients."""
    timed = [r for r in rows if r["us"] is not None]
    return sum(r["us"] for r in timed if r["op"].split(".")[0] == op) / (sum(r["us"] for r in timed) or 1)


def groups(rows, key):
    """{key: rows}, in the order in which they come."""
    found = collections.OrderedDict()
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def longest(rows, count=LONGEST):
    """Table rows of the kernels that take most of a step: name, shape, calls, us, share of all ops, bound us, by what, bound
    over time. Those of one op, kernel, choice and shape are one."""
    timed = [r for r in rows if r["us"] is not None]
    total = sum(r["us"] for r in timed) or 1
    found = []
    for (name, shape), same in groups(timed, lambda r: (full_name(r), r["shape"])).items():
        us, bounds = sum(r["us"] for r in same), [bound(r) for r in same]
        least = sum(b[0] for b in bounds)
        found.append((name, shape, len(same), us, us / total, least, bounds[0][1], least / us if us > 0 else 0))
    found.sort(key=lambda r: -r[3])
    return [(name, shape, calls, f"{us:.1f}", f"{100 * share:.1f} %", f"{least:.1f}", by, f"{of:.2f}")
            for name, shape, calls, us, share, least, by, of in found[:count]]


def choices(rows):
    """Table rows: op, shape of its result, engine or algorithm, layers that have it."""
    chosen = groups(filter(is_library, rows), lambda r: (r["op"], r["shape"], r["kernel"], r.get("choice", "")))
    return [(op, shape, kernel + (f", {choice}" if choice else ""), len(same), same[0]["layer"])
            for (op, shape, kernel, choice), same in chosen.items()]


def traffic(rows):
    """Table rows by op and kernel, what moves most first, and their sum: op, kernel, launches, GB, GFLOP, bound ms."""
    found = [(op, kernel, len(same), sum(r["bytes"] for r in same), sum(r["flops"] for r in same),
              sum(bound(r)[0] for r in same))
             for (op, kernel), same in groups(rows, lambda r: (r["op"], r["kernel"])).items()]
    found.sort(key=lambda r: -r[3])
    found.append(("all", "", *(sum(r[i] for r in found) for i in range(2, 6))))
    return [(op, kernel, calls, f"{nbytes / 1e9:.2f}", f"{flops / 1e9:.1f}", f"{us / 1e3:.2f}")
            for op, kernel, calls, nbytes, flops, us in found]


def partial_sums(rows):
    """Bytes of batchnorm's partial sums, which one launch writes into its scratch and the next one reads."""
    return sum(2 * r["scratch"] for r in rows if r["op"] in ("batchnorm.stats", "batchnorm.grad_stats"))


TRAFFIC = ("op", "kernel", "launches", "GB", "GFLOP", "bound ms")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    done = subprocess.run([sys.argv[1], "plan", *sys.argv[2:], "device=cuda"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return 1
    rows = parse(done.stdout)
    table = [TRAFFIC, *traffic(rows)]
    widths = [max(len(str(r[i])) for r in table) for i in range(len(TRAFFIC))]
    for row in table:
        print("  ".join(str(c).ljust(w) if i < 2 else str(c).rjust(w) for i, (c, w) in enumerate(zip(row, widths))))
    own = [r for r in rows if not is_library(r)]
    print(f"of it kernels of our own: {sum(r['bytes'] for r in own) / 1e9:.2f} GB, "
          f"batchnorm {sum(r['bytes'] for r in own if r['op'].startswith('batchnorm')) / 1e9:.2f} GB; "
          f"beside it {partial_sums(rows) / 1e9:.2f} GB of its partial sums, written and read again between launches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
