#!/usr/bin/env python3
"""Makes exported_attention.h5: attention as both exporters of torch write it, and as the operator of opset 23, with what
PyTorch answers; and what looks alike and is no layer. Needs torch, torchvision, onnx and h5py; tests do not.
tests/unit/onnx/test_heads.c reads it.

    python3 exported_attention.py [FOLDER]

Groups: `read/NAME`: `file` (bytes), `x` (3 samples), `y`; `refused/NAME`: `file`, and of the error `node` and `text`."""
import os
import sys
import tempfile
import warnings

import h5py
import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer

ROWS, WIDTH, HEADS = 5, 8, 2


class Encoder(nn.Module):
    def __init__(self, causal=False, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 12, batch_first=True, **options)
        self.up, self.encoder, self.head = nn.Linear(6, WIDTH), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(WIDTH, 3)
        self.causal = causal

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(ROWS) if self.causal else None
        return self.head(self.encoder(self.up(x), mask=mask, is_causal=self.causal)[:, 0])


class RowsFirst(nn.Module):
    """A block in which rows come before samples, as CLIP's."""

    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.head = nn.LayerNorm(6), nn.MultiheadAttention(6, HEADS), nn.Linear(6, 3)

    def forward(self, x):
        x = x.permute(1, 0, 2)
        y = self.norm(x)
        return self.head(F.gelu(x + self.attention(y, y, y, need_weights=False)[0]).permute(1, 0, 2))


class SamplesMeet(nn.Module):
    """What takes samples for rows."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, HEADS)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Block(nn.Module):
    """x + attention(x), from three linear layers or one; `attend(q, k, v)` of heads."""

    def __init__(self, attend, packed=False, split=None):
        super().__init__()
        self.up, self.out, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.all = nn.Linear(WIDTH, 3 * WIDTH)
        self.attend, self.packed, self.split = attend, packed, split

    def forward(self, x):
        x = self.up(x)
        n = x.shape[0]
        q, k, v = self.all(x).split(WIDTH, 2) if self.packed else (self.q(x), self.k(x), self.v(x))
        if self.split:
            q, k, v = self.split(self.all(x) if self.split is by_head else (q, k, v), n)
        else:
            q, k, v = (t.view(n, ROWS, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        y = self.attend(q, k, v)
        return self.head(x + self.out(y.transpose(1, 2).reshape(n, ROWS, WIDTH)))


def by_head(x, n):
    return x.view(n, ROWS, HEADS, 3, -1).permute(3, 0, 2, 1, 4)


def interleaved(x, n):
    return (t.view(n, ROWS, -1, HEADS).permute(0, 3, 1, 2) for t in x)


TRIANGLE = torch.ones(ROWS, ROWS).tril().bool()


def by_hand(mask=None, scale=None, low=float("-inf"), first=False, axis=-1, after=1):
    """Scores, scaled and masked in that order or the other."""
    def attend(q, k, v):
        s = q @ k.transpose(-2, -1)
        scale_ = scale or q.shape[-1] ** -0.5
        if not first:
            s = s * scale_
        if mask is not None:
            s = torch.where(mask, s, torch.full([], low)) if mask.dtype == torch.bool else s + mask
        if first:
            s = s * scale_
        return (s.softmax(axis) * after if after != 1 else s.softmax(axis)) @ v
    return attend


def vit():
    return VisionTransformer(image_size=16, patch_size=8, num_layers=2, num_heads=HEADS, hidden_dim=WIDTH, mlp_dim=12, num_classes=3)


READ = {"vit": vit, "encoder": Encoder, "encoder_norm_first": lambda: Encoder(norm_first=True, activation="gelu"),
        "encoder_causal": lambda: Encoder(causal=True), "rows_first": RowsFirst,
        "sdpa": lambda: Block(F.scaled_dot_product_attention),
        "sdpa_causal": lambda: Block(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), packed=True),
        "by_hand": lambda: Block(by_hand(scale=0.8)),
        "where": lambda: Block(by_hand(TRIANGLE, low=torch.finfo(torch.float32).min)),
        "added": lambda: Block(by_hand(torch.zeros(ROWS, ROWS).masked_fill(~TRIANGLE, float("-inf"))), packed=True)}
MASK = "a mask of attention scores is read only once"
PARTS = "three parts of one, one behind the other"
PRODUCT = "a product of two values is a layer only as queries"
REFUSED = {"anti_causal": (lambda: Block(by_hand(TRIANGLE.T)), "Where", MASK),
           "near": (lambda: Block(by_hand(TRIANGLE & TRIANGLE.T.roll(1, 1))), "Where", MASK),
           "bias": (lambda: Block(by_hand(torch.randn(ROWS, ROWS))), "Add", MASK),
           "faint": (lambda: Block(by_hand(TRIANGLE, low=-5.0)), "Where", MASK),
           "scaled_mask": (lambda: Block(by_hand(TRIANGLE, low=-1e4, first=True)), "Softmax", "after a scale and then a mask"),
           "over_queries": (lambda: Block(by_hand(axis=-2)), None, "softmax over keys"),
           "halves": (lambda: Block(by_hand(after=0.5)), "MatMul", "of attention scores only a softmax times values"),
           "by_head": (lambda: Block(by_hand(), split=by_head), "MatMul", PRODUCT),
           "turned": (lambda: Block(lambda q, k, v: by_hand()(k, q, v), packed=True), "MatMul", PARTS),
           "interleaved": (lambda: Block(by_hand(), split=interleaved), "MatMul", PRODUCT),
           "samples_meet": (SamplesMeet, "MatMul", PRODUCT)}


def exported(model, x, dynamo):
    """Without what is only for people to read."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.onnx")
        kind = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim("n")},), "opset_version": 18} if dynamo else \
            {"dynamo": False, "dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}, "opset_version": 17}
        torch.onnx.export(model, (x,), path, input_names=["x"], output_names=["y"], verbose=False, **kind)
        m = onnx.load(path)
    del m.graph.value_info[:], m.graph.metadata_props[:], m.metadata_props[:]
    for n in m.graph.node:
        del n.metadata_props[:]
        n.ClearField("doc_string")
    return m.SerializeToString()


class Operator(nn.Module):
    """What `operator` writes, in PyTorch."""

    def __init__(self, heads, kv_heads, **options):
        super().__init__()
        self.heads, self.kv_heads, self.options = heads, kv_heads, options
        self.w = nn.ParameterDict({"q": torch.randn(6, 4 * heads), "k": torch.randn(6, 4 * kv_heads),
                                   "v": torch.randn(6, 4 * kv_heads), "o": torch.randn(4 * heads, 3)})

    def forward(self, x):
        heads = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        q, k, v = ((x @ self.w[c]).view(x.shape[0], ROWS, n, 4).transpose(1, 2) for c, n in heads.items())
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **self.options)
        return y.transpose(1, 2).reshape(x.shape[0], ROWS, -1) @ self.w["o"]


