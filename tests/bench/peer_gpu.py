#!/usr/bin/env python3
"""The peer on a GPU: PyTorch training ResNet-50 as configs/bench/resnet50.yaml has it.

    python3 peer_gpu.py --mode eager|compile [--batch 256] [--steps 20] [--warmup 10]

It is given its best: channels-last, bfloat16 autocast, cudnn.benchmark, TF32 allowed for what stays in float32,
fused SGD with momentum, gradients set to None, data on the device already; compiled with CUDA graphs where
`reduce-overhead` is asked for. Prints one line of JSON; step_ms is the median of steps between CUDA events.
The first steps, with their compilation and trials, are first_step_s.
"""
import argparse
import json
import statistics
import time


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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", choices=("eager", "compile", "reduce-overhead"), default="eager")
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--size", type=int, default=224)
    p.add_argument("--steps", type=int, default=20, help="measured steps")
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--device", default="cuda", help="cpu: to see that this program works")
    a = p.parse_args()
    began = time.perf_counter()
    import torch

    gpu = a.device == "cuda"
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    model = resnet50().to(a.device, memory_format=torch.channels_last)
    parameters = sum(w.numel() for w in model.parameters())
    x = torch.randn(a.batch, 3, a.size, a.size, device=a.device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (a.batch,), device=a.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    run = model
    if a.mode != "eager":
        run = torch.compile(model, mode="default" if a.mode == "compile" else a.mode)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(a.device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(run(x), labels)
        loss.backward()
        optimizer.step()
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
        "mode": a.mode, "batch": a.batch, "parameters": parameters, "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if gpu else "cpu", "step_ms": round(ms, 3),
        "samples_per_s": round(1e3 * a.batch / ms, 1), "first_step_s": round(first, 2), "loss": round(loss, 4),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if gpu else None}))


if __name__ == "__main__":
    main()
