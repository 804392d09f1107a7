"""The quick start's job, and the arrays of its model."""
import re

import numpy as np

from harness import SOURCE, Case

DIGITS = SOURCE / "configs/digits.yaml"
EPOCHS = 4
STEPS = 24 * EPOCHS  # 1500 samples in batches of 64
SHAPES = {
    "conv2d1/weight": (32, 1, 3, 3), "conv2d2/weight": (32, 32, 3, 3), "conv2d3/weight": (32, 32, 3, 3),
    "conv2d4/weight": (64, 32, 3, 3), "head/weight": (10, 64), "head/bias": (10,),
    **{f"batchnorm{i}/{name}": (32 if i < 4 else 64,) for i in (1, 2, 3, 4) for name in ("weight", "bias")},
}
STATES = {f"batchnorm{i}/running_{name}": (32 if i < 4 else 64,) for i in (1, 2, 3, 4) for name in ("mean", "var")}
PARAMETERS = sum(int(np.prod(s)) for s in SHAPES.values())


class DigitsCase(Case):
    def plan(self, *arguments):
        text = self.tool("plan", DIGITS, *arguments)
        sizes = dict(re.findall(r"(?m)^  (\w[\w/ ]*?) {2,}([\d.]+ k?M?B) +[\d.]+ k?M?B$", text))
        return text, sizes
