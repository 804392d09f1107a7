#!/usr/bin/env python3
"""Our exports by others and others' exports by us: every layer and random models in each opset through
onnx.checker, shape inference, onnxruntime and OpenVINO at batch 1 and 7, within 1e-5 of our own evaluation
(relative to the largest output; where weights have 8 bits, onnxruntime as the file says, and both as they make of it:
within one step for each such weight); torchvision's models by both exporters of torch, imported, within 1e-4. A network trained
on digits and quantized, whole: the same classes as ours and accuracy within 0.2 points of ours, in both. Files of values
alone, by the Python that `export` writes beside them, with numpy, h5py, safetensors and torch: what the run file has.

peers.py TOOL TRAINER exports|imports|quantized|values    TRIREME_PEERS: a Python that has what NEEDS says"""
import functools
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

NEEDS = {"exports": "numpy onnx onnxruntime openvino", "quantized": "numpy onnx onnxruntime openvino h5py",
         "imports": "numpy onnx torch torchvision h5py", "values": "numpy h5py safetensors torch"}
TOOL, TRAINER, WHICH = sys.argv[1:]
PEERS = os.environ.get("TRIREME_PEERS", "")
if os.environ.get("TRIREME_PEERS_WITHIN") != "1":
    if not PEERS:
        print(f"skipped: TRIREME_PEERS names no Python with {NEEDS[WHICH]}")
        sys.exit(77)
    for needed in NEEDS[WHICH].split():
        if subprocess.run([PEERS, "-c", f"import {needed}"], capture_output=True).returncode:
            print(f"skipped: {PEERS} (TRIREME_PEERS) has no {needed}")
            sys.exit(77)
    os.execve(PEERS, [PEERS, *sys.argv], {**os.environ, "TRIREME_PEERS_WITHIN": "1"})

import numpy as np  # noqa: E402

if WHICH in ("exports", "quantized"):
    import onnx
    import onnxruntime
    import openvino
    onnxruntime.set_default_logger_severity(3)
    CORE = openvino.Core()
    PLAIN = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
wrong = []


