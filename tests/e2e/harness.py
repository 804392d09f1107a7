"""What the end-to-end tests share: starting the trainer, reading what it leaves, tiny data and configs."""
import atexit
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import h5py
import numpy as np

TRAINER = pathlib.Path(os.environ["TRAINER"]).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
ENV = dict(
    os.environ,
    OMPI_ALLOW_RUN_AS_ROOT="1",
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    OMPI_MCA_rmaps_base_oversubscribe="1",
    OMPI_MCA_btl_vader_single_copy_mechanism="none",
    OMPI_MCA_pml="ob1",  # libfabric sleeps 0.2 s at each start (test_docs: as users start)
    HWLOC_COMPONENTS="-pci,-linux:pci,-opencl,-gl,-x86",  # what asks for devices takes a fifth of a small job's time
    OMP_NUM_THREADS="1",
    GOMP_SPINCOUNT="1000",  # tests share the cores: what waits is to leave them to others
    CUDA_VISIBLE_DEVICES="",  # what these tests expect is the CPU's; gpu.py has the others
)

# Launchers that tests kill leave their session folders here, not where others' jobs look for such.
ENV["TMPDIR"] = tempfile.mkdtemp(prefix="trireme-sessions-")
atexit.register(shutil.rmtree, ENV["TMPDIR"], ignore_errors=True)
# Launchers side by side share this one; it is never empty, so none takes it away while another makes it.
os.makedirs(f"{ENV['TMPDIR']}/ompi.{socket.gethostname().split('.')[0]}.{os.getuid()}/held")
# Nor are segments that other jobs left in /dev/shm named in every test's output.
SHM = "OMPI_MCA_osc_sm_backing_directory"
ENV[SHM] = tempfile.mkdtemp(prefix="trireme-", dir="/dev/shm")
atexit.register(shutil.rmtree, ENV[SHM], ignore_errors=True)

RANKS = dict(rtol=2e-5, atol=1e-5)  # other rank count: another order of sums

CNN = """
name: e2e
seed: 3
device: cpu
output: {out}
data:
  train: {{path: {data}, inputs: x, labels: y}}
  eval: {{path: {data}, inputs: xe, labels: ye}}
  workers: {workers}
  shuffle: {shuffle}
model:
  input: [2, 6, 6]
  layers:
    - conv2d: {{out: 8, kernel: 3, padding: 1, bias: false}}
    - batchnorm
    - relu
    - residual:
        body:
          - conv2d: {{out: 8, kernel: 3, padding: 1, bias: false}}
          - batchnorm
    - relu
    - flatten
    - dropout: {{p: 0.2}}
    - linear: {{out: 4, name: head}}
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


class Listener(threading.Thread):
    """Takes in what a process says, with when it does."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.lines = process, []
        self.start()

    def run(self):
        with self.process.stdout as said:
            for line in said:
                self.lines.append((time.monotonic(), line))

    def when(self, pattern, seconds):
        """When a line first had it; fails where none has by the end of the process, or of so many seconds."""
        end = time.monotonic() + seconds
        while True:
            alive = self.is_alive() and time.monotonic() < end
            for at, line in list(self.lines):
                if re.search(pattern, line):
                    return at
            if not alive:
                raise AssertionError(f"not said: {pattern}: {self.text()}")
            time.sleep(0.02)

    def text(self):
        return "".join(line for _, line in self.lines)


