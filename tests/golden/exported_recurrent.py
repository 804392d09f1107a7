#!/usr/bin/env python3
"""Makes exported_recurrent.h5: LSTM and GRU as both exporters of torch write them, for any batch and for a batch of one, and what
PyTorch answers in float64; and what is refused. Needs torch, onnx, onnxscript and h5py; tests do not.
tests/unit/onnx/test_recurrent.c reads it.

    python3 exported_recurrent.py [FOLDER]

Groups: `read/NAME`: `file` (bytes), `x` (3 samples), `y`; `refused/NAME`: `file`, and what the error says in `node` and `text`."""
import copy
import logging
import os
import sys
import tempfile
import warnings

import h5py
import numpy as np
import torch
from torch import nn

ROWS, HIDDEN = 7, 5


class Net(nn.Module):
    """`take`: what the head reads of the rows `y` and the last states `h`; `front`: what makes the rows."""

    def __init__(self, kind, take=None, front=None, rows_first=False, wide=None, **options):
        super().__init__()
        self.rnn = getattr(nn, kind)(6, HIDDEN, batch_first=not rows_first, **options)
        self.front = front() if front else None
        self.head = nn.Linear(wide or HIDDEN * (2 if options.get("bidirectional") else 1), 3)
        self.take, self.rows_first = take or (lambda y, h: y.transpose(0, 1) if rows_first else y), rows_first

    def forward(self, x):
        if self.front is not None:
            x = self.front(x)
        if isinstance(self.front, nn.Conv1d):
            x = torch.relu(x).transpose(1, 2)
        y, h = self.rnn(x.transpose(0, 1) if self.rows_first else x)
        return self.head(self.take(y, h[0] if isinstance(h, tuple) else h))


def ids():
    return nn.Embedding(11, 6)


def columns():
    return nn.Conv1d(3, 6, 3, padding=1)


BOTH, TWO, FLAT = {"bidirectional": True}, {"num_layers": 2}, 2 * HIDDEN
CASES = {
    "lstm": lambda: Net("LSTM"),
    "gru_bare": lambda: Net("GRU", bias=False),
    "lstm_stacked_last": lambda: Net("LSTM", lambda y, h: y[:, -1], **TWO),
    "gru_stacked_state": lambda: Net("GRU", lambda y, h: h[-1], **TWO),
    "lstm_both_states": lambda: Net("LSTM", lambda y, h: torch.cat((h[-2], h[-1]), 1), **BOTH, **TWO),
    "gru_both_mean": lambda: Net("GRU", lambda y, h: y.mean(1), front=columns, **BOTH),
    "lstm_both_flat": lambda: Net("LSTM", lambda y, h: h.transpose(0, 1).reshape(h.shape[1], -1), **BOTH),
    "lstm_ids_state": lambda: Net("LSTM", lambda y, h: h.squeeze(0), front=ids),
    "gru_columns": lambda: Net("GRU", front=columns),
    "lstm_columns_state": lambda: Net("LSTM", lambda y, h: h[-1], front=columns, **TWO),
    "gru_rows_first": lambda: Net("GRU", rows_first=True, **TWO),
    "lstm_rows_first_last": lambda: Net("LSTM", lambda y, h: y[-1], rows_first=True, **BOTH),
    "gru_rows_and_state": lambda: Net("GRU", lambda y, h: torch.cat((y[:, 0], h[-1]), 1), wide=FLAT),
}
KINDS = {"legacy": (False, 3), "any": (True, 3), "one": (True, 1)}


class Begun(Net):
    """From a state that was learned."""

    def __init__(self):
        super().__init__("GRU")
        self.first = nn.Parameter(torch.randn(1, 1, HIDDEN))

    def forward(self, x):
        return self.head(self.rnn(x, self.first.expand(1, x.shape[0], HIDDEN).contiguous())[0])


class Cell(Net):
    """The last state of the cell."""

    def forward(self, x):
        return self.head(self.rnn(x)[1][1][-1])


class Meeting(Net):
    """Samples meet as if they were rows."""

    def forward(self, x):
        return self.head(torch.cumsum(self.rnn(x)[0].transpose(0, 1), 0).transpose(0, 1))


REFUSED = {
    "begun": (Begun, "(GRU)", "it begins with a state that is not zeros"),
    "cell": (lambda: Cell("LSTM"), "(LSTM)", "the last state of its cells is read"),
    "meeting": (lambda: Meeting("LSTM"), "(CumSum)", "there is no layer for it"),
}


def exported(model, x, dynamo, one=False):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.onnx")
        if dynamo:
            torch.onnx.export(model, (x,), path, dynamo=True, external_data=False, verbose=False,
                              **({} if one else {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}))
        else:
            torch.onnx.export(model, (x,), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"],
                              dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
        with open(path, "rb") as f:
            return np.frombuffer(f.read(), np.uint8)


def inputs(model):
    if isinstance(model.front, nn.Embedding):
        return torch.randint(0, 11, (3, ROWS))
    return torch.randn(3, *((3, ROWS) if isinstance(model.front, nn.Conv1d) else (ROWS, 6)))


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with h5py.File(os.path.join(folder, "exported_recurrent.h5"), "w", libver=("v108", "v108")) as f, torch.no_grad():
        f.attrs["made_by"] = f"torch {torch.__version__}"
        for seed, (name, make) in enumerate(CASES.items()):
            torch.manual_seed(seed)
            model = make().eval()
            x = inputs(model)
            y = copy.deepcopy(model).double()(x if x.dtype == torch.int64 else x.double()).numpy().astype(np.float32)
            for kind, (dynamo, batch) in KINDS.items():
                of = f.create_group(f"read/{name}_{kind}")
                for part, values in (("file", exported(model, x[:batch], dynamo, batch == 1)), ("x", x.numpy()), ("y", y)):
                    of.create_dataset(part, data=values, compression=9)
        for name, (make, node, text) in REFUSED.items():
            torch.manual_seed(50)
            model = make().eval()
            of = f.create_group(f"refused/{name}")
            of.create_dataset("file", data=exported(model, inputs(model), False), compression=9)
            of.attrs["node"], of.attrs["text"] = np.bytes_(node), np.bytes_(text)
        print(sum(len(f[g]) for g in ("read", "refused")), "cases")


if __name__ == "__main__":
    main()
