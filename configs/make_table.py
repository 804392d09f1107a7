#!/usr/bin/env python3
"""Writes birds.csv: made-up measurements of 240 birds of three species, for table.yaml. Needs nothing but Python."""
import csv
import pathlib
import random

KINDS = {"alba": (38.8, 190, 3700, ["north", "west"]), "minor": (48.8, 196, 3730, ["west"]),
         "magna": (47.5, 217, 5080, ["north", "south"])}


def main():
    rng = random.Random(1)
    rows = []
    for i in range(240):
        kind = sorted(KINDS)[i % 3]
        bill, wing, mass, islands = KINDS[kind]
        sex = rng.choice(["f", "m"])
        size = 1 if sex == "m" else -1
        rows.append([rng.choice(islands), round(rng.gauss(bill + 1.5 * size, 2.0), 1), round(rng.gauss(wing + 3 * size, 5)),
                     round(rng.gauss(mass + 300 * size, 250) / 25) * 25, sex, kind])
    rng.shuffle(rows)
    with open(pathlib.Path(__file__).parent / "birds.csv", "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["island", "bill_mm", "wing_mm", "mass_g", "sex", "species"])
        out.writerows(rows)


if __name__ == "__main__":
    main()
