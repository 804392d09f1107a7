#!/usr/bin/env python3
"""Trireme beside PyTorch DistributedDataParallel, in one sitting: alternating runs, medians, ratios.

    tests/bench/compare.py [--rounds 3] [--trainer build/release/bin/trainer] [--python PYTHON] [--only mlp-bf16]

Beside each step stands its floor, measured in turns with the others by bench_floor (beside the trainer's build): the
model's products and convolutions alone at their best formats, and the bytes of all else at the rate of memcpy, on as
many processes at once. It leaves out what ranks exchange.

PYTHON is one that has torch (the peer's script is peer_ddp.py beside this file); without it only Trireme's
own figures are printed. 2 ranks x 1 thread each. Prints a table, then one JSON object.
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
import threading

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
CASES = {
    "mlp-fp32": ("mlp", "fp32", 1200),
    "mlp-bf16": ("mlp", "bf16", 1200),
    "resnet20-fp32": ("resnet20", "fp32", 40),
    "resnet20-bf16": ("resnet20", "bf16", 60),
    "gpt-fp32": ("gpt", "fp32", 40),
    "gpt-bf16": ("gpt", "bf16", 60),
    "lstm-fp32": ("lstm", "fp32", 120),
    "lstm-bf16": ("lstm", "bf16", 120),
    "vit-fp32": ("vit", "fp32", 40),
    "vit-bf16": ("vit", "bf16", 40),
    "gpt2-fp32": ("gpt2", "fp32", 10),  # some seconds a step
    "gpt2-bf16": ("gpt2", "bf16", 10),
}
TARGETS = {"mlp-fp32": 3.0, "mlp-bf16": 4.5, "resnet20-fp32": 1.4, "resnet20-bf16": 1.45, "gpt-fp32": 1.3, "gpt-bf16": 1.6,
           "lstm-fp32": 1.4, "lstm-bf16": 1.6, "vit-fp32": 1.3, "vit-bf16": 1.3, "gpt2-fp32": 1.2, "gpt2-bf16": 1.2}


class Memory(threading.Thread):
    """Samples what the ranks among a process's descendants hold, a page that n of them share counted as 1/n: RSS counts it n times."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.peak, self.over = process, 0.0, threading.Event()
        self.start()

    def below(self, pid):
        children = []
        for tasks in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            children += [int(c) for c in tasks.read_text().split()]
        return [pid] + [p for c in children for p in self.below(c)]

    def proportional(self, pid):
        names = {word.split(b"=")[0] for word in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
        if not names & {b"RANK", b"OMPI_COMM_WORLD_RANK"}:
            return None
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in rollup.splitlines() if line.startswith("Pss:"))

    def run(self):
        while not self.over.wait(1.5):
            try:
                ranks = [m for m in map(self.proportional, self.below(self.process.pid)) if m is not None]
                if len(ranks) == 2:
                    self.peak = max(self.peak, sum(ranks) / 2)
            except (OSError, StopIteration):  # a process that ended meanwhile
                pass


