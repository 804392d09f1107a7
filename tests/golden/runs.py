"""Ten steps of whole models, in float64 and in float32, from numbers that a formula gives.

The two precisions' difference says how far rounding alone drives the losses apart: the tolerance of
whoever compares.
"""
import numpy as np
import torch
import torch.nn.functional as F

import formula
from interpret import Interpreter

STEPS = 10
DATA, LABEL, PARAM = 1, 2, 16  # streams; parameter row r has stream PARAM + r


def mlp():
    return [("linear", {"out": 512, "name": "linear1"}), ("relu", {}),
            ("linear", {"out": 512, "name": "linear2"}), ("relu", {}),
            ("linear", {"out": 10, "name": "linear3"})]


def tied():
    """Three layers with one weight, one that is frozen, one with factors of its own."""
    return [("linear", {"out": 96, "name": "linear1"}), ("relu", {}),
            ("linear", {"out": 96, "name": "linear2"}), ("relu", {}),
            ("linear", {"out": 96, "name": "linear3", "weight_of": "linear2"}), ("relu", {}),
            ("linear", {"out": 96, "name": "linear4", "freeze": True}), ("relu", {}),
            ("linear", {"out": 96, "name": "linear5", "lr_factor": 0.5, "decay_factor": 8}), ("relu", {}),
            ("linear", {"out": 96, "name": "linear6", "weight_of": "linear2", "bias": False}), ("relu", {}),
            ("linear", {"out": 10, "name": "linear7"})]


def plain():
    return [("linear", {"out": 96, "name": "linear1"}), ("relu", {}),
            ("linear", {"out": 96, "name": "linear2"}), ("relu", {}),
            ("linear", {"out": 10, "name": "linear3"})]


