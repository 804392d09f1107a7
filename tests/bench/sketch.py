#!/usr/bin/env python3
"""A sketched layer beside the dense one: flop ratio by `trainer plan`, speed-up in training steps and in answers, alternating.

    tests/bench/sketch.py build/release/bin/trainer [--in 2048] [--out 1024] [--terms 4] [--rank 64] [--batch 256] [--rounds 7]

The layer stands behind a small one, so that its input has a gradient. A round runs both, in turns from either end; medians of the
rounds' ratios. Training is what ranks compute in a step, the optimizer with it; answers are medians of `trainer benchmark`, both
models in turns.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

CONFIG = """
name: {kind}
output: {folder}/{kind}
device: cpu
data:
  train: {{format: synthetic, samples: {samples}}}
  workers: 0
model:
  input: [16]
  layers:
    - linear: {{out: {input}, name: before}}
    - {kind}: {{out: {out}, {options}name: layer}}
  loss: mse
train: {{batch: {batch}, steps: {steps}, precision: {precision}, checkpoint: {{every_epochs: none}}}}
run: {{threads: 1}}
"""


class Bench:
    def __init__(self, folder, o):
        self.folder, self.o = folder, o

    def config(self, kind, precision):
        options = f"terms: {self.o.terms}, rank: {self.o.rank}, " if kind == "sklinear" else ""
        path = pathlib.Path(self.folder) / f"{kind}-{precision}.yaml"
        path.write_text(CONFIG.format(kind=kind, folder=self.folder, samples=4 * self.o.batch, input=self.o.input, out=self.o.out,
                                      options=options, batch=self.o.batch, steps=self.o.steps, precision=precision))
        return path

    def tool(self, *arguments):
        done = subprocess.run([self.o.trainer, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return done.stdout

    def flops(self, config):
        f = json.loads(self.tool("plan", config, "--json"))["flop_per_sample"]
        return f["forward"] + f["backward"], f["evaluation"]

    def step(self, config):
        self.tool(config, "--force", "--quiet")
        records = map(json.loads, open(f"{self.folder}/{config.stem.split('-')[0]}/metrics.jsonl"))
        return next(r["compute_ms"] for r in records if r["event"] == "end")

    def answers(self, precision):
        """How many times as fast the sketched model answers, by batch: medians of calls in turns."""
        name = "cpu-bf16" if precision == "bf16" else "cpu"
        folder = pathlib.Path(self.folder)
        self.tool("benchmark", folder / "linear/model.h5", f"models=[{folder}/sklinear/model.h5]",
                  f"batches=[1, 32, {self.o.batch}]", f"backends=[{name}]", "run.threads=1", "--force")
        calls = json.loads((folder / "linear/model-benchmark.json").read_text())["calls"]
        times = {(c["model"], c["batch"]): c["median_ms"] for c in calls}
        sketched = next(m for m, _ in times if m != "this")
        return {b: t / times[sketched, b] for (m, b), t in times.items() if m == "this"}

    def run(self, precision):
        dense, sketch = (self.config(k, precision) for k in ("linear", "sklinear"))
        a, b = self.flops(dense), self.flops(sketch)
        ratios = []
        for i in range(self.o.rounds):
            pair = {c: self.step(c) for c in ((dense, sketch) if i % 2 else (sketch, dense))}
            ratios.append(pair[dense] / pair[sketch])
        measured = statistics.median(ratios)
        self.say(precision, f"training, batch {self.o.batch}", a[0] / b[0], measured)
        for batch, speed in self.answers(precision).items():
            self.say(precision, f"answers, batch {batch}", a[1] / b[1], speed)

    def say(self, precision, what, ratio, measured):
        print(f"| {precision} | {what} | {ratio:.2f} | {measured:.2f} | {measured / ratio:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trainer")
    p.add_argument("--in", dest="input", type=int, default=2048)
    for name, value in (("out", 1024), ("terms", 4), ("rank", 64), ("batch", 256), ("rounds", 7), ("steps", 30)):
        p.add_argument(f"--{name}", type=int, default=value)
    o = p.parse_args()
    print(f"{o.input} x {o.out}, terms {o.terms}, rank {o.rank}, batch {o.batch}, one thread\n")
    print("| type | what | flop ratio | speed-up | of the ratio |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="trireme-sketch-") as folder:
        for precision in ("fp32", "bf16"):
            Bench(folder, o).run(precision)


if __name__ == "__main__":
    main()