def tool(*args):
    r = subprocess.run([TOOL, *map(str, args)], capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(r.stderr.strip() or f"status {r.returncode}")
    return r.stdout.strip()


def feed_of(session, raw, batch, rows):
    """The raw float32 values as the file's inputs want them; rows: of sequences, of all that may have their own."""
    feed, at = {}, 0
    for i in session.get_inputs():
        shape = [batch, *(rows if str(d).startswith("sequence") else d for d in i.shape[1:])]
        n = int(np.prod(shape))
        feed[i.name] = raw[at:at + n].reshape(shape).astype(np.int64 if "int64" in i.type else np.float32)
        at += n
    assert at == len(raw), (at, len(raw))
    return feed


def compare(what, ours, theirs, bound):
    theirs = np.asarray(theirs, np.float32).ravel()
    if ours.shape != theirs.shape:
        wrong.append(f"{what}: {theirs.shape} for {ours.shape}")
        return 0.0
    worst = float(np.abs(ours - theirs).max() / max(1.0, np.abs(ours).max()))
    if not worst <= bound:
        wrong.append(f"{what}: differs by {worst:.3g}")
    return worst


def bounds(model, weights, name):
    """How far a peer may be from us: where it computes what the file says, and where it computes in 8 bits what follows
    a weight of 8 bits (both make activations such too, which we leave as they are): one step for each. Signs of
    sketches, which a model has by their seed alone, are in the file with their scale, as float16 with the rest."""
    if name.startswith("sk") and weights == "float16":
        return 2.0 ** -11, 2.0 ** -11
    products = sum(n.op_type in ("DequantizeLinear", "Round") for n in model.graph.node)
    if not products:
        return 1e-5, 1e-5
    return 1e-5 if weights == "float32" else 2.0 ** -11, products / 127  # scales as float16


def session_of(path, optimized):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@functools.lru_cache(maxsize=1)
def openvino_of(content):
    """The plan has what makes the same file one after the other: compiling takes longer than all else."""
    return CORE.compile_model(CORE.read_model(content), "CPU", PLAIN)


def apart(what, session, feed):
    """Fewer rows of a causal decoder beside as long a source: those rows are what they were."""
    whole = session.run(None, feed)[0]
    for rows in {1, whole.shape[1] // 2} - {0}:
        few = session.run(None, {**feed, "target": feed["target"][:, :rows]})[0]
        compare(f"{what}: {rows} rows of target", whole[:, :rows].ravel(), few, 1e-5)


def one_export(case, opset, weights, batch, rows, folder):
    """rows: of sequences, where they are not the model's own."""
    name = tool("export", case, opset, weights, batch, folder, *([rows] if rows else []))
    what = f"case {case} ({name}) opset {opset} {weights} batch {batch}{f' rows {rows}' if rows else ''}"
    path = os.path.join(folder, "model.onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    declared = [d.dim_value or d.dim_param for d in model.graph.output[0].type.tensor_type.shape.dim]
    found = [d.dim_value or d.dim_param for d in inferred.graph.output[0].type.tensor_type.shape.dim]
    if declared != found:
        wrong.append(f"{what}: output {declared}, inferred {found}")
    raw, ours = (np.fromfile(os.path.join(folder, f), np.float32) for f in ("in.bin", "out.bin"))
    said, made = bounds(model, weights, name)
    session = session_of(path, True)
    own = next((int(p.value) for p in model.metadata_props if p.key == "trireme.sequence"), 0)
    if rows and not own:
        wrong.append(f"{what}: has no dimension `sequence`")
    feed = feed_of(session, raw, batch, rows or own)
    a = compare(what + " onnxruntime", ours, session.run(None, feed)[0], made)
    if made > said:
        a = compare(what + " onnxruntime, as it stands", ours, session_of(path, False).run(None, feed)[0], said)
    if name == "encoder-decoder":
        apart(what, session, feed)
    if any(n.op_type in ("LSTM", "GRU") and len(n.input) > 4 and n.input[4] for n in model.graph.node):
        return a  # OpenVINO 2026.4 computes all rows, whatever sequence_lens says
    compiled = openvino_of(pathlib.Path(path).read_bytes())
    b = compare(what + " OpenVINO", ours, list(compiled(feed).values())[0], made)
    return a if made > said else max(a, b)


def exports():
    cases, worst, runs = int(tool("count")), 0.0, 0
    plan = [(c, opset, "float32", b) for c in range(cases) for opset, b in ((17, 1), (17, 7), (13, 7), (20, 7))]
    plan += [(c, opset, "float32", 3) for c in range(0, cases, 5) for opset in range(13, 22)]
    plan += [(c, 17, "float16", 7) for c in range(cases)]
    plan += [(1000 + s, 13 + s % 9, "float32", 1 if s % 2 else 7) for s in range(60)]
    plan = [(*p, 0) for p in plan]
    for c in range(cases):
        own = int(tool("rows", c))
        plan += [(c, opset, "float32", b, rows) for rows in sorted({1, own - 4, own - 1}) if 0 < rows < own
                 for opset, b in ((17, 7), (13, 1), (21, 3))]
    print(f"exports: {len({p[0] for p in plan if p[4]})} models with sequences of any length")
    for case in sorted(plan, key=lambda p: p[:3]):
        with tempfile.TemporaryDirectory() as folder:
            try:
                worst = max(worst, one_export(*case, folder))
            except Exception as e:  # noqa: BLE001
                wrong.append(f"case {case}: {type(e).__name__}: {e}")
            runs += 1
    print(f"exports: {runs} runs, {openvino_of.cache_info().misses} files of OpenVINO's, largest difference {worst:.3g}")


def random_values(model):
    """Weights and statistics that every layer shows in, and that no output drowns in."""
    import torch
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, torch.nn.modules.batchnorm._BatchNorm):
                m.running_mean.normal_(0, 0.1, generator=g)
                m.running_var.uniform_(0.5, 1.5, generator=g)
                m.weight.uniform_(0.5, 1.5, generator=g)
                m.bias.normal_(0, 0.1, generator=g)
    return model.eval()


def small_models():
    """What people build beside torchvision: dense nets by module and by hand, transposes, GELU and norms, scaled inputs."""
    import torch
    from torch import nn

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8, eps=1e-6)
            self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8, bias=False), nn.Linear(5 * 8, 3)

        def forward(self, x):
            y = self.norm(self.table(x))
            y = y + self.down(nn.functional.gelu(self.up(y)))
            return self.head(y.reshape(x.shape[0], -1))

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Hardtanh(0, 6), nn.SiLU(), nn.MaxPool2d(2, ceil_mode=True),
                                     nn.ZeroPad2d(1), nn.Conv2d(6, 4, 3, groups=2), nn.AdaptiveAvgPool2d(1))
            self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1))
            self.register_buffer("std", torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1))

        def forward(self, x):
            y = self.net((x - self.mean) / self.std)
            return torch.flatten(y * torch.sigmoid(y), 1)

    yield "mlp", nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 12), nn.GELU(approximate="tanh"), nn.Linear(12, 4),
                               nn.Softmax(1)), torch.randn(7, 20)
    yield "rows", Rows(), torch.randint(0, 11, (7, 5))
    yield "scaled", Scaled(), torch.rand(7, 3, 11, 11)


