#!/usr/bin/env python3
"""Makes exported.h5: ONNX files as torch.onnx writes them, and what PyTorch answers. `mlp_classifier` is scikit-learn's by
skl2onnx. Needs torch, onnx, scikit-learn, skl2onnx and h5py; tests do not.
tests/e2e/test_import_onnx.py reads it.

    python3 exported.py [FOLDER]

A group a case: `file` (bytes), `x` (samples first), `y`."""
import io
import os
import sys
import warnings

import h5py
import numpy as np
import torch
from skl2onnx import to_onnx
from sklearn.neural_network import MLPClassifier
from torch import nn


class Recurrent(nn.Module):
    """(samples, rows, features), all rows or the last, and a linear layer behind."""

    def __init__(self, kind, last=True, **options):
        super().__init__()
        self.rnn = getattr(nn, kind)(6, 5, batch_first=True, **options)
        self.head = nn.Linear(10 if options.get("bidirectional") else 5, 3)
        self.last = last

    def forward(self, x):
        y = self.rnn(x)[0]
        return self.head(y[:, -1] if self.last else y)


class RowsFirst(Recurrent):
    """The head reads rows first."""

    def forward(self, x):
        return self.head(self.rnn(x)[0].transpose(0, 1)).transpose(0, 1)


CASES = {"lstm": lambda: Recurrent("LSTM"), "gru": lambda: Recurrent("GRU"),
         "lstm_stacked": lambda: Recurrent("LSTM", num_layers=2, last=False), "gru_plain": lambda: Recurrent("GRU", bias=False, last=False),
         "lstm_both_ways": lambda: Recurrent("LSTM", num_layers=2, bidirectional=True, last=False),
         "gru_both_ways": lambda: Recurrent("GRU", num_layers=2, bidirectional=True), "rows_first": lambda: RowsFirst("GRU")}


def add_classifier(f):
    """Two outputs: the label, and the probabilities, which `y` has."""
    x = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    model = MLPClassifier((6,), random_state=0, max_iter=50).fit(x, np.argmax(x[:, :3], 1))
    group = f.create_group("mlp_classifier")
    group["file"] = np.frombuffer(to_onnx(model, x[:1], options={"zipmap": False}).SerializeToString(), np.uint8)
    group["x"], group["y"] = x[:4], model.predict_proba(x[:4]).astype(np.float32)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    warnings.simplefilter("ignore")
    with h5py.File(os.path.join(folder, "exported.h5"), "w", libver=("v108", "v108")) as f:
        f.attrs["made_by"] = f"torch {torch.__version__}"
        for i, (name, make) in enumerate(CASES.items()):
            torch.manual_seed(i)
            model, x, file = make().eval(), torch.randn(4, 7, 6), io.BytesIO()
            torch.onnx.export(model, x, file, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"],
                              dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})
            group = f.create_group(name)
            group["file"] = np.frombuffer(file.getvalue(), np.uint8)
            group["x"], group["y"] = x.numpy(), model.double()(x.double()).detach().numpy().astype(np.float32)
        add_classifier(f)


if __name__ == "__main__":
    main()
