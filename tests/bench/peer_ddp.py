#!/usr/bin/env python3
"""The peer: PyTorch DistributedDataParallel over gloo, 2 ranks x 1 thread, on Trireme's bench models.

    python3 peer_ddp.py --model mlp|resnet20|gpt|gpt2|lstm|vit --precision fp32|bf16 [--steps N] [--warmup N]

It is given its best: fused AdamW, multi-tensor clipping, gradients as views of DDP's buckets, the whole
data set in memory as tensors of the right layout, each rank bound to a core of its own, channels-last for
convolutions where a short trial just before finds it faster, and the weights cast once a step under
autocast. Prints one line of JSON. Times are medians of steps that end in a finished update; first_step_s
counts from the launch of the measured ranks, not of the trial.
"""
import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time

RANKS = 2
BATCHES = {"mlp": 128, "resnet20": 128, "gpt": 8, "lstm": 64, "vit": 16, "gpt2": 2}  # global
TRIAL = ["--steps", "8", "--warmup", "4"]  # to compare memory formats with


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=tuple(BATCHES), required=True)
    p.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--steps", type=int, default=100, help="measured steps")
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--channels-last", choices=("auto", "yes", "no"), default="auto",
                   help="memory format of resnet20 and vit")
    return p.parse_args()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(args, channels_last, more=()):
    """Starts the ranks; a failing one takes the other down. Returns what rank 0 measured."""
    argv = ["--model", args.model, "--precision", args.precision, "--steps", str(args.steps), "--warmup",
            str(args.warmup), "--channels-last", "yes" if channels_last else "no", *more]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(RANKS),
               OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PEER_LAUNCHED=repr(time.time()))
    ranks = [subprocess.Popen([sys.executable, os.path.abspath(__file__), *argv], env=dict(env, RANK=str(r)),
                              stdout=subprocess.PIPE if r == 0 else None, text=True) for r in range(RANKS)]
    while any(r.poll() is None for r in ranks):
        if any(r.poll() for r in ranks):
            for r in ranks:
                r.kill()
        time.sleep(0.02)
    if any(r.returncode for r in ranks):
        sys.exit("peer_ddp.py: a rank failed")
    return json.loads(ranks[0].stdout.read())


def mlp():
    from torch import nn

    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(inplace=True), nn.Linear(512, 512),
                         nn.ReLU(inplace=True), nn.Linear(512, 10))


def resnet20():
    """He et al. 2016 for CIFAR: 16-32-64 channels, 3 blocks each; 1x1 projections with batchnorm."""
    from torch import nn

    def conv_bn(cin, cout, kernel, stride):
        return [nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout)]

    class Block(nn.Module):
        def __init__(self, cin, cout, stride):
            super().__init__()
            self.body = nn.Sequential(*conv_bn(cin, cout, 3, stride), nn.ReLU(inplace=True),
                                      *conv_bn(cout, cout, 3, 1))
            self.shortcut = nn.Sequential(*conv_bn(cin, cout, 1, stride)) if cin != cout else None
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.body(x)
            y += self.shortcut(x) if self.shortcut else x
            return self.relu(y)

    layers, cin = [*conv_bn(3, 16, 3, 1), nn.ReLU(inplace=True)], 16
    for cout in (16, 32, 64):
        for _ in range(3):
            layers.append(Block(cin, cout, 1 if cin == cout else 2))
            cin = cout
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def attention_block(width, heads, gelu, causal):
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate=gelu), nn.Linear(4 * width, width))

        def forward(self, x):
            n, t, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            x = x + self.proj(y.transpose(1, 2).reshape(n, t, width))
            return x + self.mlp(self.norm2(x))

    return Block()


def gpt(vocabulary=256, places=256, width=384, layers=6, heads=6):
    """6 layers of 384, 6 heads, 256 places, bytes; the head tied."""
    import torch
    from torch import nn

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.place = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(places, width))
            self.blocks = nn.Sequential(*(attention_block(width, heads, "tanh", True) for _ in range(layers)))
            self.norm = nn.LayerNorm(width)
            nn.init.normal_(self.token.weight, std=0.02)

        def forward(self, ids):
            return nn.functional.linear(self.norm(self.blocks(self.token(ids) + self.place)), self.token.weight).flatten(0, 1)

    return GPT()


