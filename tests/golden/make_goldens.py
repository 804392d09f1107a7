#!/usr/bin/env python3
"""Makes ops.h5 and runs.h5 (see README.md). Needs torch, numpy and h5py; tests do not.

    python3 make_goldens.py [--add] [FOLDER]

--add keeps the cases that the files have, bit for bit, and adds those they lack (with the version of torch that made
them, which need not be the file's): another version of torch rounds some sums that cancel in another way.
"""
import json
import os
import sys

import h5py
import numpy as np
import torch

import cases
import runs
from interpret import Interpreter, distilled_sum, loss_sum

BATCH = 3
ONE_ROW = ("select", "mean_rows")  # of lengths all, 1 and 0


def to_yaml(layers):
    """One flow-style line a layer; JSON is YAML."""

    def plain(layers):
        return [{kind: {k: plain(v) if k in ("body", "shortcut") else v for k, v in attrs.items()}}
                for kind, attrs in layers]

    return "".join(f"    - {json.dumps(layer)}\n" for layer in plain(layers))


def config(name, inputs, layers, loss, batch):
    where = "inputs" if isinstance(inputs, dict) else "input"
    distill = f", distill: {json.dumps({'teacher': 'given', **loss[2]})}" if loss[2:] else ""
    return (f"name: {name}\ndata:\n  train: {{format: synthetic, samples: {batch}}}\n"
            f"model:\n  {where}: {json.dumps(inputs)}\n  layers:\n{to_yaml(layers)}"
            f"  loss: {json.dumps({loss[0]: loss[1]})}\n"
            f"train: {{batch: {batch}, steps: 1{distill}}}\n")


def bf16_exact(rng, shape, scale=1.0):
    """Values that float32 and bfloat16 hold alike, so that both precisions start from the same."""
    return torch.tensor(rng.standard_normal(shape) * scale).to(torch.bfloat16).double()


def row_targets(rng, shape, batch):
    """Of (N, rows, classes), or of an image (N, classes, H, W), a label for each row."""
    classes, rows = (shape[1], shape[2:]) if len(shape) == 4 else (shape[-1], shape[1:-1])
    return torch.tensor(rng.integers(0, classes, (batch, *rows)))