def attention_models():
    """As they are larger than in tests/golden/exported_attention.py. PyTorch's own operators for inference have no export."""
    import torch
    torch.backends.mha.set_fastpath_enabled(False)
    from torch import nn
    from torchvision.models import VisionTransformer

    class Encoder(nn.Module):
        def __init__(self, causal, **options):
            super().__init__()
            layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, **options)
            self.encoder = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(64), enable_nested_tensor=False)
            self.causal, self.head = causal, nn.Linear(64, 7)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(12) if self.causal else None
            return self.head(self.encoder(x, mask=mask, is_causal=self.causal)[:, -1])

    vit = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10)
    nn.init.normal_(vit.heads.head.weight)  # it starts at 0, which hides all before it
    yield "vit", vit, torch.randn(3, 3, 32, 32)
    for causal in (False, True):
        yield f"encoder{'_causal' * causal}", Encoder(causal, norm_first=causal, activation="gelu"), torch.randn(3, 12, 64)


def recurrent_models():
    """Those of tests/golden/exported_recurrent.py, by whatever torch is here."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
    import exported_recurrent as golden
    for name, make in golden.CASES.items():
        model = make()
        yield name, model, golden.inputs(model)


def torch_models():
    import torch
    import torchvision.models as models
    torch.manual_seed(0)
    yield from small_models()
    yield from attention_models()
    yield from recurrent_models()
    for name, size in (("resnet18", 96), ("mobilenet_v2", 96), ("vgg11", 224), ("squeezenet1_0", 97), ("densenet121", 64)):
        yield name, getattr(models, name)(weights=None), torch.randn(2, 3, size, size)


def one_import(name, model, x, dynamo, folder):
    import torch
    path = os.path.join(folder, "model.onnx")
    batch = torch.export.Dim("batch") if dynamo else None
    with torch.no_grad():
        expected = model(x).numpy()
        kind = {"dynamo": True, "dynamic_shapes": ({0: batch},)} if dynamo else \
            {"dynamo": False, "dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}
        torch.onnx.export(model, (x,), path, opset_version=18 if dynamo else 17, verbose=False, **kind)
    found = tool("run", path, len(x), *raw_files(x, folder))
    ours = np.fromfile(os.path.join(folder, "out.bin"), np.float32)
    if "normalize" in found:  # taken out of the graph: what it says goes in front
        mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]))
        tool("run", path, len(x), *raw_files((x.numpy() - mean) / std, folder))
        ours = np.fromfile(os.path.join(folder, "out.bin"), np.float32)
    elif name == "scaled":
        wrong.append(f"{name}: no normalize: {found}")
    worst = compare(f"{name} dynamo={dynamo}", ours, expected, 1e-4)
    print(f"  {name:14} {'dynamo' if dynamo else 'legacy'}: {found}, differs by {worst:.2g}")
    return worst


def raw_files(x, folder):
    np.asarray(x, np.float32).tofile(os.path.join(folder, "in.bin"))
    return os.path.join(folder, "in.bin"), os.path.join(folder, "out.bin")


def imports():
    import logging
    import warnings
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for name, model, x in torch_models():
        model = random_values(model)
        for dynamo in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    one_import(name, model, x, dynamo, folder)
                except Exception as e:  # noqa: BLE001
                    wrong.append(f"{name} dynamo={dynamo}: {type(e).__name__}: {e}")


DIGITS = pathlib.Path(__file__).resolve().parents[2] / "configs/digits.yaml"
QUANTIZED = {"static": "", "tensor": "weights: per_tensor, calibrate: minmax, ", "adaround": "rounding: adaround, bias_correction: true, ",
             "dynamic": "activations: dynamic, "}


def classes_of(path, x, optimized=None):
    """What a peer makes of a file: OpenVINO, or onnxruntime (optimized: given)."""
    if optimized is None:
        compiled = CORE.compile_model(CORE.read_model(path), "CPU", PLAIN)
        run = lambda part: list(compiled([part]).values())[0]  # noqa: E731
    else:
        session = session_of(path, optimized)
        run = lambda part: session.run(None, {session.get_inputs()[0].name: part})[0]  # noqa: E731
    return np.concatenate([run(x[i:i + 99]) for i in range(0, len(x), 99)]).argmax(1)


def quantized():
    """A value between two steps may go to either, so that of 1797 samples three may be of another class."""
    import h5py
    with h5py.File(DIGITS.with_name("digits.h5")) as f:
        data = {"eval": (f["x_test"][()], f["y_test"][()]), "train": (f["x_train"][()], f["y_train"][()])}
    with tempfile.TemporaryDirectory() as folder:
        def run(*arguments):
            done = subprocess.run([TRAINER, *map(str, arguments), "run.threads=1"], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
        run(DIGITS, f"output={folder}/run", "pipeline=[train, fold]")
        fold = f"{folder}/run/stages/01-fold"
        for name, options in QUANTIZED.items():
            run("quantize", f"{fold}.h5", "layers=all", "--force", *filter(None, options.replace(": ", "=").split(", ")))
            run("export", f"{fold}-quantize.h5", "--force")
            onnx.checker.check_model(onnx.load(f"{fold}-quantize-export.onnx"), full_check=True)
            compare_classes(name, run, fold, data, folder)


def compare_classes(name, run, fold, data, folder):
    x, y, ours = [], [], []
    for block, (inputs, labels) in data.items():
        run("predict", f"{fold}-quantize.h5", "--data", block, "--raw", "-o", f"{folder}/out.npy", "--force")
        ours.append(np.load(f"{folder}/out.npy").argmax(1))
        x.append(inputs.astype(np.float32))
        y.append(labels)
    x, y, ours = map(np.concatenate, (x, y, ours))
    for peer, optimized in (("onnxruntime", True), ("onnxruntime as it stands", False), ("OpenVINO", None)):
        theirs = classes_of(f"{fold}-quantize-export.onnx", x, optimized)
        other, drop = int((theirs != ours).sum()), 100 * float((ours == y).mean() - (theirs == y).mean())
        print(f"  {name:9} {peer:25} {other} of {len(y)} classes are others, accuracy {100 * (theirs == y).mean():.2f} % ({drop:+.2f} points)")
        if other > len(y) / 500 or abs(drop) > 0.2:
            wrong.append(f"{name} {peer}: {other} of {len(y)} classes are others, {drop:+.2f} points of accuracy")


MODEL = """name: m
data: {{train: {{format: synthetic, samples: 32}}}}
output: {folder}/run
device: cpu
seed: 3
model:
  input: [2, 6, 6]
  layers: [conv2d: {{out: 8, kernel: 3, padding: 1}}, batchnorm, relu, flatten, linear: {{out: 4, name: head}}]
  loss: cross_entropy
