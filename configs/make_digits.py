#!/usr/bin/env python3
"""Makes configs/digits.h5 from the UCI handwritten digits that scikit-learn's package ships.

    python3 configs/make_digits.py [digits.csv.gz] [output.h5]

Needs numpy and h5py, and scikit-learn where no CSV is named. The same bytes come out each time (with
the same h5py): nothing in the file depends on when or where it was made.

Split: the 1,797 samples are put in the order of numpy.random.RandomState(1998).permutation(1797); the
first 1,500 are for training, the last 297 for testing.
"""
import gzip
import importlib.util
import os
import sys

import h5py
import numpy as np

TRAIN, SEED = 1500, 1998
ATTRIBUTES = {
    "title": "Optical Recognition of Handwritten Digits (test part), 8x8, values 0 to 16",
    "authors": "E. Alpaydin, C. Kaynak (1998)",
    "source": "UCI Machine Learning Repository, https://doi.org/10.24432/C50P49",
    "license": "CC BY 4.0, https://creativecommons.org/licenses/by/4.0/",
    "changes": "reshaped to (N, 1, 8, 8) uint8, permuted by numpy RandomState(1998), split 1500/297",
}


def find_csv():
    spec = importlib.util.find_spec("sklearn")
    if spec is None:
        sys.exit("scikit-learn is not installed: name its digits.csv.gz on the command line")
    return os.path.join(os.path.dirname(spec.origin), "datasets", "data", "digits.csv.gz")


def main():
    source = sys.argv[1] if len(sys.argv) > 1 else find_csv()
    here = os.path.dirname(os.path.abspath(__file__))
    target = sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "digits.h5")

    with gzip.open(source, "rt") as f:
        table = np.loadtxt(f, delimiter=",")
    if table.shape != (1797, 65) or table[:, :64].min() < 0 or table[:, :64].max() > 16:
        sys.exit(f"{source}: expected 1797 rows of 64 values 0 to 16 and a label")
    order = np.random.RandomState(SEED).permutation(len(table))
    x = table[order, :64].astype(np.uint8).reshape(-1, 1, 8, 8)
    y = table[order, 64].astype(np.uint8)

    arrays = {"x_train": x[:TRAIN], "y_train": y[:TRAIN], "x_test": x[TRAIN:], "y_test": y[TRAIN:]}
    with h5py.File(target, "w", libver=("earliest", "v110")) as f:
        for key, value in ATTRIBUTES.items():
            f.attrs[key] = np.bytes_(value)
        for key, value in arrays.items():
            f.create_dataset(key, data=value, track_times=False)  # contiguous
    print(f"{target}: {os.path.getsize(target)} bytes, {TRAIN} + {len(x) - TRAIN} samples")


if __name__ == "__main__":
    main()