class Case(unittest.TestCase):
    """A temporary folder, data with a signal in it, and ways to run the trainer there."""

    program = TRAINER

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="trireme-e2e-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def make_data(self, samples=103, poison=None):
        rng = np.random.default_rng(5)
        y = rng.integers(0, 4, samples + 40)
        prototypes = rng.normal(size=(4, 2, 6, 6))
        x = (prototypes[y] + rng.normal(size=(samples + 40, 2, 6, 6))).astype(np.float32)
        if poison is not None:
            x[poison] = 3e38
        path = self.dir / "data.h5"
        with h5py.File(path, "w") as f:
            f["x"], f["y"] = x[:samples], y[:samples].astype(np.uint8)
            f["xe"], f["ye"] = x[samples:], y[samples:].astype(np.int64)
        return path

    def config(self, name="run", samples=103, poison=None, text=CNN, **values):
        defaults = dict(data=self.make_data(samples, poison), out=self.dir / name, workers=1, shuffle="true",
                        steps=30, batch=16, every=10)
        defaults.update(values)
        path = self.dir / f"{name}.yaml"
        path.write_text(text.format(**defaults))
        return path

    def environment(self):
        return ENV

    def command(self, config, *arguments, ranks=2, program=None):
        launcher = ["mpirun", "--oversubscribe", "-np", str(ranks)] if ranks else []
        return launcher + [str(program or self.program), str(config), *map(str, arguments)]

    def start(self, config, *arguments, ranks=2, env=None, **popen):
        return subprocess.Popen(self.command(config, *arguments, ranks=ranks), cwd=self.dir,
                                env={**self.environment(), **(env or {})},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **popen)

    def run_trainer(self, config, *arguments, ranks=2, status=0, timeout=120, env=None):
        done = subprocess.run(self.command(config, *arguments, ranks=ranks), cwd=self.dir,
                              env={**self.environment(), **(env or {})},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def tool(self, *arguments, status=0):
        done = subprocess.run([str(self.program), *map(str, arguments)], cwd=self.dir, env=self.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def planned(self, *arguments):
        """`trainer plan`, as JSON; the status is 1 where it does not fit, unless the job is to train all the same."""
        done = subprocess.run([str(self.program), "plan", *map(str, arguments), "--json"], cwd=self.dir, env=self.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        found = json.loads(done.stdout)
        refused = found["fit"]["fits"] is False and "run.overcommit_memory=true" not in arguments
        self.assertEqual(done.returncode, int(refused), done.stdout + done.stderr)
        self.assertEqual("fit" in done.stderr, refused, done.stderr)
        return found

    def records(self, name="run", event="step"):
        lines = (self.dir / name / "metrics.jsonl").read_text().splitlines()
        return [r for r in map(json.loads, lines) if r["event"] == event]

    def losses(self, name="run"):
        return [r["loss"] for r in self.records(name)]

    def arrays(self, path):
        """Every dataset of a run file, by path."""
        found = {}
        with h5py.File(path, "r") as f:
            f.visititems(lambda n, o: found.__setitem__(n, o[()]) if isinstance(o, h5py.Dataset) else None)
        return found

    def assert_same_model(self, a, b):
        a, b = self.arrays(a), self.arrays(b)
        self.assertEqual({n for n in a if n.startswith("model/")}, {n for n in b if n.startswith("model/")})
        for n in a:
            if n.startswith("model/"):
                np.testing.assert_array_equal(a[n], b[n], err_msg=n)

    def contents(self, below="."):
        """What is below a folder of ours: bytes by path, None for folders."""
        return {p: p.read_bytes() if p.is_file() else None for p in sorted((self.dir / below).rglob("*"))}

    def rank_pids(self, parent):
        """PIDs of the trainer's ranks below a launcher, by rank. What a rank starts, to look at a file, is none."""
        found, todo = [], [parent]
        while todo:
            pid = todo.pop()
            try:
                if pathlib.Path(os.readlink(f"/proc/{pid}/exe")) == self.program:
                    environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
                    rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", environment)
                    found.append((int(rank[1]) if rank else 0, pid))
                else:
                    todo += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                pass
        return [pid for _, pid in sorted(found)]

    def wait_for_step(self, name, step, process, timeout=60):
        """Until metrics.jsonl has the record of this step."""
        end = time.monotonic() + timeout
        path = self.dir / name / "metrics.jsonl"
        while time.monotonic() < end:
            if path.exists() and f'"step":{step},' in path.read_text().replace(" ", ""):
                return
            if process.poll() is not None:
                self.fail(f"ended before step {step}: {process.stdout.read()}")
            time.sleep(0.01)
        process.kill()
        self.fail(f"step {step} not reached in {timeout} s")

    def stop(self, name, step, config, *arguments, ranks, env=None):
        """Starts training into folder `name`, and stops it: SIGTERM to its second rank at this step, status 75. At a later
        one, where the job before went on to it."""
        before = self.records(name) if (self.dir / name / "metrics.jsonl").exists() else []
        step = max([step, *(r["step"] + 1 for r in before[-1:])])
        process = self.start(config, *arguments, ranks=ranks, env=env)
        self.wait_for_step(name, step, process)
        os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, out)


def long(test):
    """A case of the long part (TRIREME_PART=long, in `launch/test --all`): not every change needs it."""
    test.long = True
    return test


class Part(unittest.TestLoader):
    """The cases of TRIREME_PART: short (all but long ones), long, or all. One that is named on the command line runs."""

    def getTestCaseNames(self, case):
        part = os.environ.get("TRIREME_PART") or "short"
        return [name for name in super().getTestCaseNames(case)
                if part in ("all", "long" if hasattr(getattr(case, name), "long") else "short")]


def main():
    unittest.main(verbosity=2, testLoader=Part())
