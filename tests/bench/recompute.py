#!/usr/bin/env python3
"""What recomputation under `run.memory_limit` costs: the time that the planner predicts beside the one measured, at some limits.

    tests/bench/recompute.py build/release/bin/trainer [--config CONFIG] [--limits 4] [--steps 8] [--rounds 3] [--no-profile] [key=value ...]

One rank, one thread; by default the GPT of configs/bench, in fp32. Predictions are by a profile of its own in the run folder, or, with
--no-profile, by what there is without one. Limits lie evenly between what fits with all recomputed and what fits as it is. A round
runs every limit, each behind a run without one. What is measured is the least `step_ms` of all rounds, so that what else the machine does is left
out as far as can be. The optimizer's update is part of a measured step, and none of the passes that are predicted.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]


class Bench:
    def __init__(self, o, folder):
        self.o, self.folder = o, pathlib.Path(folder)
        self.common = [str(o.config), f"output={folder}/run", "run.threads=1", "train.micro_batch=" + str(o.micro_batch),
                       "train.log_every=1", *o.values]

    def call(self, *arguments, status=0):
        done = subprocess.run([self.o.trainer, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != status:
            raise SystemExit(done.stdout)
        return done.stdout

    def profile(self):
        self.call(*self.common, "train.steps=1", "pipeline=[train, profile: {mode: train, runs: 7, counters: false}]", "--force")
        self.kept = self.folder / "kept"
        (self.folder / "run").rename(self.kept)

    def once(self, limit, steps):
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        if not self.o.no_profile:
            shutil.copytree(self.kept, run)
        return self.call(*self.common, f"train.steps={steps}", *([f"run.memory_limit={limit}MiB"] if limit else []), "--force")

    def run(self, limit):
        """Milliseconds of a step, what it said, bytes of activations."""
        out = self.once(limit, 1 + self.o.steps)
        records = map(json.loads, (self.folder / "run/metrics.jsonl").read_text().splitlines())
        step = min([r["step_ms"] for r in records if r["event"] == "step"][1:])
        plan = json.loads(self.call("plan", self.folder / "run/config.yaml", "run.memory_limit=none", "--json"))
        return step, out, plan["memory"]["host"]["activations"]

    def limits(self):
        refused = self.call(*self.common, "train.steps=1", "run.memory_limit=1MiB", "--force", status=1)
        least = int(re.search(r"would do is about (\d+)MiB", refused)[1])
        with_it, without = re.search(r"([\d.]+) MB planned \(without a choice ([\d.]+) MB", self.once(least, 1)).groups()
        apart = (float(without) - float(with_it)) * 1e6 / 2**20
        return [int(least + apart * i / self.o.limits) for i in range(self.o.limits)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("trainer")
    p.add_argument("--config", default=TOP / "configs/bench/gpt.yaml")
    p.add_argument("values", nargs="*")
    p.add_argument("--limits", type=int, default=4)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--micro-batch", default=8)
    p.add_argument("--no-profile", action="store_true")
    o = p.parse_intermixed_args()
    with tempfile.TemporaryDirectory(prefix="trireme-recompute-") as folder:
        b = Bench(o, folder)
        if not o.no_profile:
            b.profile()
        limits = b.limits()
        plain, found, said = {k: [] for k in limits}, {k: [] for k in limits}, {}
        for _ in range(o.rounds):
            for k in limits:
                step, _, all_bytes = b.run(None)
                plain[k].append(step)
                step, *said[k] = b.run(k)
                found[k].append(step)
    least = min(min(t) for t in plain.values())
    print(f"no limit: {least:.0f} ms a step, activations {all_bytes / 1e6:.0f} MB")
    print("limit MiB  activations MB   less %   arithmetic %   predicted %   measured %   apart, % of a step")
    for k in limits:
        out, nbytes = said[k]
        predicted = float(re.search(r"([+-][\d.]+) %\) by the profile|about ([+-][\d.]+) % time", out).expand(r"\1\2")) \
            if "% arithmetic" in out else 0.0
        arithmetic = float(re.search(r"([+-][\d.]+) % arithmetic|$", out)[1] or 0)
        measured = 100 * (min(found[k]) / least - 1)
        print(f"{k:9d}  {nbytes / 1e6:14.1f}  {100 * (1 - nbytes / all_bytes):7.1f}  {arithmetic:+13.1f}  {predicted:+12.1f}"
              f"  {measured:+11.1f}  {predicted - measured:+19.1f}")


if __name__ == "__main__":
    main()