def make_case(file, number, case, train):
    name, inputs, layers, loss, batch = (*case, BATCH)[:5]
    rng = np.random.default_rng(1000 + number)

    def make(key, shape, fan_in):
        if key.endswith("scale"):  # learned, of steps about `fan_in` wide; its sign does not matter
            t = bf16_exact(rng, shape).abs() * fan_in / 2 + fan_in
            t = (t * torch.tensor([(-1.0) ** (i % 3) for i in range(len(t))])).to(torch.bfloat16).double()
        elif fan_in:
            t = bf16_exact(rng, shape, fan_in**-0.5)
        else:  # of a norm: around one and around zero
            t = bf16_exact(rng, shape, 0.25) + (1 if key.endswith("weight") else 0)
            t = t.to(torch.bfloat16).double()
        return t.requires_grad_(True)

    dims = inputs if isinstance(inputs, dict) else {"input": inputs}
    first = next(iter(dims))
    ids = {attrs.get("from", first): attrs["num"] for kind, attrs in layers if kind == "embedding"}
    ids |= {attrs["from"][-1]: dims["x"][0] + 1 for kind, attrs in layers  # lengths, at least 1
            if kind in ("attention", "lstm", "gru", *ONE_ROW) and len(attrs.get("from", [])) % 2 == 0 and "from" in attrs}
    x = {k: torch.tensor(rng.integers(k == "lengths", ids[k], (batch, *d))) if k in ids else bf16_exact(rng, (batch, *d))
         for k, d in dims.items()}
    if "lengths" in x and any(kind in ONE_ROW for kind, attrs in layers):
        x["lengths"] = torch.tensor([[dims["x"][0]], [1], [0]])
    net = Interpreter(train, make)
    net.values.update(x)
    with torch.no_grad():
        shape = net.run(layers, next(iter(x.values()))).shape
    if train and '"running"' not in json.dumps(layers):  # as a fresh model has them; the probe above moved them
        for key, s in net.states.items():
            s.fill_(1.0 if key.endswith("var") else 0.0)
    else:
        for key, s in net.states.items():
            s.copy_(bf16_exact(rng, s.shape, 0.5).abs() + 0.5 if key.endswith("var")
                    else bf16_exact(rng, s.shape, 0.5))
    if loss[0] == "cross_entropy":
        target = torch.tensor(rng.integers(0, shape[-1], batch)) if len(shape) == 2 else row_targets(rng, shape, batch)
        if "ignore_index" in loss[1]:
            target[1] = loss[1]["ignore_index"]
            if len(shape) > 2:  # a whole sample, and a row of another one
                target[0, 1] = loss[1]["ignore_index"]
        if loss[1].get("targets") == "probabilities":  # eighths, which float32 has
            classes = shape[1] if len(shape) == 4 else shape[-1]
            eighths = rng.multinomial(8, [1 / classes] * classes, tuple(target.shape))
            target = torch.tensor(eighths / 8.0)
            if len(shape) == 4:
                target = target.movedim(-1, 1)
    elif loss[0] in ("bce", "focal"):
        target = torch.tensor(rng.integers(0, 5, tuple(shape)) / 4.0)
    else:
        target = bf16_exact(rng, tuple(shape))
    before = {k: s.clone() for k, s in net.states.items()}
    y = net.run(layers, next(iter(x.values())))
    total, weight = loss_sum(loss[0], loss[1], y, target)
    given = []
    if loss[2:]:
        learned = [y] + [net.values[f["student"]] for f in loss[2].get("features", [])]
        given = [bf16_exact(rng, tuple(v.shape), 2.0) for v in learned]
        total = distilled_sum(loss[1], loss[2], total, target, learned, given)
    if train:
        total.backward()

    g = file.create_group(name)
    g.attrs["config"] = config(name, inputs, layers, loss, batch)
    g.attrs["train"] = int(train)
    g.attrs["loss"] = total.item()
    g.attrs["weight"] = weight

    def put(path, t, dtype=np.float32):
        g.create_dataset(path, data=t.detach().numpy().astype(dtype))

    for k, t in x.items():
        put(f"inputs/{k}", t, np.int32 if k in ids else np.float32)
    put("target", target, np.float32 if target.dtype.is_floating_point else np.int32)
    put("output", y)
    for k, t in enumerate(given):
        put(f"given/{k}", t)
    for k in net.order:
        put(f"params/{k}", net.params[k])
        if train:
            put(f"grads/{k}", net.params[k].grad)
    for k in before:
        put(f"states_before/{k}", before[k])
        if train:
            put(f"states_after/{k}", net.states[k])


def make_ops(path, add):
    with h5py.File(path, "r+" if add else "w", libver=("v108", "v108")) as f:
        if not add:
            f.attrs["torch"] = str(torch.__version__)
        number = 0
        for train, source in ((True, cases.training), (False, cases.evaluation), (True, cases.training_too)):
            for case in source():
                if case[0] not in f:
                    make_case(f, number, case, train)
                    if add:
                        f[case[0]].attrs["torch"] = str(torch.__version__)
                number += 1
    print(f"ops.h5: {number} cases, {os.path.getsize(path)} bytes")


def main():
    args = [a for a in sys.argv[1:] if a != "--add"]
    folder = args[0] if args else os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    make_ops(os.path.join(folder, "ops.h5"), "--add" in sys.argv)
    with h5py.File(os.path.join(folder, "runs.h5"), "r+" if "--add" in sys.argv else "w", libver=("v108", "v108")) as f:
        if "--add" not in sys.argv:
            f.attrs["torch"] = str(torch.__version__)
        runs.make(f)


if __name__ == "__main__":
    main()
