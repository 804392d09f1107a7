"""How a model is trained, never what comes out: recomputation, collectives, threads, precision; where weights and
random numbers begin."""
import os
import pathlib
import re
import signal
import subprocess

import numpy as np

from harness import RANKS, SOURCE, Case, main


class Machine(Case):
    """Recomputation, collectives, threads: how, never what."""

    def test_recompute(self):
        plans = {}
        for i, recompute in enumerate(("none", "blocks", "{every: 2}", "{every: 3}")):
            for ranks in (1, 2):
                config = self.config(f"r{i}-{ranks}", steps=6)
                self.run_trainer(config, f"train.recompute={recompute}", "train.micro_batch=5", ranks=ranks)
                self.assertEqual(self.losses(f"r{i}-{ranks}"), self.losses(f"r0-{ranks}"), recompute)
            text = self.tool("plan", config, f"train.recompute={recompute}")
            plans[recompute] = text.count(" conv2d ")
        self.assertGreater(plans["blocks"], plans["none"], "nothing is run again")
        self.assertGreater(plans["{every: 2}"], plans["none"])

    def test_recompute_saves_memory(self):
        block = "- residual: {body: [linear: {out: 64}, gelu, linear: {out: 64}, gelu]}"
        config = self.dir / "deep.yaml"
        config.write_text("data: {train: {format: synthetic, samples: 64, classes: 4}}\nname: deep\n"
                          "model:\n  input: [64]\n  loss: cross_entropy\n  layers:\n    - repeat: {times: 12, layers: ["
                          + block[2:] + "]}\n    - linear: {out: 4}\n"
                          "train: {steps: 4, batch: 64, log_every: 1, optimizer: {sgd: {lr: 0.01}}}\n")
        held, losses = {}, {}
        for recompute in ("none", "blocks"):
            self.run_trainer(config, f"train.recompute={recompute}", f"output={self.dir}/{recompute}", ranks=0)
            held[recompute] = self.records(recompute, "end")[0]["held_mb"]
            losses[recompute] = self.losses(recompute)
        self.assertEqual(losses["none"], losses["blocks"])
        self.assertLess(held["blocks"], held["none"] - 0.3)  # 12 blocks x 3 x 64 x 64 floats, most of them spared

    def test_collectives(self):
        for name, arguments in (("shared", ("run.collectives=shared",)), ("mpi", ("run.collectives=mpi",)),
                                ("small", ("run.bucket_mb=0.001",)),
                                ("threads", ("run.threads=2", "run.affinity=none"))):
            out = self.run_trainer(self.config(name, steps=12), *arguments, ranks=2)
            np.testing.assert_allclose(self.losses(name), self.losses("shared"), rtol=1e-4, err_msg=out)
        start = {n: self.records(n, "start")[0] for n in ("shared", "mpi", "threads")}
        self.assertIn("share", start["shared"]["collectives"])
        self.assertNotEqual(start["shared"]["collectives"], start["mpi"]["collectives"])
        self.assertEqual(start["threads"]["threads"], 2)

    def test_chosen_cores(self):
        """Cores that somebody chose for each rank stay as they are, whichever is whose."""
        cores = sorted(os.sched_getaffinity(0), reverse=True)[:2]
        if len(cores) < 2:
            self.skipTest("one core")
        config = self.config(steps=1000000)
        job = self.command(config, ranks=0)
        command = ["mpirun", "--oversubscribe", "--bind-to", "none"]
        for core in cores:
            command += ["-np", "1", "taskset", "-c", str(core), *job, ":"]
        with subprocess.Popen(command[:-1], cwd=self.dir, env=self.environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as process:
            self.wait_for_step("run", 2, process)
            pids = self.rank_pids(process.pid)
            try:
                for pid, core in zip(pids, cores, strict=True):
                    masks = {int(t): os.sched_getaffinity(int(t)) for t in os.listdir(f"/proc/{pid}/task")}
                    self.assertEqual(masks[pid], {core})
                    self.assertLessEqual(set.union(*masks.values()), {core}, "threads")
            finally:
                os.kill(pids[0], signal.SIGTERM)
                process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75)
        self.assertEqual(self.records(event="start")[0]["threads"], 1)

    def test_sync_batchnorm(self):
        for sync in ("all", "none", "true", "false"):
            for ranks in (1, 2):
                self.run_trainer(self.config(f"{sync}{ranks}", steps=8), f"train.sync_batchnorm={sync}", ranks=ranks)
        self.assertEqual(self.losses("all1"), self.losses("none1"))
        self.assertEqual(self.losses("true2"), self.losses("all2"))
        self.assertEqual(self.losses("false2"), self.losses("none2"))
        np.testing.assert_allclose(self.losses("all2"), self.losses("all1"), **RANKS)
        self.assertGreater(np.abs(np.subtract(self.losses("none2"), self.losses("all1"))).max(), 1e-3)

    def test_precision(self):
        for precision in ("fp32", "bf16"):
            self.run_trainer(self.config(precision, steps=20), f"train.precision={precision}", ranks=2)
        a, b = self.losses("fp32"), self.losses("bf16")
        self.assertNotEqual(a, b)
        np.testing.assert_allclose(b, a, rtol=0.1, atol=0.03)
        for name, array in self.arrays(self.dir / "bf16/model.h5").items():
            if name.startswith("model/"):
                self.assertEqual(array.dtype, np.float32)
        out = self.run_trainer(self.config("half"), "train.precision=fp16", status=2)
        self.assertIn("bf16", out)

    def test_init(self):
        bound = {"kaiming": lambda i, o: np.sqrt(1 / i), "xavier": lambda i, o: np.sqrt(6 / (i + o))}
        found = {}
        for init in ("kaiming", "xavier", "normal", "he", "zeros"):
            self.run_trainer(self.config(init, steps=1), f"model.init={init}", "train.schedule=constant",
                             "train.optimizer={sgd: {lr: 0}}", ranks=2)
            found[init] = self.arrays(self.dir / init / "model.h5")["model/params/head/weight"]
        outputs, inputs = found["zeros"].shape
        self.assertFalse(found["zeros"].any())
        self.assertAlmostEqual(self.losses("zeros")[0], np.log(4), places=6)
        for init, of in bound.items():
            limit = of(inputs, outputs)
            self.assertTrue(0.97 * limit < np.abs(found[init]).max() <= limit, (init, np.abs(found[init]).max(), limit))
        self.assertGreater(np.abs(found["normal"]).max(), 3 * found["normal"].std())
        self.assertGreater(np.abs(found["he"]).max(), 2.5 * found["he"].std())
        self.assertAlmostEqual(found["he"].std() / np.sqrt(2 / inputs), 1, delta=0.1)

    def test_nice(self):
        """run.nice is that of each thread that a rank starts for its work; MPI's own began before it could be asked."""
        process = self.start(self.config(steps=100000, every=50000), "run.nice=7", "run.threads=2")
        try:
            self.wait_for_step("run", 3, process, timeout=120)
            for pid in self.rank_pids(process.pid):
                fields = [t.read_text().rsplit(")", 1)[1].split() for t in sorted(
                    pathlib.Path(f"/proc/{pid}/task").glob("*/stat"), key=lambda t: int(t.parent.name))]
                fields[1:] = sorted(fields[1:], key=lambda f: int(f[19]))  # by their start
                nice = [int(f[16]) for f in fields]
                self.assertEqual(nice[0], 7, nice)
                before = nice.index(7, 1)
                self.assertEqual(nice[1:], [os.nice(0)] * (before - 1) + [7] * (len(nice) - before))
                self.assertGreaterEqual(len(nice) - before, 2, "a thread that computes, one that reads data")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)

    def test_seed(self):
        for name, seed in (("a", 3), ("b", 4)):
            self.run_trainer(self.config(name, steps=3), f"seed={seed}", ranks=1)
        self.assertNotEqual(self.losses("a"), self.losses("b"))


