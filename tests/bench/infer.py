#!/usr/bin/env python3
"""Times Trireme's inference engine beside ONNX Runtime, OpenVINO and PyTorch, one thread each:

    python3 -m venv /tmp/peers && /tmp/peers/bin/pip install onnxruntime openvino onnx numpy torch
    /tmp/peers/bin/python tests/bench/infer.py [--build build/release] [--only resnet20] [--clock cpu]

The networks are configs/bench's and a ResNet-18, batchnorm folded, with values by seed; bench_infer writes them as
ONNX for the others, whose answers are compared with ours. Each engine is a process of its own; they take turns, and
the table has the median over the rounds of each round's median call (with --clock cpu the least). A peer that is not installed is left out and
said. With --clock cpu calls are measured by the processor time of their thread, for machines that do other work.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def folded(text):
    """A config without its batchnorm layers: what folding leaves."""
    lines = [line.replace(", bias: false", "") for line in text.split("\n") if line.strip() != "- batchnorm"]
    return "\n".join(lines)


def resnet18(like):
    def block(out, stride, change):
        shortcut = f"        shortcut: [{{conv2d: {{out: {out}, kernel: 1, stride: {stride}}}}}]\n" if change else ""
        return (f"    - residual:\n        body:\n          - conv2d: {{out: {out}, kernel: 3, stride: {stride}, "
                f"padding: 1}}\n          - relu\n          - conv2d: {{out: {out}, kernel: 3, padding: 1}}\n"
                f"{shortcut}    - relu\n")

    layers = ("    - conv2d: {out: 64, kernel: 7, stride: 2, padding: 3}\n    - relu\n"
              "    - maxpool2d: {kernel: 3, stride: 2, padding: 1}\n")
    for i, out in enumerate((64, 128, 256, 512)):
        layers += block(out, 2 if i else 1, i > 0) + block(out, 1, False)
    layers += "    - global_avgpool\n    - flatten\n    - linear: {out: 1000}\n"
    head, rest = like.split("model:\n")
    return f"{head}model:\n  input: [3, 224, 224]\n  layers:\n{layers}  loss: cross_entropy\ntrain:{rest.split('train:')[1]}"


def configs():
    bench = ROOT / "configs/bench"
    resnet20 = folded((bench / "resnet20.yaml").read_text())
    return {"mlp": (bench / "mlp.yaml").read_text(), "resnet20": resnet20, "resnet18": resnet18(resnet20)}


CASES = [("resnet20", 32), ("resnet20", 1), ("mlp", 32), ("mlp", 1), ("resnet18", 1)]
PEERS = ["onnxruntime fp32", "openvino fp32", "openvino bf16", "torch fp32", "torch bf16"]


def numbers(shape):
    import numpy
    count = int(numpy.prod(shape))
    values = (numpy.arange(count, dtype=numpy.int64) * 7919 % 2000).astype(numpy.float64)
    return (values.astype(numpy.float32) / numpy.float32(1000) - numpy.float32(1)).reshape(shape)


def torch_of(config, precision):
    """The same network in PyTorch, values apart: by the order of its layers."""
    import torch
    import yaml
    nn = torch.nn

    class Residual(nn.Module):
        def __init__(self, body, shortcut):
            super().__init__()
            self.body, self.shortcut = body, shortcut

        def forward(self, x):
            return self.body(x) + self.shortcut(x)

    def build(layers, c):
        made = []
        for item in layers:
            kind, o = (item, {}) if isinstance(item, str) else next(iter(item.items()))
            if kind == "conv2d":
                made.append(nn.Conv2d(c, o["out"], o["kernel"], o.get("stride", 1), o.get("padding", 0)))
                c = o["out"]
            elif kind == "linear":
                made.append(nn.Linear(c, o["out"]))
                c = o["out"]
            elif kind == "relu":
                made.append(nn.ReLU())
            elif kind == "maxpool2d":
                made.append(nn.MaxPool2d(o["kernel"], o["stride"], o["padding"]))
            elif kind == "global_avgpool":
                made.append(nn.AdaptiveAvgPool2d(1))
            elif kind == "flatten":
                made.append(nn.Flatten())
            elif kind == "repeat":
                for _ in range(o["times"]):
                    more, c = build(o["layers"], c)
                    made.append(more)
            else:
                body, out = build(o["body"], c)
                shortcut = build(o["shortcut"], c)[0] if "shortcut" in o else nn.Identity()
                made.append(Residual(body, shortcut))
                c = out
        return nn.Sequential(*made), c

    model = yaml.safe_load(config)["model"]
    net = build(model["layers"], model["input"][0])[0].eval()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return net.to(dtype).to(memory_format=torch.channels_last), dtype, [d for d in model["input"]]


def open_peer(engine, precision, onnx, config, batch):
    if engine == "onnxruntime":
        import onnxruntime
        o = onnxruntime.SessionOptions()
        o.intra_op_num_threads = o.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(onnx, o, providers=["CPUExecutionProvider"])
        given = session.get_inputs()[0]
        x = {given.name: numbers([batch] + list(given.shape[1:]))}
        return lambda: session.run(None, x)[0]
    if engine == "openvino":
        import openvino
        model = openvino.Core().read_model(onnx)
        shape = [batch] + [d.get_length() for d in list(model.inputs[0].get_partial_shape())[1:]]
        model.reshape({model.inputs[0]: openvino.PartialShape(shape)})
        compiled = openvino.Core().compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1})
        request = compiled.create_infer_request()
        tensor = openvino.Tensor(numbers(shape))
        request.set_input_tensor(tensor)
        output = compiled.outputs[0]

        def run():
            request.infer()
            return request.get_tensor(output).data
        return run
    import torch
    torch.set_num_threads(1)
    net, dtype, shape = torch_of(config, precision)
    x = torch.from_numpy(numbers([batch] + shape)).to(dtype)
    if x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)

    def forward():
        with torch.inference_mode():
            return net(x).float().numpy()
    return forward


def peer(engine, precision, onnx, config, batch):
    """The process of a peer: as bench_infer."""
    start = time.perf_counter()
    run = open_peer(engine, precision, onnx, pathlib.Path(config).read_text(), int(batch))
    y = run()
    rss = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    print("open_ms", f"{(time.perf_counter() - start) * 1e3:.2f}", "rss_mb", f"{rss:.1f}", "y",
          *(f"{v:.6g}" for v in y.reshape(-1)[:10]), flush=True)
    for line in sys.stdin:
        clock = time.thread_time if "cpu" in line else time.perf_counter
        times, start = [], clock()
        last = start
        while len(times) < 3 or last - start < float(line.split()[0]):
            run()
            t = clock()
            times.append(t - last)
            last = t
        print(f"{statistics.median(times) * 1e6:.3f}", flush=True)


def installed(engine):
    return subprocess.run([sys.executable, "-c", f"import {engine}"], capture_output=True).returncode == 0


def start(command):
    env = dict(os.environ, OMP_NUM_THREADS="1")
    p = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
                         stderr=subprocess.DEVNULL if command[0] == sys.executable else None)
    return p, p.stdout.readline().split()


def compare(name, batch, folder, args):
    config, onnx = folder / f"{name}.yaml", folder / f"{name}.onnx"
    config.write_text(configs()[name])
    ours = [f"trireme {p}" for p in args.precisions.split(",")]
    engines = {}
    for what in ours:
        engines[what] = start([ROOT / args.build / "tests/bench/bench_infer", config, batch, what.split()[1], 1, onnx])
    for what in PEERS:
        engine, precision = what.split()
        if installed(engine) and (not args.peers or engine in args.peers.split(",")):
            engines[what] = start([sys.executable, __file__, "--peer", engine, precision, onnx, config, str(batch)])
    medians = {what: [] for what in engines}
    for _ in range(args.rounds):
        for what, (p, first) in engines.items():
            p.stdin.write(f"{args.seconds} {args.clock}\n")
            p.stdin.flush()
            medians[what].append(float(p.stdout.readline() or "nan"))
    reference = values(engines[ours[0]][1])
    row = {}
    for what, (p, first) in engines.items():
        p.stdin.close()
        p.wait()
        far = max((abs(a - b) for a, b in zip(values(first), reference)), default=float("nan"))
        typical = min if args.clock == "cpu" else statistics.median
        row[what] = (typical(medians[what]) / 1e3, float(first[first.index("rss_mb") + 1]) if first else 0, far)
    return row


def values(first):
    return [float(v) for v in first[first.index("y") + 1:]] if "y" in first else []


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--only", default="")
    parser.add_argument("--peers", default="")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    args = parser.parse_args()
    for engine in sorted({what.split()[0] for what in PEERS}):
        if not installed(engine):
            print(f"{engine} is not installed, and left out")
    with tempfile.TemporaryDirectory() as folder:
        for name, batch in CASES:
            if args.only and args.only not in f"{name}-{batch}":
                continue
            row = compare(name, batch, pathlib.Path(folder), args)
            print(f"{name}, batch {batch} (ms a call; MB; largest difference from ours)")
            for what, (ms, rss, far) in row.items():
                print(f"    {what:18} {ms:9.4f} {rss:8.1f} {far:10.2g}", flush=True)


if __name__ == "__main__":
    main()
