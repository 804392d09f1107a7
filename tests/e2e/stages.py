"""What tests of stages share: where a stage's file lies, what it says of itself."""
import hashlib
import zlib

import h5py
import numpy

from harness import Case

FINETUNE = "{finetune: {train: {steps: 12, checkpoint: {every_steps: 4}, optimizer: {sgd: {lr: 0.01}}}}}"
TWICE = f"pipeline=[train, {FINETUNE}, finetune]"


def text(value):
    """A text attribute as bytes: long ones of models in fewer bits are deflated."""
    return zlib.decompress(value) if isinstance(value, numpy.ndarray) else value


# What two runs of the same bytes differ in: how long things took (columns in microseconds, too), on how many threads, and the hashes of files that say so.
TIMES = ("created", "seconds", "epoch_seconds", "threads", "latency_ms", "latency_ms_before", "float_ms", "int8_ms", "parent_sha256", "crc32c", "arrays_crc32c")


class StageCase(Case):
    def everything(self, path, *but):
        """All arrays and attributes of a run file, with what it says of each stage, but for times and attributes `but`."""
        found = {}

        def add(name, node):
            for key, value in node.attrs.items():
                if key not in TIMES + but:
                    value = text(value)
                    found[f"{name}@{key}"] = value.tobytes() if isinstance(value, (numpy.ndarray, numpy.generic)) else value
            if isinstance(node, h5py.Dataset) and name != "history/seconds" and not name.endswith("_us"):
                found[name] = node[()].tobytes()
        with h5py.File(path, "r") as f:
            add("", f)
            f.visititems(add)
        return found

    def assert_same_ranks(self, stage, model, *keys, ranks=(1, 2, 3, 4), check=None):
        """What the stage makes of the model, and says of it, is the same on any number of ranks. check: called after each."""
        made, one = model.with_name(f"{model.stem}-{stage}.h5"), None
        for n in ranks:
            out = self.run_trainer(stage, model, *keys, "--force", ranks=n)
            found = self.everything(made, "ranks", "computed_by")
            self.assertEqual((one or found).keys(), found.keys())
            for key, value in (one or {}).items():
                self.assertEqual(value, found[key], f"{stage} {keys} on {n}: {key}")
            one = one or found
            if check:
                check(made, out)

    def attributes(self, path, stage):
        with h5py.File(path, "r") as f:
            values = {k: text(v) for k, v in f[f"stages/{stage}"].attrs.items()}
            return {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}

    def graph_passes(self, path, stage):
        """What a stage says of the passes over the graph that find something: name to count, difference, undone."""
        with h5py.File(path, "r") as f:
            table = f[f"stages/{stage}/graph_passes"]
            rows = text(table.attrs["rows"]).decode().split()
            return dict(zip(rows, zip(*(table[column][()] for column in ("count", "difference", "undone")))))

    def config_of(self, path):
        with h5py.File(path, "r") as f:
            config = text(f.attrs["config"])
            return config.decode() if isinstance(config, bytes) else config

    def answers(self, path, *keys):
        out = self.dir / "answers.npy"
        self.run_trainer("predict", path, "--data", "eval", "--raw", "-o", out, *keys, "--force", ranks=1)
        return numpy.load(out)

    def stage(self, file, name="run"):
        return self.dir / name / "stages" / file

    def sha(self, path):
        return hashlib.sha256(path.read_bytes()).hexdigest()
