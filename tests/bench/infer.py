#!/usr/bin/env python3
"""Times Trireme's inference engine beside ONNX Runtime, OpenVINO and PyTorch, one thread each:

    python3 -m venv /tmp/peers && /tmp/peers/bin/pip install onnxruntime openvino nncf onnx numpy pyyaml torch
    /tmp/peers/bin/python tests/bench/infer.py [--build build/release] [--only resnet20] [--clock cpu]

The networks are configs/bench's and a ResNet-18, batchnorm folded, with values by seed and one step of training;
bench_infer writes them as ONNX for the others, whose answers are compared with ours. int8: quantized on the same
samples, ours by the stage `quantize` with its own choice of layers (what stays float is bfloat16 with AMX), the peers' by
onnxruntime.quantization (QDQ, U8S8, a scale a channel) and by NNCF, or where there is none OpenVINO on the former's
file. Each engine is a process of its own; they take turns, and
the table has the median over the rounds of each round's median call (with --clock cpu the least). A peer that is not installed is left out and
said. With --clock cpu calls are measured by the processor time of their thread, for machines that do other work.

The first lines say what the CPU has for bf16 and int8. Of ResNet-20 at batch 1 a second table has what each engine takes from its file to
a network that is ready, to the first answer (libraries are loaded before), and its process' memory: the peak of RSS, and PSS when all
calls are done. What is promised of ours is held against a bound: ready and a first answer within 50 ms, and at most half of ONNX Runtime's
memory once it is there, of every network; where one is missed the status is 1.
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


STARTS = ("resnet20", 1)  # of which the start is told
CASES = [("resnet20", 32), ("resnet20", 1), ("mlp", 32), ("mlp", 1), ("resnet18", 1)]
PEERS = ["onnxruntime fp32", "openvino fp32", "torch fp32", "openvino bf16", "torch bf16", "onnxruntime int8",
         "openvino int8"]
SAMPLES = 32  # of calibration
START_MS = 50  # promised of STARTS, from the file to the first answer
MEMORY = 0.5  # promised of ONNX Runtime's, in the same precision where it has that, once a first answer is there


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
    __import__(engine)
    text = pathlib.Path(config).read_text()
    start = time.perf_counter()
    run = open_peer(engine, precision, onnx, text, int(batch))
    opened = time.perf_counter()
    y = run()
    rss = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    print("read_ms 0 open_ms", f"{(opened - start) * 1e3:.2f}", "first_ms", f"{(time.perf_counter() - opened) * 1e3:.2f}", "rss_mb", f"{rss:.1f}", "y",
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


def prepare(name, folder, args):
    """NAME.yaml, its data, and a run of it: model.h5, stages/01-quantize.h5; NAME.onnx and the peers' int8 files."""
    import numpy
    import yaml
    config, run, onnx = folder / f"{name}.yaml", folder / name, folder / f"{name}.onnx"
    if run.exists():
        return
    text = configs()[name]
    shape = yaml.safe_load(text)["model"]["input"]
    random = numpy.random.default_rng(1)
    x, y = folder / f"{name}.x.npy", folder / f"{name}.y.npy"
    numpy.save(x, random.uniform(-1, 1, [SAMPLES] + shape).astype(numpy.float32))
    numpy.save(y, random.integers(0, 10, SAMPLES).astype(numpy.int32))
    data = f"{{inputs: {x}, labels: {y}}}"
    text = text.replace("train: {format: synthetic, samples: 2048}", f"train: {data}\n  eval: {data}")
    text = text.replace("train: {format: synthetic, samples: 8192}", f"train: {data}\n  eval: {data}")
    config.write_text(text)
    quantize = f"{{quantize: {{layers: {args.layers}, samples: {SAMPLES}, budget: {{accuracy_drop: 1}}}}}}"
    command([ROOT / args.build / "bin/trainer", config, f"output={run}", "train.steps=1", "train.batch=4", "run.threads=1",
             f"pipeline=[train, {quantize}]", "--quiet"])
    command([ROOT / args.build / "tests/bench/bench_infer", run / "model.h5", 1, "fp32", 1, onnx])
    for engine in ("onnxruntime", "openvino"):
        command([sys.executable, __file__, "--quantize", engine, onnx, x])


