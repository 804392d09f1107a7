"""run.offload on the stand-in for a GPU: the optimizer's moments and average in host memory change no bit, recorded or not,
on any number of ranks, over a stop between the two; a limit on memory takes it last, and what is held is what was planned."""
import re
import subprocess

import numpy as np

from gpu import STANDIN, GpuCase
from harness import TRAINER, long, main
from test_optimizers import OPTIMIZERS

ALL = {**OPTIMIZERS, "adamw": "{adamw: {lr: 0.005}}", "lion": "{lion: {lr: 0.001}}", "sgd": "{sgd: {lr: 0.05}}",
       "momentum": "{sgd: {lr: 0.05, momentum: 0.9, nesterov: true}}"}
STEPS, CUT = 5, 3
# some windows of a slot, the last one shorter, and rows that end within one
WIDE = "model.layers=[flatten, {linear: {out: 500}}, relu, {linear: {out: 60}}, relu, {linear: {out: 4}}]"
# megabytes of moments beside few activations
LARGE = "model.layers=[flatten, {linear: {out: 2000}}, relu, {linear: {out: 500}}, relu, {linear: {out: 4}}]"
ADAMW = f"train.optimizer={ALL['adamw']}"


class Offload(GpuCase):
    def train(self, name, *arguments, steps=STEPS, ranks=2, **how):
        more = () if "--resume" in arguments else ("--force",)
        out = self.run_trainer(self.config(name, steps=steps, every=CUT), "train.schedule=constant", *arguments, *more, ranks=ranks, **how)
        return out

    def assert_same_end(self, a, b):
        """Weights, moments and the average of the last checkpoints."""
        a, b = (self.arrays(self.dir / name / f"checkpoints/step-{STEPS:08}.h5") for name in (a, b))
        keys = [k for k in b if k.startswith(("model/", "optimizer/"))]
        self.assertTrue(keys)
        for k in keys:
            np.testing.assert_array_equal(a[k], b[k], err_msg=k)

    def assert_held_as_planned(self, name):
        end = self.records(name, "end")[0]
        self.assertEqual(end["predicted_mb"], end["held_mb"])
        self.assertEqual(end["predicted_device_mb"], end["held_device_mb"])
        return end

    @long
    def test_same_bits(self):
        for name, optimizer in ALL.items():
            with self.subTest(optimizer=name):
                options = WIDE, f"train.optimizer={optimizer}", "train.ema=0.9"
                self.train("there", *options, "run.offload=off")
                for graph in ("auto", "off"):
                    out = self.train("host", *options, "run.offload=on", f"run.cuda_graph={graph}")
                    self.assertRegex(out, r"run\.offload: the optimizer's [\d.]+ .?B in host memory, .* up and .* down a step, .* measured")
                    self.assertEqual(self.losses("host"), self.losses("there"))
                    self.assert_same_end("host", "there")
                    self.assert_held_as_planned("host")

    def test_whole_on_each_rank(self):
        """Not sharded; through MPI; streams that advance in other orders."""
        options = WIDE, ADAMW, "train.ema=0.9"
        for more in (("run.shard_optimizer=off",), ("run.collectives=mpi", "run.shard_optimizer=on")):
            self.train("there", *options, *more, "run.offload=off")
            for order in ("lazy", "eager", 7):
                self.train("host", *options, *more, "run.offload=on", env={"FAKEGPU_ORDER": order})
                self.assertEqual(self.losses("host"), self.losses("there"))
                self.assert_same_end("host", "there")

    def test_resumed(self):
        options = WIDE, ADAMW, "train.ema=0.9"
        self.train("whole", *options, "run.offload=off")
        for first, then in (("on", "off"), ("off", "on"), ("on", "on")):
            self.train("cut", *options, f"run.offload={first}", f"train.steps={CUT}")
            self.train("cut", *options, f"run.offload={then}", "--resume")
            self.assertEqual(self.losses("cut"), self.losses("whole"))
            self.assert_same_end("cut", "whole")

    def test_limit(self):
        """The last thing that a limit takes."""
        options = LARGE, ADAMW
        plain = self.train("plain", *options, ranks=1)
        self.assertNotIn("run.offload", plain)
        refused = self.train("run", *options, "run.memory_limit=100kB", "run.offload=off", ranks=1, status=1)
        least = int(re.search(r"the smallest limit that would do is (\d+)MiB", refused)[1])
        self.assertIn("run.offload=on", refused)  # what would take less
        out = self.train("run", *options, f"run.memory_limit={least}MiB", ranks=1)
        self.assertNotIn("in host memory", out)
        limit = f"run.memory_limit={least - 4}MiB"
        refused = self.train("run", *options, limit, "run.offload=off", ranks=1, status=1)
        out = self.train("run", *options, limit, ranks=1)
        self.assertRegex(out, rf"run\.memory_limit {least - 4}MiB: .*the optimizer's [\d.]+ MB in host memory, [\d.]+ MB up and [\d.]+ MB down")
        self.assertEqual(self.losses("run"), self.losses("plain"))
        self.assert_same_end("run", "plain")
        self.assertLessEqual(self.assert_held_as_planned("run")["held_device_mb"] * 1e6, (least - 4) * 2**20)
        self.assertIn("offload: on", (self.dir / "run/config.yaml").read_text().replace('"', ""))
        plan = subprocess.run([str(STANDIN), "plan", str(self.config("run", steps=STEPS, every=CUT)), "device=cuda", *options, limit],
                              cwd=self.dir, env=self.environment(), stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertRegex(plan, rf"run\.memory_limit {least - 4}MiB: .* in host memory")
        self.assertRegex(plan, r"run\.offload: a rank keeps the optimizer's [\d.]+ MB in host memory")
        nothing = self.train("run", *options, "run.memory_limit=100kB", ranks=1, status=1)
        self.assertIn("whatever is recomputed, the optimizer's state in host memory, with one sample at once: the smallest limit that would do is", nothing)

    def test_cpu(self):
        refused = self.train("cpu", "device=cpu", "run.offload=on", program=TRAINER, status=2)
        self.assertIn("run.offload: on is for GPUs", refused)
        self.assertNotIn("offload", self.train("cpu", "device=cpu", "run.offload=auto", program=TRAINER))


if __name__ == "__main__":
    main()
