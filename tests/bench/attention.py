#!/usr/bin/env python3
"""Our attention beside PyTorch's scaled_dot_product_attention: one thread, processor time, in turns; the fastest of each.

attention.py BENCH_ATTENTION [T] [D] [HEADS]     run by a Python that has torch"""
import re
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
T, D, H = (int(v) for v in (sys.argv[2:] + ["1024", "64", "8"][len(sys.argv) - 2:]))


def torch_case(kind, dtype, causal):
    q, k, v = (torch.randn(1, H, T, D).to(dtype).requires_grad_(True) for _ in range(3))
    dy = torch.randn(1, H, T, D).to(dtype)
    t = time.thread_time()
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if kind == "backward":
        t = time.thread_time()
        y.backward(dy)
    return (time.thread_time() - t) * 1e3


best = {}
for _ in range(5):
    out = subprocess.run([sys.argv[1], str(T), str(D), str(H), "6"], capture_output=True, text=True, check=True).stdout
    for name, ms, share in re.findall(r"^(.*) ([\d.]+) ms.*share ([\d.]+)", out, re.M):
        ours = best.setdefault(name, [1e9, 0.0, 1e9])
        ours[0], ours[1] = min(ours[0], float(ms)), max(ours[1], float(share))
        for _ in range(3):
            kind, dtype = name.split()[1], torch.float32 if name.startswith("fp32") else torch.bfloat16
            ours[2] = min(ours[2], torch_case(kind, dtype, "causal" in name))
print(f"T {T}, D {D}, {H} heads; torch {torch.__version__}")
for name, (ms, share, theirs) in best.items():
    print(f"{name:22s} {ms:8.2f} ms  {share:.2f} of the floor's rate  torch {theirs:8.2f} ms  torch / ours {theirs / ms:.2f}")