def command(words):
    done = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        print(f"{words[0]} failed:\n{done.stdout}{done.stderr}")


def quantize_peer(engine, onnx, samples):
    """The process that makes a peer's int8 file of NAME.onnx: NAME.ENGINE.onnx, NAME.ENGINE.xml."""
    import numpy
    x = numpy.load(samples)
    to = pathlib.Path(onnx).with_suffix("")
    if engine == "onnxruntime":
        import onnx as files
        from onnxruntime import quantization as q
        given = files.load(onnx).graph.input[0].name

        class Samples(q.CalibrationDataReader):
            def __init__(self):
                self.left = iter(x)

            def get_next(self):
                sample = next(self.left, None)
                return None if sample is None else {given: sample[None]}

        q.shape_inference.quant_pre_process(onnx, f"{to}.prepared.onnx", skip_symbolic_shape=True)
        q.quantize_static(f"{to}.prepared.onnx", f"{to}.onnxruntime.onnx", Samples(), per_channel=True,
                          quant_format=q.QuantFormat.QDQ, activation_type=q.QuantType.QUInt8,
                          weight_type=q.QuantType.QInt8)
        return
    import nncf
    import openvino
    model = nncf.quantize(openvino.Core().read_model(onnx), nncf.Dataset([sample[None] for sample in x]),
                          subset_size=len(x), target_device=nncf.TargetDevice.CPU)
    openvino.save_model(model, f"{to}.openvino.xml", compress_to_fp16=False)


def network_of(what, name, folder):
    """The file that an engine reads."""
    engine, precision = what.split()
    if engine == "trireme":
        return folder / name / ("stages/01-quantize.h5" if precision == "int8" else "model.h5")
    if precision != "int8":
        return folder / f"{name}.onnx"
    own = folder / f"{name}.openvino.xml"
    return own if engine == "openvino" and own.exists() else folder / f"{name}.onnxruntime.onnx"


def compare(name, batch, folder, args):
    prepare(name, folder, args)
    config = folder / f"{name}.yaml"
    ours = [f"trireme {p}" for p in args.precisions.split(",")]
    engines = {}
    for what in ours:
        precision = what.split()[1].replace("int8", args.rest)
        engines[what] = start([ROOT / args.build / "tests/bench/bench_infer", network_of(what, name, folder), batch,
                               precision, 1])
    for what in PEERS:
        engine, precision = what.split()
        wanted = precision in args.precisions.split(",") and (not args.peers or engine in args.peers.split(","))
        if wanted and installed(engine) and network_of(what, name, folder).exists():
            engines[what] = start([sys.executable, __file__, "--peer", engine, precision.replace("int8", args.rest),
                                   network_of(what, name, folder), config, batch])
    medians = {what: [] for what in engines}
    for _ in range(args.rounds):
        for what, (p, first) in engines.items():
            p.stdin.write(f"{args.seconds} {args.clock}\n")
            p.stdin.flush()
            medians[what].append(float(p.stdout.readline() or "nan"))
    reference = values(engines[ours[0]][1])
    row, starts = {}, {}
    for what, (p, first) in engines.items():
        starts[what] = [value(first, "read_ms") + value(first, "open_ms"), value(first, "first_ms"), *memory(p.pid)]
        p.stdin.close()
        p.wait()
        far = max((abs(a - b) for a, b in zip(values(first), reference)), default=float("nan"))
        typical = min if args.clock == "cpu" else statistics.median
        row[what] = (typical(medians[what]) / 1e3, value(first, "rss_mb"), far)
    return row, starts


