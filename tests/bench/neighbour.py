#!/usr/bin/env python3
"""Trainers beside a busy neighbour on their cores: alternating runs of two or more programs, medians, paired ratios.

    tests/bench/neighbour.py BEFORE AFTER [...] [--rounds 7] [--only mlp] [--ranks 2] [--python PYTHON_WITH_TORCH]

Each round runs every program once, in turns from the front and from the back, first by itself, then with a loop that never
rests bound to each of the ranks' cores. Figures are samples/s over all steps but the first 20, not the best of them: what a
neighbour takes comes in pieces. With --python PyTorch's peer (peer_ddp.py, two ranks) takes part, too.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
STEPS = {"mlp": 600, "resnet20": 30}


class Neighbours:
    """A busy loop on each of the first `count` cores that we may use."""

    def __init__(self, count):
        cores = sorted(os.sched_getaffinity(0))
        self.cores = [str(cores[i % len(cores)]) for i in range(count)]

    def __enter__(self):
        self.loops = [subprocess.Popen(["taskset", "-c", core, "sh", "-c", "while :; do :; done"]) for core in self.cores]

    def __exit__(self, *_):
        for loop in self.loops:
            loop.kill()
        for loop in self.loops:
            loop.wait()


def run_trainer(program, model, ranks, steps):
    folder = tempfile.mkdtemp(prefix="trireme-bench-")
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    try:
        subprocess.run(["mpirun", "--oversubscribe", "-np", str(ranks), program, str(TOP / f"configs/bench/{model}.yaml"),
                        f"output={folder}/run", f"train.steps={steps}", "train.log_every=10", "run.threads=1",
                        "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        records = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rates = [r["samples_per_s"] for r in records if r["event"] == "step"][2:]
    return statistics.harmonic_mean(rates)


def run_peer(python, model, steps):
    out = subprocess.run([python, str(HERE / "peer_ddp.py"), "--model", model, "--precision", "fp32",
                          "--steps", str(max(30, steps // 4))], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])["samples_per_s_of_all"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("programs", nargs="+")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--only", choices=STEPS)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--steps", type=int, help="of a run; by model where not given")
    p.add_argument("--neighbours", type=int, nargs="*", help="how many; 0 and one a rank where not given")
    p.add_argument("--python")
    a = p.parse_args()
    for model in [a.only] if a.only else STEPS:
        steps = a.steps or STEPS[model]
        runs = {program: (lambda program=program: run_trainer(program, model, a.ranks, steps)) for program in a.programs}
        if a.python:
            runs["PyTorch"] = lambda: run_peer(a.python, model, steps)
        for busy in a.neighbours or (0, a.ranks):
            rates = {name: [] for name in runs}
            for i in range(a.rounds):
                with Neighbours(busy):
                    for name in list(runs)[::-1 if i % 2 else 1]:
                        rates[name].append(runs[name]())
            first = rates[a.programs[0]]
            for name, row in rates.items():
                ratios = [x / y for x, y in zip(row, first)]
                print(f"{model:9} {busy} neighbours  {name:40} {statistics.median(row):9.0f} samples/s, of the first's "
                      f"{statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
