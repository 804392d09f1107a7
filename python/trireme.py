"""Reads what Trireme's trainer writes: run folders and run files. One file, to copy; needs h5py and numpy. PyYAML (config),
PyTorch (state_dict) and matplotlib (plot) are asked for only where they are used.

    import trireme
    run = trireme.Run("runs/digits")            # a run folder, its newest checkpoint where there is no model.h5
    run = trireme.Run("runs/digits/stages/03-quantize.h5")
    run.history["loss"], run.confusion, run.lineage, run.config["train"]["batch"]
    model.load_state_dict(run.state_dict())     # a PyTorch model with the same names: conv1.weight, bn1.running_mean
    run.plot("curves.png")

On the command line: python trireme.py RUN prints a summary.
"""
import json
import pathlib
import zlib

import h5py
import numpy

__all__ = ["Run"]


def _plain(value):
    """An attribute as Python has it: texts are stored with a fixed length, long ones of int8 models deflated."""
    if isinstance(value, numpy.ndarray) and value.dtype == numpy.uint8 and value.ndim == 1:
        try:
            value = zlib.decompress(value)
        except zlib.error:
            return value  # somebody else's
    if isinstance(value, numpy.ndarray):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return value.item() if isinstance(value, numpy.generic) else value


def _attributes(node):
    return {name: _plain(value) for name, value in node.attrs.items() if name not in ("crc32c", "arrays_crc32c")}


def _file_of(folder):
    """The run file that stands for a folder: the model, else the newest checkpoint."""
    model = folder / "model.h5"
    if model.exists():
        return model
    steps = sorted((folder / "checkpoints").glob("step-*.h5"))
    if not steps:
        raise FileNotFoundError(f"{folder}: neither model.h5 nor a checkpoint: no run folder, or a run that saved nothing yet")
    return steps[-1]


