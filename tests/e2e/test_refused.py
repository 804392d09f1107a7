"""Wrong configs, command lines and data: one message, the right status, nothing is left."""
import os
import subprocess

import h5py
import numpy as np

from harness import Case, main


class Refused(Case):
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
        os.mkfifo(self.dir / "pipe.yaml")
        self.assertIn("pipe.yaml: is a pipe, expected a file", self.run_trainer("pipe.yaml", ranks=2, status=2))

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
        before = self.contents(run)
        for more, status in (((), 2), (("--resume",), 1), (("--force",), 1)):
            self.run_trainer(config, "data.train.path=nowhere.h5", *more, ranks=0, status=status)
            self.assertEqual(self.contents(run), before)

    def test_other_data_on_a_rank(self):
        """Ranks open files of their own, as on hosts of their own: what differs is told, and nothing is replaced."""
        config = self.config(steps=6, data="data.h5", out=self.dir / "run")
        for name in ("here", "there"):
            (self.dir / name).mkdir()
            (self.dir / name / "run.yaml").write_text(config.read_text())
            (self.dir / name / "data.h5").write_bytes((self.dir / "data.h5").read_bytes())

        def start(*arguments, status):
            apps = [["-np", "1", str(self.program), f"{name}/run.yaml", *arguments] for name in ("here", "there")]
            done = subprocess.run(["mpirun", "--oversubscribe", *apps[0], ":", *apps[1]], cwd=self.dir, text=True,
                                  env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
            self.assertEqual(done.returncode, status, done.stdout)
            return done.stdout

        start(status=0)  # paths may differ
        before = self.contents("run")
        for name, values, said in (("y", lambda y: y[:73], "inputs: 73 samples"),
                                   ("y", lambda y: np.where(np.arange(103) == 50, (y + 1) % 4, y), "labels: 103 samples"),
                                   ("x", lambda x: x[:, :, ::-1], "inputs: 103 samples, float32 (2, 6, 6), checksum"),
                                   ("y", lambda y: y.astype(np.int32), "int32"),
                                   ("ye", lambda y: y[::-1], "data.eval: labels: 40 samples, int64 (), checksum")):
            (self.dir / "there/data.h5").write_bytes((self.dir / "here/data.h5").read_bytes())
            with h5py.File(self.dir / "there/data.h5", "r+") as f:
                changed = values(f[name][()])
                both = {name: changed, **({"x": f["x"][:73]} if len(changed) == 73 else {})}
                for n, v in both.items():
                    del f[n]
                    f[n] = v
            with self.subTest(said=said):
                out = start("--force", status=1)
                ours = [line for line in out.splitlines() if line.startswith("trainer: error")]
                self.assertEqual(len(ours), 1, out)
                self.assertIn("the data is not the same on all ranks: rank 0 (", ours[0])
                self.assertRegex(ours[0], r"rank 1 \([^)]*\) has \".*\"; unlike rank 0: 1 \(")
                self.assertIn(said, ours[0])
                self.assertEqual(self.contents("run"), before)


if __name__ == "__main__":
    main()