def resnet20():
    count = {"conv2d": 0, "batchnorm": 0}

    def named(kind, **attrs):
        count[kind] += 1
        return (kind, {**attrs, "name": f"{kind}{count[kind]}"})

    def conv_bn(out, kernel, stride):
        return [named("conv2d", out=out, kernel=kernel, stride=stride, padding=kernel // 2, bias=False),
                named("batchnorm")]

    layers = [*conv_bn(16, 3, 1), ("relu", {})]
    for stage, out in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage > 0 and block == 0 else 1
            body = [*conv_bn(out, 3, stride), ("relu", {}), *conv_bn(out, 3, 1)]
            attrs = {"body": body}
            if stride == 2:
                attrs["shortcut"] = conv_bn(out, 1, 2)
            layers += [("residual", attrs), ("relu", {})]
    return layers + [("global_avgpool", {}), ("flatten", {}), ("linear", {"out": 10, "name": "linear1"})]


def small():
    """Batchnorm, whose statistics are those of a micro-batch."""
    return [("conv2d", {"out": 8, "kernel": 3, "bias": False, "name": "conv2d1"}),
            ("batchnorm", {"name": "batchnorm1"}), ("relu", {}),
            ("conv2d", {"out": 6, "kernel": 3, "stride": 2, "bias": False, "name": "conv2d2"}),
            ("batchnorm", {"name": "batchnorm2"}), ("relu", {}),
            ("flatten", {}), ("linear", {"out": 10, "name": "linear1"})]


def initial(row, key, shape, fan_in, dtype):
    """Uniform within 1/sqrt(fan_in) in float32; norms start at weight 1, bias 0."""
    if fan_in == 0:
        t = torch.full(shape, 1.0 if key.endswith("weight") else 0.0)
    else:
        bound = np.float32(1) / np.sqrt(np.float32(fan_in))
        t = torch.tensor(formula.symmetric(PARAM + row, int(np.prod(shape))) * bound).reshape(shape)
    return t.to(dtype).requires_grad_(True)


def batch(step, size, count, shape, dtype):
    """`count` samples of step `step`, whose full size is `size`."""
    n = int(np.prod(shape))
    x = torch.tensor(formula.symmetric(DATA, count * n, step * size * n)).reshape(count, *shape)
    labels = (formula.words(LABEL, count, step * size) % 10).astype(np.int64)
    return x.to(dtype), torch.tensor(labels)


def pieces(count, size, accumulate):
    """Micro-batches: `accumulate` of a full step, of a short one as few of at most their size as hold it."""
    most = -(-size // accumulate)
    return np.array_split(np.arange(count), accumulate if count == size else -(-count // most))


class Trust(torch.optim.Optimizer):
    """LARS (You et al., 2017) and LAMB (You et al., 2019): torch has neither. Groups whose `adapt` is False are not
    adapted."""

    def __init__(self, groups, kind, lr):
        super().__init__(groups, {"lr": lr, "adapt": True})
        self.kind = kind

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                s, w = self.state[p], p.norm()
                if not s:
                    s.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["t"] += 1
                if self.kind == "lars":
                    trust = 0.02 * w / (p.grad.norm() + group["weight_decay"] * w + 1e-8)
                    d = p.grad + group["weight_decay"] * p
                    s["m"].mul_(0.9).add_(trust * d if group["adapt"] and w > 0 else d)
                    p -= group["lr"] * s["m"]
                    continue
                s["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                s["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                d = s["m"] / (1 - 0.9**s["t"]) / ((s["v"] / (1 - 0.999**s["t"])).sqrt() + 1e-6)
                d = d + group["weight_decay"] * p
                p -= group["lr"] * d * (w / d.norm() if group["adapt"] and w > 0 else 1.0)


def optimizer_of(kind, decay, rest, factors):
    halves = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0, "adapt": False}]
    if kind == "adam":
        return torch.optim.Adam(halves, lr=1e-3)
    if kind == "rmsprop":
        return torch.optim.RMSprop(halves, lr=1e-3, alpha=0.9, eps=1e-3, momentum=0.9, centered=True)
    if kind in ("lars", "lamb"):
        return Trust(halves, kind, 0.5 if kind == "lars" else 0.01)
    if kind == "adamw":
        groups = [{"params": [p], "lr": 1e-3 * factors[p][0], "weight_decay": 0.01 * factors[p][1]} for p in decay]
        groups += [{"params": [p], "lr": 1e-3 * factors[p][0], "weight_decay": 0.0} for p in rest]
        return torch.optim.AdamW(groups, lr=1e-3)
    return torch.optim.SGD(decay + rest, lr=0.01, momentum=0.9)


def train(layers, size, shape, kind, dtype, accumulate, last):
    net = Interpreter(True, lambda key, s, fan: initial(len(net.order), key, s, fan, dtype))
    probe = torch.zeros(2, *shape, dtype=dtype) + torch.arange(2.0).reshape(2, *([1] * len(shape)))
    with torch.no_grad():
        net.run(layers, probe.to(dtype))
    for key, s in net.states.items():
        s.fill_(1.0 if key.endswith("var") else 0.0)
    facts = {p: net.facts.get(k.split("/")[0], (False, 1.0, 1.0)) for k, p in net.params.items()}
    learned = [p for p, (frozen, *_) in facts.items() if not frozen]
    decay = [p for p in learned if p.dim() > 1]
    rest = [p for p in learned if p.dim() == 1]
    optimizer = optimizer_of(kind, decay, rest, {p: facts[p][1:] for p in learned})
    losses, norms = [], []
    for step in range(STEPS):
        count = last if step == STEPS - 1 else size
        x, labels = batch(step, size, count, shape, dtype)
        optimizer.zero_grad()
        total = 0.0
        for piece in pieces(count, size, accumulate):
            loss = F.cross_entropy(net.run(layers, x[piece]), labels[piece]) * (len(piece) / count)
            loss.backward()
            total += loss.item()
        norms.append(float(torch.nn.utils.clip_grad_norm_(decay + rest, 1.0)))
        optimizer.step()
        losses.append(total)
    return losses, norms


def make_one(file, name, layers, size, shape, kind, accumulate=1, last=None):
    g = file.create_group(name)
    g.attrs["batch"] = size
    g.attrs["torch"] = str(torch.__version__)
    for text, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        losses, norms = train(layers, size, shape, kind, dtype, accumulate, last or size)
        g.create_dataset(f"loss_{text}", data=np.array(losses, np.float64))
        g.create_dataset(f"grad_norm_{text}", data=np.array(norms, np.float64))
    away = np.abs(np.array(g["loss_float64"]) - np.array(g["loss_float32"]))
    print(f"runs.h5: {name}: {g['loss_float64'][0]:.6f} ... {g['loss_float64'][9]:.6f}; float32 "
          f"leaves float64 by", " ".join(f"{x:.0e}" for x in away))


def make(file):
    table = (("mlp", mlp(), 128, (784,), "adamw"), ("resnet20", resnet20(), 32, (3, 32, 32), "adamw"),
             ("resnet20_sgd", resnet20(), 32, (3, 32, 32), "sgd"), ("tied", tied(), 64, (96,), "adamw"),
             *((kind, plain(), 64, (96,), kind) for kind in ("adam", "rmsprop", "lars", "lamb")),
             ("accumulate", small(), 22, (3, 9, 9), "sgd", 4, 10))
    for row in table:
        if row[0] not in file:
            make_one(file, *row)