class Run:
    """A run file, and its run folder where there is one. Everything is read when it is asked for."""

    def __init__(self, path):
        path = pathlib.Path(path)
        self.file = _file_of(path) if path.is_dir() else path
        self.folder = path if path.is_dir() else None
        with h5py.File(self.file, "r") as f:
            self.attributes = _attributes(f)
            if self.attributes.get("format") != "trireme":
                raise ValueError(f"{self.file}: no run file: its attribute format is {self.attributes.get('format')!r}, "
                                 "not 'trireme'")
        self.config_text = self.attributes.pop("config")

    def __repr__(self):
        return f"<trireme.Run {self.file}: step {self.attributes['step']}, epoch {self.attributes['epoch']}>"

    @property
    def config(self):
        """The config as resolved, every key. (YAML 1.1 takes 1e-4 for a text: numbers are read as the trainer does.)"""
        import re
        import yaml

        class Loader(yaml.SafeLoader):
            pass
        Loader.add_implicit_resolver("tag:yaml.org,2002:float",
                                     re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789"))
        return yaml.load(self.config_text, Loader)

    # ---- Values

    def _arrays(self, kind):
        found = {}
        with h5py.File(self.file, "r") as f:
            scales = f.get("model/state")

            def take(name, node):
                if not isinstance(node, h5py.Dataset):
                    return
                layer, _, array = name.rpartition("/")
                value = node[()]
                if value.dtype == numpy.int8:  # q * s, one s for each of the first dimension
                    scale = scales[f"{layer}/weight_scale"][()].astype(numpy.float32)
                    value = value.astype(numpy.float32) * scale.reshape((-1,) + (1,) * (value.ndim - 1))
                found[f"{layer.replace('/', '.')}.{array}"] = value.astype(numpy.float32)
            if f"model/{kind}" in f:
                f[f"model/{kind}"].visititems(take)
        return found

    @property
    def parameters(self):
        """{"conv2d1.weight": float32 array}, shapes as PyTorch has them; int8 rows as the values they stand for."""
        return self._arrays("params")

    @property
    def states(self):
        """Batchnorm's running statistics and the like."""
        return self._arrays("state")

    def state_dict(self, torch=True):
        """Parameters and states under PyTorch's names, as tensors (torch=False: as arrays)."""
        arrays = {**self.parameters, **self.states}
        arrays = {name: value for name, value in arrays.items() if not name.endswith(".weight_scale")}
        if not torch:
            return arrays
        from torch import from_numpy
        return {name: from_numpy(numpy.ascontiguousarray(value)) for name, value in arrays.items()}

    # ---- What happened

    @property
    def history(self):
        """Columns by name: step, loss, lr, grad_norm, ... of logged steps; eval_step, eval_loss, ... of evaluations."""
        with h5py.File(self.file, "r") as f:
            group = f.get("history", {})
            return {name: group[name][()] for name in group if name != "confusion"}

    @property
    def confusion(self):
        """Samples of the last evaluation by (label, prediction), or None."""
        with h5py.File(self.file, "r") as f:
            return f["history/confusion"][()] if "history/confusion" in f else None

    @property
    def metrics(self):
        """The records of metrics.jsonl, in order; of a file that lies in no run folder none."""
        for folder in (self.folder, self.file.parent, self.file.parent.parent):
            path = folder / "metrics.jsonl" if folder else None
            if path and path.exists():
                text = path.read_text(encoding="utf-8")
                return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]  # the last may be in the making
        return []

    @property
    def lineage(self):
        """The stages that led to the file, or to a run folder's last one: a map each, with "stage", what was found, and its
        "tables" of columns by name."""
        stages = []
        made = sorted((self.folder / "stages").glob("[0-9][0-9]-*.h5")) if self.folder else []
        with h5py.File(made[-1] if made else self.file, "r") as f:
            for name in sorted(f.get("stages", {})):
                group = f["stages"][name]
                found = {"stage": name, **_attributes(group), "tables": {}}
                for table, node in group.items():
                    columns = {column: node[column][()] for column in node}
                    rows = _plain(node.attrs["rows"]).splitlines() if "rows" in node.attrs else None
                    found["tables"][table] = {"rows": rows, **columns} if rows else columns
                stages.append(found)
        return stages

    def plot(self, path=None):
        """Loss, accuracy and learning rate over steps, by matplotlib: into a file, or the figure."""
        from matplotlib.figure import Figure
        history = self.history
        panels = [[("loss", "step", "training"), ("eval_loss", "eval_step", "evaluation")],
                  [("eval_accuracy", "eval_step", "accuracy")], [("lr", "step", "learning rate")]]
        panels = [[c for c in panel if len(history.get(c[0], ()))] for panel in panels]
        panels = [panel for panel in panels if panel]
        figure = Figure(figsize=(8, 2.5 * max(1, len(panels))), layout="constrained")
        for axes, panel in zip(figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0] if panels else [], panels):
            for values, steps, label in panel:
                axes.plot(history[steps], history[values], label=label, marker="." if steps == "eval_step" else None)
            axes.legend()
            axes.set_xlabel("step")
        if path is None:
            return figure
        figure.savefig(path)
        return path

    def summary(self):
        """A few lines of text."""
        values = sum(v.size for v in self.parameters.values())
        lines = [f"{self.file}: {self.attributes['kind']}, step {self.attributes['step']}, epoch {self.attributes['epoch']}, "
                 f"written {self.attributes['created']} by trireme {self.attributes['trireme_version']}",
                 f"{len(self.parameters)} arrays, {values} parameters"]
        history = self.history
        if len(history.get("loss", ())):
            lines.append(f"training loss {history['loss'][0]:.4g} -> {history['loss'][-1]:.4g}")
        for name in sorted(history):
            if name.startswith("eval_") and name != "eval_step" and len(history[name]):
                lines.append(f"{name[5:]} of the last evaluation {history[name][-1]:.4g}")
        for stage in self.lineage:
            lines.append(f"stage {stage['stage']}: " + ", ".join(
                f"{k} {stage[k]:.4g}" for k in ("loss", "accuracy", "parameters", "latency_ms") if k in stage))
        return "\n".join(lines)


if __name__ == "__main__":
    import sys
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit("usage: python trireme.py RUN...")
    for argument in sys.argv[1:]:
        print(Run(argument).summary())