def operator(model, apart, **attributes):
    """As a graph; `apart`: (batch, heads, rows, width)."""
    constants = [numpy_helper.from_array(v.detach().numpy(), f"w{k}") for k, v in model.w.items()]
    mask = attributes.pop("mask", False)
    nodes = [helper.make_node("MatMul", ["x", f"w{c}"], [c]) for c in "qkv"]
    if apart:
        for c, n in zip("qkv", (model.heads, model.kv_heads, model.kv_heads)):
            constants.append(numpy_helper.from_array(np.array([0, 0, n, 4]), f"s{c}"))
            nodes += [helper.make_node("Reshape", [c, f"s{c}"], [f"r{c}"]), helper.make_node("Transpose", [f"r{c}"], [f"t{c}"], perm=[0, 2, 1, 3])]
    else:
        attributes.update(q_num_heads=model.heads, kv_num_heads=model.kv_heads)
    if mask:
        constants.append(numpy_helper.from_array(np.zeros((ROWS, ROWS), np.float32), "mask"))
    operands = ["tq", "tk", "tv"] if apart else ["q", "k", "v"]
    nodes.append(helper.make_node("Attention", operands + ["mask"] * mask, ["a"], name="attend", **attributes))
    if apart:
        constants.append(numpy_helper.from_array(np.array([0, 0, 4 * model.heads]), "sy"))
        nodes += [helper.make_node("Transpose", ["a"], ["ta"], perm=[0, 2, 1, 3]), helper.make_node("Reshape", ["ta", "sy"], ["ra"])]
    nodes.append(helper.make_node("MatMul", ["ra" if apart else "a", "wo"], ["y"]))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", ROWS, w]) for n, w in (("x", 6), ("y", 3))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(m)
    return m.SerializeToString()


def put(group, file, model, x):
    group.create_dataset("file", data=np.frombuffer(file, np.uint8), compression="gzip")
    with torch.no_grad():
        group["x"], group["y"] = x.numpy(), model.double()(x.double()).numpy().astype(np.float32)


def put_refused(group, file, node, text):
    group.create_dataset("file", data=np.frombuffer(file, np.uint8), compression="gzip")
    group.attrs["node"], group.attrs["text"] = np.bytes_(node), np.bytes_(text)


def made(make, seed):
    torch.manual_seed(seed)
    model = make().eval()
    with torch.no_grad():  # biases and class tokens that are 0 show nowhere
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    warnings.simplefilter("ignore")
    with h5py.File(os.path.join(folder, "exported_attention.h5"), "w", libver=("v108", "v108")) as f:
        f.attrs["made_by"] = f"torch {torch.__version__}, onnx {onnx.__version__}"
        for i, (name, make) in enumerate(READ.items()):
            for dynamo in (False, True):
                model = made(make, i)
                x = torch.randn(3, 3, 16, 16) if name == "vit" else torch.randn(3, ROWS, 6)
                put(f.create_group(f"read/{name}_{'dynamo' if dynamo else 'script'}"), exported(model, x, dynamo), model, x)
        for name, (make, node, text) in REFUSED.items():
            put_refused(f.create_group(f"refused/{name}"), exported(made(make, 50), torch.randn(3, ROWS, 6), name == "samples_meet"), f"({node})" if node else "(", text)
        for i, (name, kv, apart, options, attributes) in enumerate((
                ("rows", 4, False, {}, {}), ("apart", 4, True, {"scale": 0.7}, {"scale": 0.7}),
                ("shared", 2, False, {"is_causal": True}, {"is_causal": 1}), ("shared_apart", 1, True, {}, {}))):
            model = made(lambda: Operator(4, kv, **options), 100 + i)
            put(f.create_group(f"read/operator_{name}"), operator(model, apart, **attributes), model, torch.randn(3, ROWS, 6))
        for name, attributes, text in (("mask", {"mask": True}, "attn_mask: only queries, keys and values without it"),
                                       ("softcap", {"softcap": 3.0}, "softcap: only")):
            put_refused(f.create_group(f"refused/operator_{name}"), operator(made(lambda: Operator(4, 4), 1), False, **attributes), '"attend" (Attention)', text)


if __name__ == "__main__":
    main()
