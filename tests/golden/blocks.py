#!/usr/bin/env python3
"""Makes blocks.h5: torchvision's blocks in small networks with its names. Needs torch, torchvision, numpy and h5py; tests do
not. tests/e2e/test_blocks.py reads it.

    python3 blocks.py [FOLDER]

A group a network: `weights/NAME`, `x`, `y`, `logits` of the network as it is evaluated, and after one step of SGD (RATE, decay
DECAY of all parameters) on cross entropy `loss` and `after/NAME`. Computed in float64."""
import os
import sys

import h5py
import numpy as np
import torch
import torchvision
from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.vgg import make_layers
from torchvision.ops.misc import Conv2dNormActivation

RATE, DECAY, CLASSES = 0.1, 0.01, 5


def shortcut(n, out, stride):
    return nn.Sequential(nn.Conv2d(n, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class Residual(nn.Module):
    """As torchvision's ResNet, narrow."""

    def __init__(self, block, out, *layers):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layers = []
        for i, layer in enumerate(layers):
            self.add_module(f"layer{i + 1}", nn.Sequential(*layer))
            self.layers.append(getattr(self, f"layer{i + 1}"))
        self.fc = nn.Linear(out, CLASSES)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        for layer in self.layers:
            x = layer(x)
        return self.fc(x.mean((2, 3)))


class Features(nn.Module):
    """As its MobileNetV2 and VGG."""

    def __init__(self, features, classifier, pool):
        super().__init__()
        self.features, self.classifier, self.pool = features, classifier, pool

    def forward(self, x):
        x = self.features(x)
        return self.classifier(x.mean((2, 3)) if self.pool else x.flatten(1))


def networks():
    torch.manual_seed(3)
    norm = dict(norm_layer=nn.BatchNorm2d, activation_layer=nn.ReLU6)
    yield "basic", Residual(BasicBlock, 12, [BasicBlock(8, 8)], [BasicBlock(8, 12, 2, shortcut(8, 12, 2)), BasicBlock(12, 12)])
    yield "bottleneck", Residual(Bottleneck, 24, [Bottleneck(8, 4, 1, shortcut(8, 16, 1)), Bottleneck(16, 4)],
                                 [Bottleneck(16, 6, 2, shortcut(16, 24, 2))])
    yield "inverted", Features(
        nn.Sequential(Conv2dNormActivation(3, 8, stride=2, **norm), InvertedResidual(8, 6, 1, 1), InvertedResidual(6, 8, 2, 6),
                      InvertedResidual(8, 8, 1, 6), Conv2dNormActivation(8, 16, kernel_size=1, **norm)),
        nn.Sequential(nn.Dropout(0.0), nn.Linear(16, CLASSES)), True)
    yield "vgg", Features(make_layers([4, "M", 8, 8, "M"]),
                          nn.Sequential(nn.Linear(8 * 4 * 4, 16), nn.ReLU(True), nn.Dropout(0.0), nn.Linear(16, CLASSES)), False)


def state(module):
    return {k: v.detach().numpy().astype(np.int64 if v.dtype == torch.int64 else np.float32)
            for k, v in module.state_dict().items()}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    with h5py.File(os.path.join(folder, "blocks.h5"), "w", libver=("v108", "v108")) as f:
        f.attrs["made_by"] = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
        for name, net in networks():
            g = f.create_group(name)
            for m in net.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.running_mean.normal_(0, 0.2), m.running_var.uniform_(0.5, 1.5)
                    m.weight.data.uniform_(0.7, 1.3), m.bias.data.normal_(0, 0.2)
            for key, value in state(net).items():
                g[f"weights/{key}"] = value
            net.double()
            x = torch.randn((6, 3, 16, 16)).double().float()
            y = torch.arange(6) % CLASSES
            with torch.no_grad():
                g["logits"] = net.eval()(x.double()).numpy().astype(np.float32)
            loss = nn.functional.cross_entropy(net.train()(x.double()), y)
            loss.backward()
            torch.optim.SGD(net.parameters(), RATE, weight_decay=DECAY).step()
            g["x"], g["y"], g["loss"] = x.numpy(), y.numpy().astype(np.uint8), loss.item()
            for key, value in state(net).items():
                g[f"after/{key}"] = value


main()
