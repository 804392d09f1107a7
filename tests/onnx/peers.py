#!/usr/bin/env python3
"""Our exports by others and others' exports by us: every layer and random models in each opset through
onnx.checker, shape inference, onnxruntime and OpenVINO at batch 1 and 7, within 1e-5 of our own evaluation
(relative to the largest output); torchvision's models by both exporters of torch, imported, within 1e-4.

peers.py TOOL [exports|imports]    TRIREME_PEERS: a Python that has onnx, onnxruntime, openvino, torch, torchvision"""
import os
import subprocess
import sys
import tempfile

PEERS = os.environ.get("TRIREME_PEERS", "/tmp/peers-onnx/bin/python")
if os.environ.get("TRIREME_PEERS_WITHIN") != "1":
    probe = subprocess.run([PEERS, "-c", "import onnx, onnxruntime, openvino, torch, torchvision"],
                           capture_output=True) if os.path.exists(PEERS) else None
    if probe is None or probe.returncode:
        print("skipped: no Python with onnx, onnxruntime, openvino, torch and torchvision (TRIREME_PEERS)")
        sys.exit(77)
    os.execve(PEERS, [PEERS, *sys.argv], {**os.environ, "TRIREME_PEERS_WITHIN": "1"})

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import openvino  # noqa: E402

onnxruntime.set_default_logger_severity(3)
TOOL = sys.argv[1]
CORE = openvino.Core()
wrong = []


def tool(*args):
    r = subprocess.run([TOOL, *map(str, args)], capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(r.stderr.strip() or f"status {r.returncode}")
    return r.stdout.strip()


def feed_of(session, raw, batch):
    """The raw float32 values as the file's inputs want them."""
    feed, at = {}, 0
    for i in session.get_inputs():
        shape = [batch, *i.shape[1:]]
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


def one_export(case, opset, weights, batch, folder):
    name = tool("export", case, opset, weights, batch, folder)
    what = f"case {case} ({name}) opset {opset} {weights} batch {batch}"
    path = os.path.join(folder, "model.onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    declared = [d.dim_value or d.dim_param for d in model.graph.output[0].type.tensor_type.shape.dim]
    found = [d.dim_value or d.dim_param for d in inferred.graph.output[0].type.tensor_type.shape.dim]
    if declared != found:
        wrong.append(f"{what}: output {declared}, inferred {found}")
    raw, ours = (np.fromfile(os.path.join(folder, f), np.float32) for f in ("in.bin", "out.bin"))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = feed_of(session, raw, batch)
    a = compare(what + " onnxruntime", ours, session.run(None, feed)[0], 1e-5)
    compiled = CORE.compile_model(CORE.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    b = compare(what + " OpenVINO", ours, list(compiled(feed).values())[0], 1e-5)
    return max(a, b)


def exports():
    cases, worst, runs = int(tool("count")), 0.0, 0
    plan = [(c, opset, "float32", b) for c in range(cases) for opset, b in ((17, 1), (17, 7), (13, 7), (20, 7))]
    plan += [(c, opset, "float32", 3) for c in range(0, cases, 5) for opset in range(13, 22)]
    plan += [(c, 17, "float16", 7) for c in range(cases)]
    plan += [(1000 + s, 13 + s % 9, "float32", 1 if s % 2 else 7) for s in range(60)]
    for case in plan:
        with tempfile.TemporaryDirectory() as folder:
            try:
                worst = max(worst, one_export(*case, folder))
            except Exception as e:  # noqa: BLE001
                wrong.append(f"case {case}: {type(e).__name__}: {e}")
            runs += 1
    print(f"exports: {runs} runs, largest difference {worst:.3g}")


if __name__ == "__main__":
    which = sys.argv[2:] or ["exports"]
    if "exports" in which:
        exports()
    for line in wrong:
        print("wrong:", line)
    print(f"{len(wrong)} wrong")
    sys.exit(1 if wrong else 0)
