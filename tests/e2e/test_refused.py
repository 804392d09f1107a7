"""Wrong configs, command lines and data: one message, the right status, nothing is left."""
import os
import re
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
            ("out: 4,", "out: 1,"): "model.loss: bce takes one for yes or no",
            ("  workers: 1", "  split: {fraction: 0.2}\n  workers: 1"): "data.split: data.eval is given too: expected one of them",
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

    def test_held_out_part_and_other_data(self):
        """A config has one of both to evaluate on; a model that was judged by a part held out is evaluated on other data, too."""
        config = self.config(steps=2)
        out = self.run_trainer(config, "data.split.fraction=0.2", ranks=0, status=2)
        self.assertIn("command line: data.split.fraction=0.2: data.split: data.eval is given too", out)
        text = re.sub(r"  eval: {path.*", "  split: {fraction: 0.2}", config.read_text())
        config.write_text(text)
        self.run_trainer(config, ranks=0)
        out = self.tool("evaluate", "run/model.h5")
        self.assertRegex(out, r"samples +21\n")
        self.assertRegex(self.tool("evaluate", "run/model.h5", f"data.eval={{path: {self.dir}/data.h5, inputs: xe, labels: ye}}"), r"samples +40\n")

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

    def test_missing_data_is_placed(self):
        """A file of data that is not there is told with its key and where that stands, whatever its format."""
        head = "name: a\noutput: run\ndevice: cpu\nmodel: {input: [2], layers: [linear: {out: 2}], loss: cross_entropy}\ntrain: {epochs: 1, batch: 4, optimizer: {sgd: {lr: 0.1}}}\ndata:\n"
        np.save(self.dir / "x.npy", np.zeros((8, 2), np.float32))
        (self.dir / "t.csv").write_text("a,b,y\n" + "1,2,0\n" * 8)
        for data, said in (
                ("  train: {path: gone.h5, inputs: x, labels: y}", "c.yaml:7:17: data.train.path: gone.h5: cannot be opened: No such file"),
                ("  train: {path: gone.csv, inputs: [a, b], labels: y}\n  table: {categories: {a: auto}}", "c.yaml:7:17: data.train.path: gone.csv: cannot"),
                ("  train: {inputs: x.npy, labels: gone.npy}", "c.yaml:7:34: data.train.labels: gone.npy: cannot"),
                ("  train: {inputs: gone.npy, labels: x.npy}", "c.yaml:7:19: data.train.inputs: gone.npy: cannot"),
                ("  train: {path: 'a.bin, b.bin', format: cifar10}", "c.yaml:7:17: data.train.path: a.bin: cannot"),
                ("  train: {path: gone, format: folder}", "c.yaml:7:17: data.train.path: gone: "),
                ("  train: {path: t.csv, labels: y}\n  eval: {path: gone.csv, labels: y}", "c.yaml:8:16: data.eval.path: gone.csv: cannot")):
            (self.dir / "c.yaml").write_text(head + data + "\n")
            more = ["train.eval.every_epochs=1"] if "eval" in data else ["model.input=[3,8,8]", "model.layers=[flatten, linear: {out: 10}]"] if "format" in data else []
            for command in ([], ["check", "--data"]):
                self.assertIn(f"error: {said}", self.tool(*command, "c.yaml", *more, status=1))
        for key in ("model.init_from", "train.distill.teacher"):
            said = self.tool("c.yaml", "data={train: {path: t.csv, inputs: [a, b], labels: y}}", f"{key}=gone.h5", status=1)
            self.assertIn(f"error: command line: {key}=gone.h5: {key}: gone.h5: cannot be opened", said)
        said = self.tool("c.yaml", "data.train.path=away.csv", status=1)
        self.assertIn("error: command line: data.train.path=away.csv: data.train.path: away.csv: cannot be opened", said)
        # behind `auto`, too, which training puts values in the place of
        (self.dir / "c.yaml").write_text(head + "  train: {format: synthetic, samples: 8}\n  eval: {format: synthetic, samples: 8, classes: 3}\n  normalize: auto\n")
        self.assertIn("error: c.yaml:8:50: data.eval.classes: more than the model has outputs", self.tool("c.yaml", status=2))

    def test_settings_that_data_refuses_are_placed(self):
        """What only the data or the model's values tell is wrong has the line of what asks for it."""
        np.save(self.dir / "x.npy", np.random.default_rng(1).normal(size=(20, 2)).astype(np.float32))
        np.save(self.dir / "y.npy", (np.arange(20) % 2).astype(np.uint8))
        np.save(self.dir / "w.npy", np.ones(20, np.float32))
        config = self.dir / "c.yaml"
        text = ("name: a\noutput: run\ndevice: cpu\nmodel:\n  inputs: {x: [2], more: [2]}\n  layers: [concat: {from: [x, more]}, linear: {out: 2, name: head}]\n"
                "  loss: {cross_entropy: {gamma: 0}}\ntrain: {steps: 2, batch: 16, optimizer: {sgd: {lr: 0.1}}}\ndata:\n"
                "  train: {inputs: {x: x.npy, more: x.npy}, labels: y.npy}\n  eval: {inputs: {x: x.npy, more: x.npy}, labels: y.npy}\n")
        for change, said in (
                (("labels: y.npy}\n  eval", "labels: y.npy, offset: 20}\n  eval"), "c.yaml:10:67: data.train.offset: 20, but y.npy has 20 samples"),
                (("labels: y.npy}\n  eval", "labels: y.npy, offset: 1, samples: 20}\n  eval"), "c.yaml:10:79: data.train.samples: 20, but y.npy has 19 samples from `offset` on"),
                (("batch: 16", "batch: 21"), "c.yaml:8:26: train.batch: 21: data.train has 20 samples, fewer than a batch, which data.drop_last leaves out"),
                (("{out: 2, name: head}]\n  loss: {cross_entropy: {gamma: 0}}", "{out: 3, name: head}]\n  loss: {cross_entropy: {class_weights: balanced}}"),
                 "c.yaml:7:41: model.loss.cross_entropy.class_weights: balanced: data.train has no sample of class 2")):
            config.write_text(text.replace(*change) + "  drop_last: true\n")
            self.assertIn(f"error: {said}", self.run_trainer("c.yaml", ranks=0, status=2))
            self.assertEqual(self.run_trainer("c.yaml", ranks=2, status=2).count(said), 1)
        config.write_text(text)
        key = "model.loss.cross_entropy.class_weights"
        self.assertIn(f'error: command line: {key}=[1, 2, 3]: {key}: 3 class_weights, but layer "head" gives 2 classes',
                      self.run_trainer("c.yaml", f"{key}=[1, 2, 3]", ranks=0, status=2))
        self.assertFalse((self.dir / "run").exists())
        # a model of an earlier stage, which was trained without weights of samples
        config.write_text(text + "pipeline: [train, fold]\n")
        self.run_trainer("c.yaml", "--until", "train", ranks=0)
        config.write_text(config.read_text().replace("labels: y.npy}\npipe", "labels: y.npy, weights: w.npy}\npipe"))
        said = self.run_trainer("c.yaml", "--resume", ranks=0, status=2)
        self.assertIn("error: c.yaml:11:67: data.eval.weights: w.npy, but the model was made without weights of samples", said)

    def test_weights_that_do_not_fit(self):
        """A weight that fewer bits cannot hold is told with its file, its layer and what to do."""
        self.run_trainer(self.config(steps=2, every=50), ranks=0)
        model = self.dir / "run/model.h5"
        for value, options, status, said in (
                (7e4, ("kind=float16",), 2, f'command line: pipeline.0.quantize.kind=float16: pipeline.0.quantize.kind: {model}: layer "head": a weight of 70000 does not fit float16, '
                 "which ends at 65504: bfloat16 goes as far as float32"),
                (np.nan, ("activations=dynamic", "layers=all"), 1, f'{model}: layer "head": weight 5 is not finite: train it again'),
                (np.nan, ("activations=static", "layers=all"), 1, f'{model}: layer "head": weight 5 is not finite: train it again'),
                (None, ("activations=static", "layers=all"), 1, f'{model}: layer "batchnorm1": bias 2 is not finite: train it again'),
                ("head", ("activations=dynamic", "layers=all"), 1, f'{model}: layer "head": bias 1 is not finite: train it again'),
                ("head", ("kind=bfloat16",), 1, f'{model}: layer "head": bias 1 is not finite: train it again')):
            with h5py.File(model, "r+") as f:
                f["model/params/head/weight"][0, 5] = 0 if value is None or value == "head" else value
                f["model/params/batchnorm1/bias"][2] = np.inf if value is None else 0
                f["model/params/head/bias"][1] = np.inf if value == "head" else 0
            for ranks in (0, 2) if value != "head" else (0,):
                out = self.run_trainer("quantize", model, *options, "--accept-unverified", ranks=ranks, status=status)
                self.assertEqual(out.count(said), 1, out)

    def test_refused_jobs_leave_nothing(self):
        """Whatever stands against a run before its first step: no folder is made for it, and none is changed."""
        config = self.config(steps=2, out="new/deep/run")
        with h5py.File(self.dir / "data.h5", "r+") as f:
            f["short"] = f["y"][:5]
        for values, status in ((("device=auto", "train.precision=fp16"), 2),
                               (("device=auto", "run.collectives=nccl"), 2),
                               (("data.train.path=nowhere.h5",), 1),
                               (("data.train.labels=short",), 1),
                               (("data.drop_last=true", "train.batch=5000"), 2)):
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

    # ---- Ranks that open files of their own, as on hosts of their own

    def apart(self, *arguments, status):
        """Rank 0 in the folder here, rank 1 in there; paths below /proc/self/cwd are each rank's own."""
        apps = [["-np", "1", "-wdir", str(self.dir / name), str(self.program), *map(str, arguments)]
                for name in ("here", "there")]
        done = subprocess.run(["mpirun", "--oversubscribe", *apps[0], ":", *apps[1]], cwd=self.dir, text=True,
                              env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def two_places(self, **values):
        """The same data at both; the config of a run on them."""
        config = self.config(data="/proc/self/cwd/data.h5", **values)
        for name in ("here", "there"):
            (self.dir / name).mkdir()
        self.same_again()
        return config

    def same_again(self, file="data.h5"):
        for name in ("here", "there"):
            (self.dir / name / file).write_bytes((self.dir / file).read_bytes())

    def change(self, **arrays):
        """Of the data at there: each of these by its function."""
        self.same_again()
        with h5py.File(self.dir / "there/data.h5", "r+") as f:
            changed = {name: values(f[name][()]) for name, values in arrays.items()}
            for name, values in changed.items():
                del f[name]
                f[name] = values

    def check_told(self, out, said, what="the data"):
        ours = [line for line in out.splitlines() if line.startswith("trainer: error")]
        self.assertEqual(len(ours), 1, out)
        self.assertIn(f"{what} is not the same on all ranks: rank 0 (", ours[0])
        self.assertRegex(ours[0], r"rank 1 \([^)]*\) has \".*\"; unlike rank 0: 1 \(")
        self.assertIn(said, ours[0])

    def test_other_data_on_a_rank(self):
        """What differs is told, and nothing is replaced."""
        config = self.two_places(steps=6)
        for name in ("here", "there"):
            (self.dir / name / "run.yaml").write_text(config.read_text().replace("/proc/self/cwd/", ""))
        self.apart("run.yaml", status=0)  # paths may differ
        before = self.contents("run")
        for said, arrays in (("inputs: 73 samples", {"x": lambda x: x[:73], "y": lambda y: y[:73]}),
                             ("labels: 103 samples", {"y": lambda y: np.where(np.arange(103) == 50, (y + 1) % 4, y)}),
                             ("inputs: 103 samples, float32 (2, 6, 6), checksum", {"x": lambda x: x[:, :, ::-1]}),
                             ("int32", {"y": lambda y: y.astype(np.int32)}),
                             ("data.eval: labels: 40 samples, int64 (), checksum", {"ye": lambda y: y[::-1]})):
            self.change(**arrays)
            with self.subTest(said=said):
                self.check_told(self.apart("run.yaml", "--force", status=1), said)
                self.assertEqual(self.contents("run"), before)

    def test_other_data_of_a_model(self):
        """The same of commands that read a model and data, whether or not they could do without."""
        config = self.two_places(steps=6)
        self.apart(config, status=0)
        model = self.dir / "run/model.h5"
        before = self.contents("run")
        turned = {"ye": lambda y: (y + 1) % 4}
        fewer = {"x": lambda x: x[:73], "y": lambda y: y[:73]}
        short = {"xe": lambda x: x[:30], "ye": lambda y: y[:30]}
        out = "-o", self.dir / "out.npy"
        for arguments, arrays, said in ((("evaluate",), turned, "data.eval: labels: 40 samples"),
                                        (("evaluate",), short, "data.eval: inputs: 30 samples"),
                                        (("predict", *out), turned, "data.eval: labels: 40 samples"),
                                        (("predict", *out), short, "data.eval: inputs: 30 samples"),
                                        (("quantize",), turned, "data.eval: labels: 40 samples"),
                                        (("quantize",), fewer, "data.train: inputs: 73 samples"),
                                        (("prune", "by=taylor", "amount=0.5"), fewer, "data.train: inputs: 73 samples"),
                                        (("fold",), turned, "data.eval: labels: 40 samples"),
                                        (("finetune", "train={steps: 2}"), fewer, "data.train: inputs: 73 samples")):
            self.change(**arrays)
            with self.subTest(arguments=arguments, said=said):
                self.check_told(self.apart(arguments[0], model, *arguments[1:], status=1), said)
                # a training within a stage has a folder, in which it would go on
                self.assertEqual({k: v for k, v in self.contents("run").items() if "finetune" not in str(k)}, before)
        self.assertFalse((self.dir / "out.npy").exists() or (self.dir / "out.npy.part").exists())
        self.same_again()
        for arguments in (("evaluate",), ("quantize",), ("predict", *out)):
            self.apart(arguments[0], model, *arguments[1:], status=0)

    def test_other_data_behind_training(self):
        """A pipeline that goes on behind `train` opens data again."""
        config = self.two_places(steps=6)
        pipeline = "pipeline=[train, quantize]"
        self.apart(config, pipeline, "--until", "train", status=0)
        self.change(y=lambda y: y[::-1])
        self.check_told(self.apart(config, pipeline, "--resume", status=1), "data.train: labels: 103 samples")
        self.assertEqual(list((self.dir / "run").rglob("*quantize*.h5")), [])
        self.same_again()
        self.apart(config, pipeline, "--resume", status=0)
        self.assertEqual(len(list((self.dir / "run").rglob("*quantize*.h5"))), 1)

    def test_other_models_on_a_rank(self):
        """Models that each rank reads; others are rank 0's alone, whatever lies at their path elsewhere."""
        config = self.two_places(steps=6)
        self.apart(config, status=0)
        self.run_trainer(self.config("other", steps=4, data=self.dir / "data.h5"))
        (self.dir / "here/model.h5").write_bytes((self.dir / "run/model.h5").read_bytes())
        (self.dir / "there/model.h5").write_bytes((self.dir / "other/model.h5").read_bytes())
        out = self.apart("benchmark", self.dir / "run/model.h5", "models=[model.h5]", "seconds=0.01", "runs=1",
                         "batches=[1]", status=1)
        self.check_told(out, "model.h5: SHA-256 ", "the model")
        self.apart("evaluate", "model.h5", status=0)
        self.apart(config, "output=../taught", "train.distill={teacher: /proc/self/cwd/model.h5}",
                   "model.init_from=/proc/self/cwd/model.h5", status=0)

    def test_other_data_of_trials(self):
        """Trials beside each other, each on ranks of its own."""
        self.two_places(steps=2)
        sweep = self.dir / "sweep.yaml"
        sweep.write_text(f"config: run.yaml\noutput: {self.dir}/sweep\nranks_per_trial: 1\ngrid: {{train.optimizer.lr: [0.1, 0.01]}}\n")
        self.change(y=lambda y: y[::-1])
        self.check_told(self.apart("sweep", sweep, status=1), "data.train: labels: 103 samples")
        self.assertFalse((self.dir / "sweep").exists())
        self.same_again()
        self.apart("sweep", sweep, status=0)

    def test_other_texts_on_a_rank(self):
        """Columns of the same codes that stand for other texts."""
        for name, words in (("here", ("ant", "bee")), ("there", ("ant", "cow"))):
            (self.dir / name).mkdir()
            rows = "".join(f"{i},{words[i % 2]}\n" for i in range(40))
            (self.dir / name / "data.csv").write_text("size,kind\n" + rows)
        config = self.dir / "table.yaml"
        config.write_text(f"""
name: table
device: cpu
output: {self.dir}/run
data:
  train: {{path: /proc/self/cwd/data.csv, inputs: [size], labels: kind}}
  table: {{categories: {{kind: auto}}}}
model: {{input: [1], layers: [{{linear: {{out: 2}}}}], loss: cross_entropy}}
train: {{steps: 2, batch: 8, optimizer: {{sgd: {{lr: 0.01}}}}}}
""")
        self.check_told(self.apart(config, status=1), "cow")


if __name__ == "__main__":
    main()
