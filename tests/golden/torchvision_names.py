#!/usr/bin/env python3
"""Makes torchvision.txt: names and shapes of the arrays in the state_dicts of torchvision's networks that configs/ has by the same
names, a line each, sorted. Needs torch and torchvision; tests do not. tests/unit/graph/test_define.c reads it.

    python3 torchvision_names.py [FOLDER]"""
import os
import sys

import torch
import torchvision.models as models

NETWORKS = {"mobilenetv2": "mobilenet_v2", "resnet18": "resnet18", "resnet50": "resnet50", "vgg16": "vgg16"}


def lines():
    for config, name in NETWORKS.items():
        with torch.device("meta"):
            arrays = getattr(models, name)(weights=None).state_dict()
        # without a count of batches, which ours does not keep
        yield from sorted(f"{config} {key} {'x'.join(map(str, a.shape))}\n" for key, a in arrays.items() if not key.endswith("num_batches_tracked"))


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "torchvision.txt"), "w") as f:
        f.writelines(lines())
