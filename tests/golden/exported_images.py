#!/usr/bin/env python3
"""Makes exported_images.h5: torchvision's ResNet-18, MobileNetV2, VGG, SqueezeNet and DenseNet, narrowed, as both exporters of
torch write them, and what PyTorch answers in float64. Needs torch, torchvision, onnx, onnxscript and h5py; tests do not.
tests/unit/onnx/test_images.c reads it.

    python3 exported_images.py [FOLDER]

Groups: `read/NAME`: `file` (bytes), `x` (3 samples), `y`; `pixels/NAME`: the same of pixels, 0 to 255, that the graph normalizes
first."""
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
from torchvision.models import DenseNet, MobileNetV2, ResNet, SqueezeNet, VGG
from torchvision.models.resnet import BasicBlock
from torchvision.models.squeezenet import Fire

CLASSES = 10


class NarrowResNet(ResNet):
    """ResNet-18 with a sixteenth of the channels behind its first convolution."""

    def _make_layer(self, block, planes, *args, **options):
        return super()._make_layer(block, planes // 16, *args, **options)


def resnet18():
    model = NarrowResNet(BasicBlock, [2, 2, 2, 2])
    model.fc = nn.Linear(32, CLASSES)
    return model


def mobilenet_v2():
    """Of expansion, channels, blocks, stride: with and without a shortcut, with and without an expansion."""
    return MobileNetV2(CLASSES, width_mult=0.25, inverted_residual_setting=[[1, 16, 1, 1], [6, 32, 2, 2], [6, 64, 2, 1]])


def vgg11():
    """Every second pooling leaves a side that the last one averages."""
    layers, inside = [], 3
    for channels in (4, "M", 6, "M", 8, 8, "M"):
        layers += [nn.MaxPool2d(2, 2)] if channels == "M" else [nn.Conv2d(inside, channels, 3, padding=1), nn.ReLU(True)]
        inside = inside if channels == "M" else channels
    model = VGG(nn.Sequential(*layers), CLASSES, init_weights=False)
    model.classifier = nn.Sequential(nn.Linear(8 * 49, 24), nn.ReLU(True), nn.Dropout(), nn.Linear(24, CLASSES))
    return model


def squeezenet1_0():
    model = SqueezeNet("1_0", CLASSES)
    model.features = nn.Sequential(nn.Conv2d(3, 12, 7, stride=2), nn.ReLU(True), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(12, 4, 8, 8),
                                   Fire(16, 4, 8, 8), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(16, 6, 12, 12))
    model.classifier[1] = nn.Conv2d(24, CLASSES, 1)
    return model


def densenet121():
    return DenseNet(growth_rate=4, block_config=(2, 3), num_init_features=8, bn_size=2, num_classes=CLASSES)


class Pixels(nn.Module):
    """What torchvision's transforms do to an image, within the model."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1))
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))

    def forward(self, x):
        return self.body((x / 255 - self.mean) / self.std)


CASES = {resnet18: 64, mobilenet_v2: 32, vgg11: 112, squeezenet1_0: 49, densenet121: 32}


def drawn(model):
    """Statistics that every layer shows in, and weights that no output drowns in."""
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, 0, 0.1)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias, 0, 0.1)
    return model.eval()


def exported(model, x, dynamo):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.onnx")
        if dynamo:
            torch.onnx.export(model, (x,), path, dynamo=True, opset_version=18, external_data=False, verbose=False,
                              dynamic_shapes=({0: torch.export.Dim("batch")},))
        else:
            torch.onnx.export(model, x, path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"],
                              dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}})
        with open(path, "rb") as f:
            return np.frombuffer(f.read(), np.uint8)


def write(f, group, model, x):
    y = copy.deepcopy(model).double()(x.double()).numpy().astype(np.float32)
    for dynamo in (False, True):
        of = f.create_group(f"{group}_{'dynamo' if dynamo else 'legacy'}")
        for part, values in (("file", exported(model, x, dynamo)), ("x", x.numpy()), ("y", y)):
            of.create_dataset(part, data=values, compression=9)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with h5py.File(os.path.join(folder, "exported_images.h5"), "w", libver=("v108", "v108")) as f, torch.no_grad():
        f.attrs["made_by"] = f"torch {torch.__version__}"
        for seed, (make, side) in enumerate(CASES.items()):
            torch.manual_seed(seed)
            model, x = drawn(make()), torch.randn(3, 3, side, side).mul(8).round() / 8  # which packs well
            write(f, f"read/{make.__name__}", model, x)
        torch.manual_seed(len(CASES))
        write(f, "pixels/usual", Pixels().eval(), torch.randint(0, 256, (3, 3, 9, 9)).float())
        f.visititems(lambda name, o: print(f"{name:32} {o.nbytes:8}") if isinstance(o, h5py.Dataset) else None)


if __name__ == "__main__":
    main()
