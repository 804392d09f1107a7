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


class StageCase(Case):
    def attributes(self, path, stage):
        with h5py.File(path, "r") as f:
            values = {k: text(v) for k, v in f[f"stages/{stage}"].attrs.items()}
            return {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}

    def stage(self, file, name="run"):
        return self.dir / name / "stages" / file

    def sha(self, path):
        return hashlib.sha256(path.read_bytes()).hexdigest()