def gpt2():
    """GPT-2 124M at 1024 places."""
    return gpt(50257, 1024, 768, 12, 12)


def lstm():
    """2 layers of 256; 64 steps of 64 features; the last state tells."""
    from torch import nn

    class LSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(64, 256, 2, batch_first=True), nn.Linear(256, 10)

        def forward(self, x):
            return self.head(self.lstm(x)[1][0][-1])

    return LSTM()


def vit():
    """ViT-Ti/16 at 224."""
    import torch
    from torch import nn

    class ViT(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 192, 16, 16)
            self.token, self.place = nn.Parameter(torch.zeros(1, 1, 192)), nn.Parameter(torch.zeros(197, 192))
            self.blocks = nn.Sequential(*(attention_block(192, 3, "none", False) for _ in range(12)))
            self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1000)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
            return self.head(self.norm(self.blocks(x))[:, 0])

    return ViT()


def given(model, torch, generator):
    """A rank's inputs and labels: 16 batches."""
    n = 16 * BATCHES[model] // RANKS
    shape, classes = {"mlp": ((784,), 10), "resnet20": ((3, 32, 32), 10), "lstm": ((64, 64), 10), "vit": ((3, 224, 224), 1000),
                      "gpt": (256, 256), "gpt2": (1024, 50257)}[model]
    if model in ("gpt", "gpt2"):
        ids = torch.randint(0, classes, (n, shape + 1), generator=generator)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return torch.randn(n, *shape, generator=generator), torch.randint(0, classes, (n,), generator=generator)


class Trainer:
    def __init__(self, args, rank, channels_last):
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.torch, self.args = torch, args
        torch.manual_seed(1)
        model = {"mlp": mlp, "resnet20": resnet20, "gpt": gpt, "gpt2": gpt2, "lstm": lstm, "vit": vit}[args.model]()
        self.x, self.labels = given(args.model, torch, torch.Generator().manual_seed(2 + rank))
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True, forward_sync_buffers=False)
        self.params = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-3, weight_decay=0.01, fused=True)
        self.at = 0

    def autocast(self):
        if self.args.precision == "bf16":
            return self.torch.autocast("cpu", dtype=self.torch.bfloat16)
        return contextlib.nullcontext()

    def step(self):
        torch, size = self.torch, BATCHES[self.args.model] // RANKS
        x, labels = self.x[self.at:self.at + size], self.labels[self.at:self.at + size]
        self.at = (self.at + size) % len(self.x)
        self.optimizer.zero_grad(set_to_none=False)  # the views of DDP's buckets stay
        with self.autocast():
            loss = torch.nn.functional.cross_entropy(self.model(x), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, 1.0, foreach=True)
        self.optimizer.step()
        return loss

    def time_steps(self, count):
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - began)
        return times


def bind(rank):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= RANKS:
        os.sched_setaffinity(0, {cores[rank]})


def work(args):
    rank = int(os.environ["RANK"])
    bind(rank)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    channels_last = args.channels_last == "yes"
    trainer = Trainer(args, rank, channels_last)
    trainer.step()
    first = time.time() - float(os.environ["PEER_LAUNCHED"])
    trainer.time_steps(args.warmup)
    times = trainer.time_steps(args.steps)
    step = statistics.median(times)
    if rank == 0:
        print(json.dumps({
            "model": args.model, "precision": args.precision, "ranks": RANKS, "torch": str(torch.__version__),
            "channels_last": channels_last, "steps": args.steps, "samples_per_s": BATCHES[args.model] / step,
            "samples_per_s_of_all": BATCHES[args.model] / statistics.mean(times),
            "step_ms": round(step * 1e3, 3), "first_step_s": round(first, 3),
            "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1)}))
    dist.destroy_process_group()


def main():
    args = arguments()
    if "RANK" in os.environ and "PEER_LAUNCHED" in os.environ:
        work(args)
        return
    channels_last = args.channels_last == "yes"
    if args.channels_last == "auto" and args.model in ("resnet20", "vit"):
        trials = [launch(args, yes, TRIAL)["step_ms"] for yes in (False, True)]
        channels_last = trials[1] < trials[0]
    print(json.dumps(launch(args, channels_last)))


if __name__ == "__main__":
    main()
