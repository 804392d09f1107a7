"""Memory before it is taken: one figure in plan, in a run's refusal and in its records; what is refused, and goes on
all the same; plans for machines elsewhere, in few lines and as JSON."""
import json
import pathlib
import re
import subprocess
import time

from harness import SOURCE, Case, main

BIG = """
name: big
device: cpu
output: run
data:
  train: {format: synthetic, samples: 96}
  eval: {format: synthetic, samples: 32}
model:
  input: [3, 24, 24]
  layers:
    - conv2d: {out: 32, kernel: 3, padding: 1, bias: false}
    - batchnorm
    - relu
    - conv2d: {out: 32, kernel: 3, padding: 1}
    - relu
    - global_avgpool
    - flatten
    - linear: {out: 4}
  loss: cross_entropy
train: {steps: 1, batch: 96}
run: {threads: 1}
"""


PROGRAM = 32 << 20  # what each rank's program takes to work
# kB: all of the process that answers one sample of ResNet-20 at a time: its share of the program and of oneDNN that it
# touches, 0.27 M weights, one sample's arena. It is some 28000 in float32 and 23000 in 8 bits; ONNX Runtime's is 64000.
ANSWERS = {"model.h5": 38000, "stages/01-fold.h5": 38000, "stages/02-quantize.h5": 32000}