def keeps_promises(name, batch, row, starts):
    """Of ours, beside each bound; what has no peer here is held against none."""
    kept = True
    for what, (ready, first, peak, _) in starts.items():
        engine, precision = what.split()
        if engine != "trireme":
            continue
        if (name, batch) == STARTS:
            print(f"    {what}: the first answer after {ready + first:.1f} ms, promised {START_MS}")
            kept = kept and ready + first < START_MS
        peer = next((p for p in (f"onnxruntime {precision}", "onnxruntime fp32") if p in row), None)
        if peer:
            share = row[what][1] / row[peer][1]
            print(f"    {what}: {share:.2f} of ONNX Runtime's memory with a first answer, promised {MEMORY}; "
                  f"{peak / starts[peer][2]:.2f} of its peak")
            kept = kept and share <= MEMORY
    return kept


def value(first, name):
    return float(first[first.index(name) + 1]) if name in first else float("nan")


def memory(pid):
    """MB of a process: the peak of what is resident, and its share of that now."""
    sizes = []
    for file, key in (("status", "VmHWM:"), ("smaps_rollup", "Pss:")):
        try:
            lines = pathlib.Path(f"/proc/{pid}/{file}").read_text().splitlines()
            sizes.append(float(next(line.split()[1] for line in lines if line.startswith(key))) / 1024)
        except (OSError, StopIteration):
            sizes.append(float("nan"))
    return sizes


def level():
    """What the CPU has for products of few bits."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    has = [what for what, flag in (("AVX2", "avx2"), ("AVX-512", "avx512f"), ("VNNI", "avx512_vnni"), ("VNNI of AVX", "avx_vnni"),
                                   ("BF16", "avx512_bf16"), ("AMX int8", "amx_int8"), ("AMX bf16", "amx_bf16")) if flag in flags]
    missing = [what for what, flag in (("VNNI", "vnni"), ("AMX", "amx_")) if not any(flag in f for f in flags)]
    return f"{name}: {', '.join(has) or 'none of AVX2, VNNI, AMX'}" + "".join(f"; no {what}" for what in missing)


def values(first):
    return [float(v) for v in first[first.index("y") + 1:]] if "y" in first else []


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(*sys.argv[2:])
    if sys.argv[1:2] == ["--quantize"]:
        return quantize_peer(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--only", default="")
    parser.add_argument("--peers", default="")
    parser.add_argument("--precisions", default="fp32,bf16,int8")
    parser.add_argument("--layers", default="auto", choices=["auto", "all"], help="of ours in int8")
    parser.add_argument("--rest", choices=["bf16", "fp32"], help="what int8 leaves float; else bf16 with AMX, which alone makes it faster")
    parser.add_argument("--keep", default="", help="a folder for what is made, used again where it is there")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    args = parser.parse_args()
    args.rest = args.rest or ("bf16" if "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text() else "fp32")
    print(level())
    for engine in sorted({what.split()[0] for what in PEERS}):
        if not installed(engine):
            print(f"{engine} is not installed, and left out")
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        if args.keep:
            pathlib.Path(args.keep).mkdir(parents=True, exist_ok=True)
        for name, batch in CASES:
            if args.only and args.only not in f"{name}-{batch}":
                continue
            row, starts = compare(name, batch, pathlib.Path(args.keep or folder), args)
            print(f"{name}, batch {batch} (ms a call; MB; largest difference from ours)")
            for what, (ms, rss, far) in row.items():
                print(f"    {what:18} {ms:9.4f} {rss:8.1f} {far:10.2g}", flush=True)
            if (name, batch) == STARTS:
                print(f"{name}, batch {batch}: its start (ms from file to ready; to the first answer; MB: peak of RSS, PSS)")
                for what, (ready, first, rss, pss) in starts.items():
                    print(f"    {what:18} {ready:9.2f} {first:9.2f} {rss:8.1f} {pss:8.1f}", flush=True)
            kept = keeps_promises(name, batch, row, starts) and kept
    raise SystemExit(not kept)


if __name__ == "__main__":
    main()