train: {{batch: 8, steps: 4, optimizer: {{sgd: {{lr: 0.1}}}}}}
pipeline: [train, {stages}]
"""


def loaded(folder, stage, told, tolerance):
    """What the Python beside stage's file makes of it, against the run file's arrays."""
    import h5py
    import torch
    with h5py.File(f"{folder}/run/model.h5", "r") as f:
        rows = {}
        for part in ("params", "state"):
            f["model/" + part].visititems(
                lambda name, o: rows.update({name.replace("/", "."): o[()]}) if isinstance(o, h5py.Dataset) else None)
    found = runpy.run_path(f"{folder}/run/stages/{stage}.load_model.py")["load"]()
    if set(found) != set(rows):
        wrong.append(f"{told}: has {sorted(found)}, not {sorted(rows)}")
        return
    for name, value in found.items():
        value = value.float().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        if value.shape != rows[name].shape or not np.allclose(value, rows[name], rtol=tolerance, atol=tolerance):
            wrong.append(f"{told}: {name} is another")
    print(f"  {told}: {len(found)} arrays")


def values():
    kinds = [("npz", None, 0), ("hdf5", None, 0), ("safetensors", None, 0), ("safetensors", "float16", 2.0 ** -11),
             ("safetensors", "bfloat16", 2.0 ** -8)]
    stages = ", ".join(f"{{export: {{format: {kind}{', weights: ' + weights if weights else ''}}}}}" for kind, weights, _ in kinds)
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "m.yaml")
        with open(config, "w") as f:
            f.write(MODEL.format(folder=folder, stages=stages))
        done = subprocess.run([TRAINER, config], capture_output=True, text=True)
        if done.returncode:
            wrong.append(done.stdout + done.stderr)
            return
        for i, (kind, weights, tolerance) in enumerate(kinds):
            loaded(folder, f"{i + 1:02}-export", f"{kind} {weights or 'float32'}", tolerance)


if __name__ == "__main__":
    {"exports": exports, "imports": imports, "quantized": quantized, "values": values}[WHICH]()
    for line in wrong:
        print("wrong:", line)
    print(f"{len(wrong)} wrong")
    sys.exit(1 if wrong else 0)
