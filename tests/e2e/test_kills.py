"""SIGKILL at any moment of a job, of any of its processes: started again with --resume, it ends bitwise as one that nobody
touched. TRIREME_KILLS=N in the environment makes N kills (by hand: hundreds), TRIREME_SEED=N others."""
import os
import pathlib
import random
import re
import signal
import subprocess
import time

from harness import Case, long, main

KILLS = int(os.environ.get("TRIREME_KILLS", "12"))
SEED = int(os.environ.get("TRIREME_SEED", "23"))
STEPS = 150
OVERRIDES = ("train.ema=0.9", "train.checkpoint.best=true", "run.timeout=20")
# Sixteen steps an epoch: kills come in the middle of the text.
TEXT = """
name: text
seed: 3
device: cpu
output: {out}
data:
  train: {{path: {data}, format: text, stride: 3}}
  split: {{fraction: 0.2}}
  workers: {workers}
  shuffle: {shuffle}
model:
  input: [12]
  layers:
    - embedding: {{num: 256, dim: 8, name: token}}
    - positions
    - transformer: {{layers: 1, heads: 2, causal: true, dropout: 0.1}}
    - linear: {{out: 256, name: head}}
  loss: cross_entropy
train:
  steps: {steps}
  batch: {batch}
  log_every: 1
  clip_norm: 1.0
  optimizer: {{adamw: {{lr: 0.005}}}}
  schedule: {{cosine: {{warmup: 3}}}}
  checkpoint: {{every_steps: {every}, keep: 3}}
  eval: {{every_steps: 10}}
"""


def alive(pid):
    """Not ended, nor waiting to be asked how."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def runs(config):
    """Whether a process has this config's path among its arguments: also a rank whose launcher was killed before it was seen."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(config).encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            pass
    return False


class Kills(Case):
    stuck = 0  # launchers

    def reached(self, name):
        """The last step in the metrics, which a kill may have cut in the middle of a line."""
        path = self.dir / name / "metrics.jsonl"
        steps = re.findall(r'"event":"step","step":(\d+),', path.read_text()) if path.exists() else []
        return int(steps[-1]) if steps else 0

    def wait_for(self, process, name, what, rng):
        """Until the moment to kill at: in set-up, after some steps, or with a checkpoint half written."""
        begin = self.reached(name)
        if what == "start":
            time.sleep(rng.random() * 1.5)
            return
        target = begin + rng.randrange(1, 20)
        while process.poll() is None and self.reached(name) < target:
            time.sleep(0.001)
        folder = self.dir / name / "checkpoints"
        while what == "write" and process.poll() is None:
            if any(".tmp-" in p for p in os.listdir(folder)):
                return
        time.sleep(rng.random() * 0.02)

    def kill(self, config, process, victim, starting):
        """SIGKILL to the launcher, to one rank, or to all; what then is left of the job ends by itself."""
        ranks = self.rank_pids(process.pid)
        pids = {"launcher": [process.pid], "all": [process.pid] + ranks}.get(victim, ranks[victim:victim + 1]
                                                                          if isinstance(victim, int) else [])
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        out = self.outcome(process, ranks, starting)
        while any(alive(pid) for pid in ranks) or runs(config):
            time.sleep(0.01)
        return out

    def outcome(self, process, ranks, starting):
        """What the job printed. A launcher that outlives its ranks for half a minute is stuck in its own end, which
        PMIx 4.2 does where a rank died in MPI_Init (PMIx_server_finalize waits for a lock of its own): it is ended."""
        gone, begin = None, time.monotonic()
        while True:
            try:
                return process.communicate(timeout=1)[0]
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                self.assertLess(now - begin, 1200, "ranks that do not end")
                gone = None if any(map(alive, ranks + self.rank_pids(process.pid))) else gone or now
                if gone and now - gone > 30:
                    self.assertTrue(starting, f"a launcher that outlives ranks killed in training: pid {process.pid}")
                    self.stuck += 1
                    process.kill()

    def one_run(self, config, kills, rng, ranks):
        """Starts the job again and again until it is through; how often it was killed."""
        name, killed = config.stem, 0
        while killed < kills:
            process = self.start(config, "--resume", *OVERRIDES, ranks=ranks)
            what = rng.choice(("start", "step", "step", "write", "write"))
            self.wait_for(process, name, what, rng)
            if process.poll() is not None:
                out, _ = process.communicate()
                self.assertEqual(process.returncode, 0, out)
                return killed
            out = self.kill(config, process, rng.choice([*range(ranks), "launcher", "all"]), what == "start")
            self.assertNotIn("damaged", out)
            killed += 1
        out = self.run_trainer(config, "--resume", *OVERRIDES, ranks=ranks, timeout=600)
        self.assertNotIn("damaged", out)
        return killed

    def kills(self, wanted, seed, **values):
        rng, done, runs = random.Random(seed), 0, 0
        self.run_trainer(self.config("whole", steps=STEPS, every=3, **values), *OVERRIDES, ranks=2, timeout=600)
        whole = self.losses("whole")
        while done < wanted:
            name = f"killed{runs}"
            done += self.one_run(self.config(name, steps=STEPS, every=3, **values), min(wanted - done, 40), rng, 2)
            runs += 1
            self.assertEqual(self.losses(name), whole, f"after {done} kills")
            self.assert_same_model(self.dir / name / "model.h5", self.dir / "whole/model.h5")
            self.assertEqual([p for p in os.listdir(self.dir / name / "checkpoints") if ".tmp-" in p or ".damaged" in p], [])
            print(f"{done} kills in {runs} runs: equal; {self.stuck} launchers ended by hand", flush=True)

    def test_a_few_kills(self):
        self.kills(3, 5)

    def text(self):
        path = self.dir / "text.txt"
        path.write_text("".join(f"{i} times {i % 7} is {i * (i % 7)}; " for i in range(60)))
        return {"text": TEXT, "data": path}

    def test_a_few_kills_in_a_text(self):
        self.kills(3, 6, **self.text())

    @long
    def test_kills(self):
        self.kills(KILLS, SEED)

    @long
    def test_kills_in_a_text(self):
        self.kills(KILLS, SEED + 1, **self.text())


if __name__ == "__main__":
    main()