class Memory(Case):
    def setUp(self):
        super().setUp()
        self.big = self.dir / "big.yaml"
        self.big.write_text(BIG)

    def test_one_figure(self):
        """What plan counts is what a run predicts and holds, and what it is refused by."""
        for ranks in (1, 2):
            plan = self.planned(self.big, "--ranks", ranks)
            self.run_trainer(self.big, "--force", ranks=ranks)
            end = self.records(event="end")[-1]
            self.assertEqual(round(end["predicted_mb"] * 1e6), plan["memory"]["host"]["total"])
            self.assertEqual(end["held_mb"], end["predicted_mb"])
            text = self.tool("plan", self.big, "--ranks", ranks, "--memory", "20MB", "run.overcommit_memory=true")
            refused = self.run_trainer(self.big, "--force", ranks=ranks, status=1, env={"TRIREME_MEM_AVAILABLE": "20000000"})
            figure = re.search(r"does not fit: ([\d.]+ MB) needed", text)[1]
            self.assertEqual(re.search(r"ranks? needs? ([\d.]+ MB) \(trainer plan\)", refused)[1], figure)
            if ranks == 1:
                self.assertEqual(plan["fit"]["needed_bytes"], plan["memory"]["host"]["total"])

    def test_refused(self):
        """Before anything is written; with what is short, what would help, which does, and the way to go on."""
        plan, with_it = self.planned(self.big, "--ranks", 2, "--memory", "1MB"), self.planned(self.big, "--ranks", 2, "train.accumulate=4")
        need, less = (p["fit"]["needed_bytes"] for p in (plan, with_it))
        self.assertLess(less, need)
        self.assertIn({"set": "train.accumulate=4", "needed_bytes": less, "fits": False}, plan["fit"]["advice"])
        room = {"TRIREME_MEM_AVAILABLE": str(less + 2 * PROGRAM + 1000)}
        out = self.run_trainer(self.big, status=1, env=room)
        self.assertEqual(out.count("training does not fit this node: its 2 ranks need"), 1, out)
        self.assertRegex(out, r"are available, of which programs take 67.1 MB to work: [\d.]+ k?M?B are short; less take train\.accumulate=2 ")
        self.assertRegex(out, r"train\.accumulate=4 [\d.]+ MB \(fits\)")
        self.assertIn("run.overcommit_memory=true trains all the same", out)
        self.assertFalse((self.dir / "run").exists())
        batch = re.search(r"largest batch that fits: (\d+)", out)[1]
        for setting in ("train.accumulate=4", f"train.batch={batch}"):
            self.assertNotIn("does not fit", self.run_trainer(self.big, setting, "--force", env=room))
        self.run_trainer(self.big, f"train.batch={int(batch) + 2}", "--force", status=1, env=room)
        out = self.run_trainer(self.big, "run.overcommit_memory=true", "--force", env=room)
        self.assertEqual(out.count("training does not fit this node"), 1)
        self.assertEqual(self.records(event="end")[-1]["steps"], 1)
        self.assertNotIn("overcommit", out)

    def test_data_counts_once(self):
        """Samples that are held already when the job is judged are part of what it needs, and of what there is."""
        config = self.config(samples=64, steps=1)
        need = json.loads(self.tool("plan", config, "--ranks", 2, "--json"))["fit"]["needed_bytes"]
        held = json.loads(self.tool("plan", config, "--ranks", 2, "--json"))["memory"]["host"]["data"]
        self.assertGreater(held, 0)
        self.run_trainer(config, env={"TRIREME_MEM_AVAILABLE": str(need - 2 * held + 2 * PROGRAM)})
        self.run_trainer(config, "--force", status=1, env={"TRIREME_MEM_AVAILABLE": str(need - 2 * held + 2 * PROGRAM - 100)})

    def test_evaluation_alone(self):
        """A job that evaluation makes large is refused by its need, however little training takes."""
        values = ("train.batch=8", "train.eval={batch: 480}", "data.eval={format: synthetic, samples: 480}")
        need, less = (self.planned(self.big, "--ranks", 2, *values[:n])["fit"]["needed_bytes"] for n in (3, 1))
        self.assertGreater(need, 3 * less)
        refused = self.run_trainer(self.big, *values, status=1, env={"TRIREME_MEM_AVAILABLE": str(need + 2 * PROGRAM - 4096)})
        self.assertIn("training does not fit this node", refused)
        self.run_trainer(self.big, *values, env={"TRIREME_MEM_AVAILABLE": str(need + 2 * PROGRAM)})

    def test_never_whole(self):
        """A batch of evaluation that is larger than all samples takes what these do, in training, in stages and in commands; a rank that
        gets the short one alone takes that. Numbers are the same bits on any number of ranks."""
        config = self.config(every=50, steps=6)
        plan = json.loads(self.tool("plan", config, "train.eval.batch=40", "--ranks", 2, "--json"))
        most = ["train.eval.batch=2147483647"]
        self.assertEqual(json.loads(self.tool("plan", config, *most, "--ranks", 2, "--json"))["memory"], plan["memory"])
        self.run_trainer(config, *most, "run.memory_limit=1GiB", "pipeline=[train, fold]")
        end = self.records(event="end")[-1]
        self.assertEqual((end["held_mb"], round(end["predicted_mb"] * 1e6)), (end["predicted_mb"], plan["memory"]["host"]["total"]))
        fold, said = self.dir / "run/stages/01-fold.h5", {}
        for ranks in (1, 2, 3, 4):
            for batch in (2147483647, 40, 33):
                self.run_trainer("evaluate", fold, f"train.eval.batch={batch}", "-o", "said.json", "--force", "--quiet", ranks=ranks)
                self.run_trainer("predict", fold, f"train.eval.batch={batch}", "--data", "eval", "-o", "said.csv", "--force", ranks=ranks)
                found = [(self.dir / f"said.{kind}").read_text() for kind in ("json", "csv")]
                self.assertEqual(found, said.setdefault(min(batch, 40), found), f"{ranks} ranks, batch {batch}")
            self.run_trainer("quantize", fold, *most, "layers=all", "samples=70", "--force", ranks=ranks)

    def test_advice(self):
        """What saves something is advised, and nothing else: a smaller batch to evaluate, where that is what takes most."""
        values = ("train.batch=8", "train.eval={batch: 480}", "data.eval={format: synthetic, samples: 480}", "--ranks", 2)
        fit = self.planned(self.big, *values, "--memory", "50MB")["fit"]
        advice = {a["set"]: a["needed_bytes"] for a in fit["advice"]}
        less = self.planned(self.big, *values, "train.eval.batch=8")["fit"]["needed_bytes"]
        self.assertEqual(advice["train.eval.batch=8"], less)
        self.assertTrue(all(v < 0.99 * fit["needed_bytes"] for v in advice.values()), fit)
        self.assertNotIn("train.accumulate=2", advice)
        # who follows what is said to fit has a job that fits; where nothing is known that would, a list is not begun
        fit = self.planned(self.big, "--memory", "92MB")["fit"]
        followed = [a["set"] for a in fit["advice"] if a["fits"]]
        self.assertTrue(followed, fit)
        for setting in followed:
            self.assertTrue(self.planned(self.big, "--memory", "92MB", setting)["fit"]["fits"], setting)
        wide = ("model={input: [2048], layers: [linear: {out: 4096}, linear: {out: 4}], loss: cross_entropy}", "train.batch=1")
        text = self.tool("plan", self.big, *wide, "--memory", "90MB", "--summary", "run.overcommit_memory=true")
        self.assertIn("\n  what would take less  a smaller model, or an optimizer with less state\n", text)

    def test_teacher(self):
        """A teacher's share is part of the figure."""
        small = self.config("teacher", samples=64, steps=2)
        self.run_trainer(small, ranks=1)
        values = ("train.distill={teacher: %s/teacher/model.h5}" % self.dir, f"output={self.dir}/taught", "run.threads=1")
        plans = [json.loads(self.tool("plan", small, "--json", *v)) for v in ((), values)]
        need, less = plans[1]["fit"]["needed_bytes"], plans[0]["fit"]["needed_bytes"]
        self.assertGreater(need, less)
        held = plans[1]["memory"]["host"]["data"]
        refused = self.run_trainer(small, *values, ranks=1, status=1, env={"TRIREME_MEM_AVAILABLE": "1000"})
        self.assertIn("training does not fit this node: its 1 rank needs", refused)
        self.run_trainer(small, *values, ranks=1, env={"TRIREME_MEM_AVAILABLE": str(need - held + PROGRAM)})
        self.assertEqual(round(self.records("taught", "end")[-1]["predicted_mb"] * 1e6), need)

    def test_other_machines(self):
        """Ranks on nodes that are not here, as a run on as many pretended ones has it."""
        plan = self.planned(self.big, "--nodes", 2, "--ranks-per-node", 2)
        self.assertEqual((plan["ranks"], plan["nodes"], plan["ranks_per_node"]), (4, 2, 2))
        for same in (("--nodes", 2), ("--ranks-per-node", 2)):
            again = self.planned(self.big, *same, "--ranks", 4)
            for key in ("nodes", "ranks_per_node", "memory", "communication"):
                self.assertEqual(again[key], plan[key])
        self.assertGreater(plan["communication"]["network_bytes"], 0)
        self.assertEqual(self.planned(self.big, "--ranks", 4)["communication"]["network_bytes"], 0)
        self.run_trainer(self.big, ranks=4, env={"TRIREME_FAKE_NODES": "2"})
        self.assertEqual(round(self.records(event="end")[-1]["predicted_mb"] * 1e6), plan["memory"]["host"]["total"])
        judged = [self.planned(self.big, "--nodes", n, "--ranks-per-node", 4, "--memory", "1GB")["fit"] for n in (1, 8)]
        self.assertTrue(all(f["fits"] and f["ranks"] == 4 for f in judged))
        self.assertLess(judged[1]["needed_bytes"], judged[0]["needed_bytes"])
        text = self.tool("plan", self.big, "--nodes", 8, "--ranks-per-node", 4)
        self.assertIn("big: 32 ranks on 8 nodes, batch 96, fp32\n", text)
        self.assertIn("by 4 ranks on each node", text)
        self.assertNotIn("or, across nodes", text)
        for bad in (("--nodes", 3, "--ranks", 4), ("--ranks-per-node", 3, "--ranks", 4), ("--ranks-per-node", 8, "--ranks", 4)):
            self.assertIn("expected as many on each node", self.tool("plan", self.big, *bad, status=2))
        self.assertIn("--nodes 0: expected a number of nodes", self.tool("plan", self.big, "--nodes", 0, status=2))

    def test_summary(self):
        text = self.tool("plan", self.big, "--ranks", 2, "--memory", "1GB", "--summary")
        self.assertLess(len(text.splitlines()), 8, text)
        whole = self.tool("plan", self.big, "--ranks", 2, "--memory", "1GB")
        self.assertEqual(re.search(r"a rank holds ([\d.]+ MB)", text)[1], re.search(r"\n  total +([\d.]+ MB)", whole)[1])
        self.assertIn(re.search(r"\n(  fits: .*? needed)", text)[1], whole)
        self.assertIn("give one of them", self.tool("plan", self.big, "--summary", "--json", status=2))

    def test_json(self):
        """Every key is one that docs/records.md names, and the other way round; notes are texts."""
        section = re.search(r"## `trainer plan --json`\n(.*?)(?:\n## |\Z)", (SOURCE / "docs/records.md").read_text(), re.S)[1]
        documented = {k for row in re.findall(r"(?m)^\| (`.*?) \|", section) for k in re.findall(r"`([\w.]+)`", row)}
        short = self.planned(self.big, "--ranks", 2, "--memory", "20MB")
        found = set()
        for key, value in short.items():
            if isinstance(value, dict) and "memory" not in key:
                found |= {f"{key}.{k}" for k in value}
            found.add(key)
        found |= {f"fit.advice.{k}" for row in short["fit"]["advice"] for k in row}
        found |= {f"fit.{k}" for k in self.planned(self.big, "run.memory_limit=1MB")["fit"]}
        self.big.write_text(BIG.replace("linear: {out: 4}", "sklinear: {out: 4, terms: 1, rank: 2}"))
        sketched = self.planned(self.big)["sketched_layers"]
        self.big.write_text(BIG)
        found |= {"sketched_layers"} | {f"sketched_layers.{k}" for row in sketched for k in row}
        self.assertEqual(found - documented, set())
        self.assertEqual(documented - found, {"flop_per_sample.teacher"})
        for space in ("device", "host"):
            sizes = short["memory"][space]
            self.assertEqual(sizes["total"], sum(v for k, v in sizes.items() if k != "total"))
        self.assertEqual(short["steps_per_epoch"], 1)
        gone = self.planned(self.big, "data.train={path: gone.h5, inputs: x, labels: y}")
        self.assertIn("gone.h5", gone["notes"][0])
        self.assertNotIn("train_samples", gone)

    def test_measured(self):
        """A batch that a stage would be measured with, and that does not fit, is refused by its key before anything is."""
        self.run_trainer(self.config(steps=1, every=1), ranks=0)
        for stage, key, options in (("profile", "batches: 200000", ["mode=inference", "batches=[1, 200000]"]),
                                    ("profile", "train_batch: 200000", ["mode=train", "train_batch=200000"]),
                                    ("benchmark", "batches: 200000", ["batches=[1, 200000]"]),
                                    ("quantize", "batch: 65536", ["layers=auto", "batch=65536", "samples=16"])):
            out = self.run_trainer(stage, "run/model.h5", *options, ranks=1, status=1, env={"TRIREME_MEM_AVAILABLE": "50000000"})
            self.assertRegex(out, rf"pipeline.0.{stage}.{key} samples at once: [\d.]+ [MG]B of memory are needed, 50.0 MB are available")
            self.assertFalse((self.dir / "run" / f"model-{stage}.h5").exists())
            self.assertFalse((self.dir / "run" / "machine.json").exists())

    def peak(self, *arguments):
        """Of a trainer that is alone: the most memory that was resident, in kB, which the kernel counts; it is read until the
        end, so what the last thousandth of a second adds is missed."""
        process = subprocess.Popen([str(self.program), *map(str, arguments)], cwd=self.dir, env=self.environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        most = 0
        while process.poll() is None:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            most = max([most, *(int(kb) for kb in re.findall(r"VmHWM:\s+(\d+) kB", status))])
            time.sleep(0.001)
        self.assertEqual(process.returncode, 0)
        return most

    def test_answers(self):
        """A process that answers with ResNet-20 takes half of what others take, as trained, folded and in 8 bits."""
        self.run_trainer(SOURCE / "configs/bench/resnet20.yaml", f"output={self.dir}/run", "device=cpu", "train.steps=1", "train.batch=32",
                         "data.train.samples=512", "pipeline=[train, {fold: {samples: 32}}, {quantize: {layers: all, samples: 32}}]", "run.threads=1", ranks=1)

        def predict(file, batch):
            return self.peak("predict", self.dir / "run" / file, "--data", "train", "-o", "y.npy", "--raw", "--force", f"train.batch={batch}",
                             "run.threads=1")
        for file, bound in ANSWERS.items():
            with self.subTest(file):
                most = predict(file, 1)
                self.assertLess(most, bound)
                self.assertGreater(predict(file, 512), bound)  # it is seen


if __name__ == "__main__":
    main()
