#!/usr/bin/env python3
"""What the sources may not say: which folder's headers each folder may include (the arrows of the house go one
way), who may know an op by its name, that a tensor's rank says how it is stored, and that a failed allocation is
told in another form than that of runtime/base/base.h."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAY_USE = {
    "runtime": {"runtime"},
    "kernels": {"kernels", "runtime"},
    "collectives": {"collectives", "runtime"},
    "optimize": {"optimize", "runtime", "kernels", "collectives"},
    "trainer": {"trainer", "optimize", "runtime", "kernels", "collectives"},
}
# Inside runtime/: which rooms a room may use besides itself.
ROOMS = {
    "base": set(),
    "config": {"base"},
    "metrics": {"base"},
    "graph": {"base", "config"},
    "device": {"base", "config", "graph"},
    "params": {"base", "config", "graph", "device"},
    "optimizer": {"base", "config", "graph", "device", "params"},
    "plan": {"base", "config", "graph", "device", "params"},
    "h5": {"base"},
    "store": {"base", "config", "graph", "h5"},
    "data": {"base", "config", "graph", "h5", "device"},
}
# Inside trainer/: a room may use those before it. main.c is above them all.
TRAINER = ("device", "optimizer", "stages", "run", "arguments", "models", "plan", "loop", "pipeline", "sweep",
           "compare", "command", "start", "reference")
# Whose headers only these folders may include: the rest of the program builds without CUDA.
CUDA = re.compile(r'^\s*#\s*include\s+<((?:cuda|cublas|cudnn|nccl|nvml|cupti)[^>]*)>', re.M)
CUDA_FOLDERS = ("kernels/cuda/", "collectives/nccl/")
# The messages of ONNX stay in their room.
MESSAGES = re.compile(r"\bonnx\.pb-c\.h\b|\bOnnx__")
# Kernels say what happened in their own terms; which key of the config changes it, the trainer knows.
KEY = re.compile(r'"[^"\n]*\b(?:run|train|data)\.[a-z_]+[^"\n]*"')
SOURCES = {".c", ".h", ".cu", ".cuh"}
# Whoever says what an op is or computes it; all others ask for facts (runtime/graph/ops/op.h).
OP_LIST = "runtime/graph/ops/list.h"
OP_FOLDERS = re.compile(r"^(runtime/graph/ops|kernels/\w+/(ops|loops)|optimize/onnx/ops)/|^kernels/elementwise\.h$")
# Words that are more than an op's name.
OTHER_NAMES = {
    ("runtime/config/schema_data.c", "cross_entropy"): "a choice of model.loss",
    ("runtime/config/schema_data.c", "mse"): "a choice of model.loss",
    ("runtime/config/schema_data.c", "bce"): "a choice of model.loss",
    ("runtime/config/schema_data.c", "l1"): "a choice of model.loss",
    ("runtime/config/schema_data.c", "huber"): "a choice of model.loss",
    ("runtime/config/schema_data.c", "smooth_l1"): "a choice of model.loss",
    ("runtime/config/schema_data.c", "focal"): "a choice of model.loss",
    ("runtime/graph/parse.c", "cross_entropy"): "a key of model.loss",
    ("runtime/graph/parse.c", "bce"): "a key of model.loss",
    ("optimize/evaluation/write.c", "mse"): "a metric",
    ("optimize/passes/batchnorm.c", "batchnorm"): "the name of a pass",
    **{("optimize/profile/probe.c", op): "a layer of the model that peaks are measured with" for op in ("conv2d", "linear")},
    ("optimize/stages/prune.c", "batchnorm"): "a choice of prune.by",
    ("optimize/stages/prune.c", "linear"): "a choice of prune.schedule",
    ("optimize/stages/prune.c", "l1"): "a choice of prune.by",
    ("optimize/stages/quantize.c", "mse"): "a choice of calibrate",
    ("optimize/sweep/space.c", "linear"): "a scale of a sweep's ranges",
    ("runtime/config/schema_train.c", "linear"): "a choice of train.schedule",
    ("runtime/graph/recurrent.c", "dropout"): "an option of lstm and gru",
    ("trainer/loop/resume.c", "linear"): "a choice of train.schedule",
    **{("runtime/graph/transformer.c", op): "a layer of the blocks, written as a config would write it" for op in
       ("attention", "dropout", "drop_path", "gelu", "layernorm", "relu", "rmsnorm", "rotary", "silu")},
}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# A failed allocation hands its allocator's status on (TR_HAVE, tr_last_status), and writes no record again.
ALLOCATION = re.compile(r'\breturn TR_MEMORY;|[^=!]= TR_MEMORY;|: TR_MEMORY[;),]|tr_last_error\(\)->status'
                        r'|,\s*TR_MEMORY,\s*"%s",\s*tr_last_error\b')
RANK = re.compile(r"\bndim\s*[=!]=\s*[34]\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def op_names():
    """Every op of the list: its place in C, and with a dot for one of the _ or none, as graphs call it."""
    ops = re.findall(r"^    X\((\w+),", (ROOT / OP_LIST).read_text(), re.M)
    return ops, {op[:i] + "." + op[i + 1:] for op in ops for i in range(len(op)) if op[i] == "_"} | set(ops)


def check_ops(wrong):
    ops, names = op_names()
    if len(ops) < 40:
        wrong.append(f"only {len(ops)} ops found in {OP_LIST}")
    unused = set(OTHER_NAMES)
    for top in MAY_USE:
        for path in sorted(p for p in (ROOT / top).rglob("*") if p.suffix in SOURCES):
            where, text = str(path.relative_to(ROOT)), COMMENT.sub("", path.read_text())
            # a tensor of an ONNX file has a rank and no layout
            if not where.startswith(("runtime/graph/", "optimize/onnx/")) and RANK.search(text):
                wrong.append(f"{where}: a rank says nothing of the layout: ask tr_tensor.layout")
            wrong += [f"{where}: {form.strip()}: a failed allocation is TR_HAVE(p) or tr_last_status()"
                      for form in ALLOCATION.findall(text) if where != "runtime/base/base.h"]
            if OP_FOLDERS.match(where):
                continue
            for name in set(LITERAL.findall(text)) & names:
                if (where, name) in OTHER_NAMES:
                    unused.discard((where, name))
                else:
                    wrong.append(f'{where}: knows the op "{name}" by its name: let the op say what it is')
            wrong += [f"{where}: knows the op {d} by its name" for d in re.findall(r"\btr_def_\w+", text)
                      if d[len("tr_def_"):] in ops]
    wrong += [f'{where}: no "{name}" there any more: strike it off' for where, name in sorted(unused)]


def check_rooms(where, target, wrong):
    """Where both are in rooms of one folder that has an order of them."""
    top, room, other = where.parts[0], where.parts[1], target.split("/")[1]
    if top == "runtime":
        known, allowed = room in ROOMS, ROOMS.get(room, set())
    else:
        known, allowed = room in TRAINER, TRAINER[:TRAINER.index(room)] if room in TRAINER else ()
    if not known:
        wrong.append(f"{where}: give {top}/{room} its place among the rooms of this test")
    elif other != room and other not in allowed:
        wrong.append(f"{where}: {top}/{room} may not use {top}/{other}")


def main():
    wrong, checked = [], 0
    check_ops(wrong)
    for top, allowed in MAY_USE.items():
        for path in sorted(p for p in (ROOT / top).rglob("*") if p.suffix in SOURCES):
            where, text = path.relative_to(ROOT), path.read_text()
            if not str(where).startswith(CUDA_FOLDERS):
                wrong += [f"{where}: only {' and '.join(CUDA_FOLDERS)} may use <{h}>" for h in CUDA.findall(text)]
            if not str(where).startswith("optimize/onnx/") and MESSAGES.search(text):
                wrong.append(f"{where}: only optimize/onnx/ knows the messages of ONNX")
            if str(where).startswith(("kernels/", "collectives/nccl/")):
                wrong += [f"{where}: a key of the config in {k}" for k in KEY.findall(INCLUDE.sub("", text))]
            for target in INCLUDE.findall(text):
                checked += 1
                parts = target.split("/")
                if not (ROOT / target).exists():
                    wrong.append(f'{where}: "{target}" is not a path from the top of the tree')
                elif parts[0] not in allowed or (top == "kernels" and target.startswith("runtime/config/")):
                    wrong.append(f"{where}: {top}/ may not use {target}")
                elif parts[0] == "trainer" and len(parts) == 2:
                    wrong.append(f"{where}: headers of trainer/ stand in its rooms, not {target}")
                elif top == parts[0] in ("runtime", "trainer") and len(parts) > 2 and len(where.parts) > 2:
                    check_rooms(where, target, wrong)
    if checked < 100:
        wrong.append(f"only {checked} includes found: the test looks in the wrong place")
    print("\n".join(wrong))
    print(f"{checked} includes checked, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