class Fit(Case):
    def fit(self, *arguments):
        """Whether it fits, bytes needed, the largest batch, and what other settings would take."""
        text = self.tool("plan", SOURCE / "configs/bench/resnet20.yaml", "device=cpu", "run.overcommit_memory=true", "--ranks", "2", *arguments)
        number = r"([\d.]+) (k|M|G|)B"
        verdict, *need = re.search(rf"^fit\n  (fits|does not fit): {number} needed", text, re.M).groups()
        units = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
        batch = re.search(r"largest batch  (\d+|none)", text)[1]
        advice = {k: (float(v) * units[u], bool(fits))
                  for k, v, u, fits in re.findall(rf"^    (\S+=\S+) +{number}(, fits)?$", text, re.M)}
        return verdict, float(need[0]) * units[need[1]], batch, advice

    def test_plan_fits(self):
        """The verdict, the largest batch and what is advised are what plans with these settings say."""
        verdict, need, batch, advice = self.fit("--memory", "150MB")
        self.assertEqual(verdict, "does not fit")
        self.assertIn("train.accumulate=4", advice)
        for setting in ("train.accumulate=4", "train.precision=bf16"):
            with_it = self.fit("--memory", "150MB", setting)
            self.assertLess(abs(with_it[1] - advice[setting][0]), 3e6)
            self.assertEqual(with_it[0] == "fits", advice[setting][1])
            self.assertLess(with_it[1], need)
        self.assertEqual(self.fit("--memory", "150MB", f"train.batch={int(0.95 * int(batch))}")[0], "fits")
        self.assertEqual(self.fit("--memory", "150MB", f"train.batch={int(1.06 * int(batch)) + 1}")[0], "does not fit")
        self.assertEqual(self.fit("--memory", "100GiB")[::3], ("fits", {}))
        self.assertEqual(self.fit("--memory", "1MB")[2], "none")
        self.assertIn("none: the programs alone take all of it", self.tool("plan", SOURCE / "configs/digits.yaml", "run.overcommit_memory=true", "--memory", "1MB"))
        few = self.fit("--memory", "100GiB", "data.train={format: synthetic, samples: 1}")
        self.assertEqual((few[0], few[2]), ("fits", "1"))
        self.assertIn("--memory 80: expected a size such as 80GB",
                      self.tool("plan", SOURCE / "configs/digits.yaml", "--memory", "80", status=2))


if __name__ == "__main__":
    main()
