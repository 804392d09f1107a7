#!/usr/bin/env python3
"""The peer on a GPU: PyTorch training ResNet-50 as configs/bench/resnet50.yaml has it, GPT-2 124M as
configs/bench/gpt2.yaml (and configs/gpt2-124m.yaml) has it, or the LSTM of configs/bench/lstm.yaml.

    python3 peer_gpu.py [--model resnet50|gpt2|lstm] --mode eager|compile [--batch 256|16] [--steps 20] [--warmup 10]

It is given its best: bfloat16 autocast, TF32 allowed for what stays in float32, a fused optimizer, gradients set to
None, data on the device already; ResNet-50 channels-last with cudnn.benchmark; GPT-2 with flash attention (another kind
is an error, not a slower run); gradients of GPT-2 and the LSTM clipped to 1.0 by multi-tensor kernels. Compiled together
with the loss, with CUDA graphs where `reduce-overhead` is asked for. Prints one line of JSON; step_ms is the median of
steps between CUDA events. The first steps, with their compilation and trials, are first_step_s.
"""
import argparse
import contextlib
import json
import statistics
import time

import peer_ddp


def resnet50():
    """He et al. 2016, the stride in the 3x3 convolutions as in torchvision's; own code, so that only torch is
    needed."""
    from torch import nn

    def conv_bn(cin, cout, kernel, stride=1):
        return [nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout)]

    class Bottleneck(nn.Module):
        def __init__(self, cin, width, stride):
            super().__init__()
            cout = 4 * width
            self.body = nn.Sequential(*conv_bn(cin, width, 1), nn.ReLU(inplace=True),
                                      *conv_bn(width, width, 3, stride), nn.ReLU(inplace=True),
                                      *conv_bn(width, cout, 1))
            self.shortcut = nn.Sequential(*conv_bn(cin, cout, 1, stride)) if cin != cout or stride > 1 else None
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.body(x)
            y += self.shortcut(x) if self.shortcut is not None else x
            return self.relu(y)

    layers, cin = [*conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for i in range(blocks):
            layers.append(Bottleneck(cin, width, stride if i == 0 else 1))
            cin = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 1000))


class ResNet50:
    def __init__(self, torch, a):
        torch.backends.cudnn.benchmark = True
        self.model = resnet50().to(a.device, memory_format=torch.channels_last)
        self.x = torch.randn(a.batch, 3, a.size, a.size, device=a.device).contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 1000, (a.batch,), device=a.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)

    attention = staticmethod(contextlib.nullcontext)

    def clip(self):
        pass


class Clipped:
    """A model that AdamW trains, gradients clipped."""

    def __init__(self, torch, model, lr):
        self.torch, self.model, self.parameters = torch, model, list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.01, fused=True)

    attention = staticmethod(contextlib.nullcontext)

    def clip(self):
        self.torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)


class GPT2(Clipped):
    def __init__(self, torch, a):
        super().__init__(torch, peer_ddp.gpt(50257, a.size, 768, a.layers, 12).to(a.device), 6e-4)
        ids = torch.randint(0, 50257, (a.batch, a.size + 1), device=a.device)
        self.x, self.labels = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def attention(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


class LSTM(Clipped):
    """By cuDNN's kernels, where that is 9.13 or later; by others before."""

    def __init__(self, torch, a):
        super().__init__(torch, peer_ddp.lstm().to(a.device), 1e-3)
        self.x = torch.randn(a.batch, a.size, 64, device=a.device)
        self.labels = torch.randint(0, 10, (a.batch,), device=a.device)


MODELS = {"resnet50": (ResNet50, 256, 224), "gpt2": (GPT2, 16, 1024), "lstm": (LSTM, 256, 64)}  # batch, size


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=tuple(MODELS), default="resnet50")
    p.add_argument("--mode", choices=("eager", "compile", "reduce-overhead"), default="eager")
    p.add_argument("--batch", type=int, help="256 images or rows of steps, or 16 texts")
    p.add_argument("--size", type=int, help="of an image, 224; tokens of a text, 1024; steps, 64")
    p.add_argument("--layers", type=int, default=12, help="of GPT-2; fewer: to see that this program works")
    p.add_argument("--steps", type=int, default=20, help="measured steps")
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--device", default="cuda", help="cpu: to see that this program works")
    a = p.parse_args()
    _, batch, size = MODELS[a.model]
    a.batch, a.size = a.batch or batch, a.size or size
    return a


def main():
    a = arguments()
    began = time.perf_counter()
    import torch

    gpu = a.device == "cuda"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    m = MODELS[a.model][0](torch, a)
    parameters = sum(w.numel() for w in m.model.parameters())

    def loss_of(x, labels):
        return torch.nn.functional.cross_entropy(m.model(x), labels)

    run = loss_of
    if a.mode != "eager":
        run = torch.compile(loss_of, mode="default" if a.mode == "compile" else a.mode)

    def step():
        m.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(a.device, dtype=torch.bfloat16), m.attention():
            loss = run(m.x, m.labels)
        loss.backward()
        m.clip()
        m.optimizer.step()
        return loss

    def timed():
        if not gpu:
            start = time.perf_counter()
            step()
            return 1e3 * (time.perf_counter() - start)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        return begin, end

    step()
    if gpu:
        torch.cuda.synchronize()
    first = time.perf_counter() - began
    for _ in range(a.warmup):
        step()
    marks = [timed() for _ in range(a.steps)]  # put into the stream without waiting
    loss = step().item()
    times = [b.elapsed_time(e) for b, e in marks] if gpu else marks
    ms = statistics.median(times)
    print(json.dumps({
        "model": a.model, "mode": a.mode, "batch": a.batch, "parameters": parameters, "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if gpu else "cpu", "step_ms": round(ms, 3),
        "samples_per_s": round(1e3 * a.batch / ms, 1), "first_step_s": round(first, 2), "loss": round(loss, 4),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if gpu else None}))


if __name__ == "__main__":
    main()
