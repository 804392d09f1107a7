"""What tests of stages share: where a stage's file lies, what it says of itself."""
import hashlib

import h5py

from harness import Case

FINETUNE = "{finetune: {train: {steps: 12, checkpoint: {every_steps: 4}, optimizer: {sgd: {lr: 0.01}}}}}"
TWICE = f"pipeline=[train, {FINETUNE}, finetune]"


class StageCase(Case):
    def attributes(self, path, stage):
        with h5py.File(path, "r") as f:
            return {k: v.decode() if isinstance(v, bytes) else v for k, v in f[f"stages/{stage}"].attrs.items()}

    def stage(self, file, name="run"):
        return self.dir / name / "stages" / file

    def sha(self, path):
        return hashlib.sha256(path.read_bytes()).hexdigest()
