#!/usr/bin/env python3
"""Makes configs/shapes.h5: noisy pictures of 32x32 with 16 grey levels, each with a disk and a square, and masks that say
which places are theirs. Made up here, by a seed: the same bytes come out each time (numpy, h5py).

    python3 configs/make_shapes.py [output.h5]
"""
import os
import sys

import h5py
import numpy as np

TRAIN, TEST, SIDE, SEED = 192, 48, 32, 2015


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    target = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "shapes.h5")
    rng = np.random.RandomState(SEED)
    n = TRAIN + TEST
    row, column = np.mgrid[:SIDE, :SIDE]
    mask = np.zeros((n, 1, SIDE, SIDE), np.uint8)
    for m in mask:
        y, x, radius = rng.randint(6, SIDE - 6, 2).tolist() + [rng.randint(3, 7)]
        top, left, side = rng.randint(1, SIDE - 10, 2).tolist() + [rng.randint(4, 10)]
        m[0][(row - y) ** 2 + (column - x) ** 2 <= radius**2] = 1
        m[0][top:top + side, left:left + side] = 1
    grey = 5 + 5 * mask + np.rint(2 * rng.standard_normal(mask.shape))
    image = np.clip(grey, 0, 15).astype(np.uint8)
    arrays = {"x_train": image[:TRAIN], "y_train": mask[:TRAIN], "x_test": image[TRAIN:], "y_test": mask[TRAIN:]}
    with h5py.File(target, "w", libver=("earliest", "v110")) as f:
        f.attrs["title"] = np.bytes_("Disks and squares under noise, and their masks; made by make_shapes.py")
        for key, value in arrays.items():
            f.create_dataset(key, data=value, track_times=False, compression="gzip", compression_opts=9)
    print(f"{target}: {os.path.getsize(target)} bytes, {TRAIN} + {TEST} samples")


if __name__ == "__main__":
    main()
