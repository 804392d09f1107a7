"""Signals, dead ranks, full disks, wrong configs and data: one message, the right status, nobody hangs."""
import os
import pathlib
import signal
import subprocess
import time

import h5py

from harness import Case, main


class Failures(Case):
    def test_stop_signals(self):
        for sig, victim in ((signal.SIGTERM, 1), (signal.SIGUSR1, 0), (signal.SIGINT, 2)):
            name = sig.name
            config = self.config(name, steps=100000, every=100000)
            process = self.start(config, ranks=3)
            self.wait_for_step(name, 15, process)
            os.kill(self.rank_pids(process.pid)[victim], sig)
            out, _ = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 75, out)
            step = self.records(name)[-1]["step"]
            self.assertTrue((self.dir / name / f"checkpoints/step-{step:08d}.h5").exists())
            self.assertEqual(self.records(name, "end")[-1]["reason"], "stopped")

    def test_second_interrupt_ends_at_once(self):
        process = self.start(self.config(steps=10**6, every=10**6), ranks=0)
        self.wait_for_step("run", 15, process)
        os.kill(process.pid, signal.SIGINT)
        status = pathlib.Path(f"/proc/{process.pid}/status")
        while any(int(line.split()[1], 16) & 1 << (signal.SIGINT - 1) for line in status.read_text().splitlines()
                  if line.startswith(("SigPnd", "ShdPnd"))):
            pass  # not delivered yet: a second one would be merged with it
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=10)
        self.assertEqual(process.returncode, 130)

    def test_wall_clock_limit(self):
        out = self.run_trainer(self.config(steps=10**6, every=10**6), "train.max_seconds=2", status=75)
        self.assertIn("--resume", out)
        self.run_trainer(self.config(steps=10**6, every=10**6), "train.max_seconds=2", "--resume", status=75)
        steps = [r["step"] for r in self.records()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def kill_rank(self, victim, after_step, ranks=3):
        process = self.start(self.config(steps=10**6, every=1), ranks=ranks)
        if after_step:
            self.wait_for_step("run", after_step, process)
        else:  # during start-up
            end = time.monotonic() + 20
            while len(self.rank_pids(process.pid)) < ranks and time.monotonic() < end:
                time.sleep(0.005)
        os.kill(self.rank_pids(process.pid)[victim], signal.SIGKILL)
        begin = time.monotonic()
        out, _ = process.communicate(timeout=30)
        self.assertLess(time.monotonic() - begin, 10, out)
        self.assertNotEqual(process.returncode, 0, out)

    def test_killed_rank_in_training(self):
        self.kill_rank(1, after_step=20)

    def test_killed_rank_zero(self):
        self.kill_rank(0, after_step=10)

    def test_killed_rank_at_start(self):
        self.kill_rank(1, after_step=0)

    def test_full_disk(self):
        """Saving fails; training goes on, the last good file stays whole, and it is said."""
        small = self.dir / "small"
        small.mkdir()
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], stderr=subprocess.PIPE)
        if mount.returncode != 0:
            self.skipTest(f"no small file system to fill: {mount.stderr.decode().strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(small)], check=True)
        config = self.config("small/run", steps=12, every=4)
        self.run_trainer(config)
        good = small / "run/checkpoints/step-00000012.h5"
        with open(small / "filler", "wb", buffering=0) as f:
            try:
                while True:
                    f.write(bytes(1024))
            except OSError:
                pass
        room = 8 * 1024  # for a few metrics, not for a checkpoint
        os.truncate(small / "filler", max(0, (small / "filler").stat().st_size - room))
        out = self.run_trainer(config, "--resume", "train.steps=24", status=1)
        self.assertIn("could not be saved", out)
        self.assertIn("training goes on", out)
        self.assertIn("No space left", out)
        self.assertIn("best.h5", "".join(p.name for p in good.parent.iterdir()))
        self.assertTrue(good.exists())
        self.tool("inspect", good)
        self.assertEqual(list((small / "run").rglob("*.tmp-*")), [])
        os.unlink(small / "filler")
        self.run_trainer(config, "--resume", "train.steps=24")
        self.tool("inspect", small / "run/model.h5")

    def test_wrong_configs(self):
        config = self.config()
        cases = {
            ("batch: 16", "bacth: 16"): 'did you mean "batch"',
            ("out: 4", "out: -4"): "-4",
            ("kernel: 3", "kernel: 9"): "kernel",
            ("seed: 3", "seed: 3\nseed: 4"): "seed",
            ("loss: cross_entropy", "loss: crossentropy"): "cross_entropy",
            ("steps: 30", "steps: many"): "many",
            ("steps: 30", "steps: 30\n  precision: fp16"): "bf16",
            ("device: cpu", "device: gpu"): "cuda",
        }
        for (old, new), expected in cases.items():
            bad = self.dir / "bad.yaml"
            bad.write_text(config.read_text().replace(old, new))
            for ranks in (0, 2):
                out = self.run_trainer(bad, ranks=ranks, status=2)
                ours = [line for line in out.splitlines() if line.startswith("trainer: ")]
                self.assertEqual(len(ours), 1, out)
                self.assertRegex(ours[0], r"bad\.yaml:\d+:\d+")
                self.assertIn(expected, ours[0])
            self.assertIn(expected, self.tool("check", bad, status=2))
        self.assertFalse((self.dir / "run").exists(), "nothing is made for a wrong config")

    def test_wrong_command_lines(self):
        config = self.config()
        for arguments, expected in ((("--resum",), "--resum"), (("train.bacth=2",), "bacth"), (("stray",), "stray"),
                                    (("--resume", "--force"), "--force")):
            out = self.run_trainer(config, *arguments, ranks=2, status=2)
            self.assertIn(expected, out)
        self.assertIn("nowhere.yaml", self.run_trainer("nowhere.yaml", ranks=2, status=2))

    def test_wrong_data(self):
        config = self.config(steps=5)
        data = self.dir / "data.h5"
        with h5py.File(data, "r+") as f:
            f["y"][7] = 4
        out = self.run_trainer(config, ranks=2, status=1)
        self.assertIn("4", out)
        self.assertIn("data.h5", out)
        ours = [line for line in out.splitlines() if line.startswith("trainer: error")]
        self.assertEqual(len(ours), 1, out)
        data.write_bytes(data.read_bytes()[:3000])
        self.assertIn("data.h5", self.run_trainer(config, ranks=2, status=1))
        data.unlink()
        self.assertIn("data.h5", self.run_trainer(config, ranks=2, status=1))

    def test_refused_jobs_leave_nothing(self):
        """Whatever stands against a run before its first step: no folder is made for it, and none is changed."""
        config = self.config(steps=2, out="new/deep/run")
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["short"] = f["y"][:5]
        for values, status in ((("device=auto", "train.precision=fp16"), 2),
                               (("device=auto", "run.collectives=nccl"), 2),
                               (("data.train.path=nowhere.h5",), 1),
                               (("data.train.labels=short",), 1),
                               (("data.drop_last=true", "train.batch=5000"), 1)):
            with self.subTest(values=values):
                before = sorted(self.dir.rglob("*"))
                self.run_trainer(config, *values, status=status)
                self.run_trainer(config, *values, "--force", ranks=0, status=status)
                self.assertEqual(sorted(self.dir.rglob("*")), before)
        (self.dir / "new/deep/run").mkdir(parents=True)
        self.run_trainer(config, "data.train.path=nowhere.h5", ranks=0, status=1)
        self.assertEqual(list((self.dir / "new/deep/run").iterdir()), [])
        self.run_trainer(config)
        run = self.dir / "new/deep/run"
        before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
        for more, status in (((), 2), (("--resume",), 1), (("--force",), 1)):
            self.run_trainer(config, "data.train.path=nowhere.h5", *more, ranks=0, status=status)
            self.assertEqual({p: p.read_bytes() for p in run.rglob("*") if p.is_file()}, before)

    def test_not_finite(self):
        config = self.config(poison=20, shuffle="false", steps=12)
        out = self.run_trainer(config, "train.on_nonfinite=stop", status=1)
        self.assertIn("step 2", out)
        self.assertRegex(out, r"gradient of \w+\.\w+ is not finite")
        out = self.run_trainer(config, "--force", "train.on_nonfinite=skip")
        self.assertIn("the update is skipped", out)
        out = self.run_trainer(config, "--force", "train.on_nonfinite=rollback", "train.max_rollbacks=2",
                               "train.checkpoint.every_steps=1", status=1)
        rollbacks = self.records(event="rollback")
        self.assertEqual([(r["step"], r["to"]) for r in rollbacks], [(2, 1), (2, 1)])

    def test_two_jobs_in_one_folder(self):
        first = self.start(self.config(steps=10**6, every=10**6), ranks=1)
        self.wait_for_step("run", 3, first)
        out = self.run_trainer(self.config(), "--resume", ranks=1, status=2)
        self.assertIn("in use", out)
        other = self.config("other", steps=20)
        self.run_trainer(other, ranks=2)  # beside the first: they never meet
        os.kill(self.rank_pids(first.pid)[0], signal.SIGTERM)
        first.communicate(timeout=30)
        self.assertEqual(first.returncode, 75)


if __name__ == "__main__":
    main()