def run_ranks(command, **more):
    """Runs it; gives what it printed, and the peak of a rank's proportional memory in MB (0: too short to be seen)."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more) as process:
        memory = Memory(process)
        out = process.communicate()[0]
        memory.over.set()
        memory.join()
    if process.returncode:
        sys.exit(f"{command[0]} ended with status {process.returncode}")
    return out, memory.peak


def run_trireme(trainer, model, precision, steps):
    every = 10 if steps > 20 else 1  # records of so many steps
    folder = tempfile.mkdtemp(prefix="trireme-bench-")
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    try:
        pss = run_ranks(
            ["mpirun", "-np", "2", str(trainer), str(TOP / f"configs/bench/{model}.yaml"), f"output={folder}/run",
             f"train.precision={precision}", f"train.steps={steps}", f"train.log_every={every}", "run.threads=1", "--quiet"],
            env=env)[1]
        records = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    steps = [r for r in records if r["event"] == "step"][2:]  # the first two records warm up
    end = next(r for r in records if r["event"] == "end")
    median = statistics.median
    return {
        "samples_per_s": median(r["samples_per_s"] for r in steps),
        "step_ms": median(r["step_ms"] for r in steps),
        "comm_wait_ms": median(r["comm_wait_ms"] for r in steps),
        "compute_ms": median(r["compute_ms"] for r in steps),
        "first_step_s": end["first_step_s"],
        "peak_rss_mb": end["peak_rss_mb"],
        "peak_pss_mb": pss,
    }


def run_floor(program, model, precision, steps):
    share = {"mlp": 64, "resnet20": 64, "gpt": 4, "lstm": 32, "vit": 8, "gpt2": 1}[model]  # half of the config's batch
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    out = subprocess.run(["mpirun", "-np", "2", program, str(TOP / f"configs/bench/{model}.yaml"), str(share), precision,
                          str(max(9, steps // 8) if steps > 20 else 3)], env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


def run_peer(python, model, precision, steps):
    few = ["--steps", str(max(30, steps // 3))] if steps > 20 else ["--steps", str(steps - 2), "--warmup", "1"]
    out, pss = run_ranks([python, str(HERE / "peer_ddp.py"), "--model", model, "--precision", precision, *few])
    return json.loads(out.strip().splitlines()[-1]) | {"peak_pss_mb": pss}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--trainer", default=TOP / "build/release/bin/trainer")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--only", choices=CASES)
    p.add_argument("--no-peer", action="store_true")
    a = p.parse_args()
    floor_program = pathlib.Path(a.trainer).resolve().parents[1] / "tests/bench/bench_floor"
    has_peer = not a.no_peer and subprocess.run([a.python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0
    if not has_peer:
        print("no torch: Trireme's figures alone")
    result = {}
    print(f"{'case':15} {'ours/s':>9} {'peer/s':>9} {'ratio':>6} {'goal':>5} {'step ms':>8} {'comm ms':>8} "
          f"{'comm %':>7} {'floor ms':>8} {'of it':>6} {'first s':>8} {'peer':>6} {'RSS MB':>6} {'peer':>6} "
          f"{'PSS MB':>6} {'peer':>6}")
    for name, (model, precision, steps) in CASES.items():
        if a.only and name != a.only:
            continue
        ours, peers, floors = [], [], []
        for _ in range(a.rounds):
            ours.append(run_trireme(a.trainer, model, precision, steps))
            if floor_program.exists():
                floors.append(run_floor(floor_program, model, precision, steps)["floor_ms"])
            if has_peer:
                peers.append(run_peer(a.python, model, precision, steps))
        mid = lambda rows, key: statistics.median(r[key] for r in rows) if rows else float("nan")
        row = {key: mid(ours, key) for key in ours[0]}
        row["peer"] = {key: mid(peers, key) for key in ("samples_per_s", "step_ms", "first_step_s", "peak_rss_mb", "peak_pss_mb")}
        row["ratios"] = [o["samples_per_s"] / q["samples_per_s"] for o, q in zip(ours, peers)]
        row["ratio"] = statistics.median(row["ratios"]) if peers else float("nan")
        row["goal"] = TARGETS[name]
        row["floor_ms"] = statistics.median(floors) if floors else float("nan")
        row["of_floor"] = (statistics.median(o["step_ms"] / f for o, f in zip(ours, floors)) if floors else float("nan"))
        result[name] = row
        print(f"{name:15} {row['samples_per_s']:9.4g} {row['peer']['samples_per_s']:9.4g} {row['ratio']:6.2f} "
              f"{row['goal']:5.2f} {row['step_ms']:8.2f} {row['comm_wait_ms']:8.2f} "
              f"{100 * row['comm_wait_ms'] / row['step_ms']:7.1f} {row['floor_ms']:8.2f} {row['of_floor']:6.2f} "
              f"{row['first_step_s']:8.2f} "
              f"{row['peer']['first_step_s']:6.1f} {row['peak_rss_mb']:6.0f} {row['peer']['peak_rss_mb']:6.0f} "
              f"{row['peak_pss_mb']:6.0f} {row['peer']['peak_pss_mb']:6.0f}",
              flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
