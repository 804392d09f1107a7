"""`trainer compare`: runs beside each other, whatever became of them."""
import csv
import json
import re
import shutil
import xml.etree.ElementTree

from harness import Case, main


class Compare(Case):
    def runs(self):
        config = self.config("a", steps=30, every=10)
        self.run_trainer(config)
        self.run_trainer(config, f"output={self.dir}/b", "train.optimizer={sgd: {lr: 0.1}}", "train.steps=20", ranks=1)
        return self.dir / "a", self.dir / "b"

    def compared(self, *runs):
        self.tool("compare", *runs, "-o", "c.json", "--force")
        return json.loads((self.dir / "c.json").read_text())["runs"]

    def test_table(self):
        """Keys that differ and no others; results are those of the records."""
        a, b = self.runs()
        text = self.tool("compare", a, b)
        config, results = text.split("\nresults\n")
        rows = {line.split()[0]: line.split()[1:] for line in config.split("config\n")[1].splitlines()}
        self.assertEqual(rows["train.steps"], ["30", "20"])
        self.assertEqual(rows["train.optimizer.sgd.lr"], ["-", "0.1"])
        self.assertEqual(rows["train.optimizer.adamw.lr"], ["0.005", "-"])
        self.assertEqual({k for k in rows if not k.startswith("train.optimizer.")}, {"train.steps"})
        ends = [self.records(n, "end")[-1] for n in "ab"]
        evals = [self.records(n, "eval") for n in "ab"]
        found = self.compared(a, b)
        for run, end, each in zip(found, ends, evals):
            r = run["results"]
            self.assertEqual([r[k] for k in ("steps", "seconds", "samples_per_s")],
                             [end[k] for k in ("steps", "seconds", "samples_per_s")])
            self.assertEqual(r["last_accuracy"], each[-1]["accuracy"])
            self.assertEqual(r["best_accuracy"], max(e["accuracy"] for e in each))
            best = min(each, key=lambda e: e["loss"])
            self.assertEqual((r["best_loss"], r["best_loss_step"]), (best["loss"], best["step"]))
            self.assertEqual(run["status"], "done")
            self.assertEqual(run["evaluation"]["loss"], [e["loss"] for e in each])
        self.assertEqual([f["training"]["loss"] for f in found], [self.losses("a"), self.losses("b")])
        self.assertEqual(found[0]["results"]["parameters"], self.records("a", "start")[0]["parameters"])
        for line in results.splitlines():
            self.assertEqual(len(re.split(r"  +", line.strip())), 3, line)
        self.assertEqual(json.loads(self.tool("compare", a, b, "--json"))["runs"], found)

    def test_widths(self):
        """Columns stand below each other, whatever letters a path has; of a long value the beginning is shown."""
        config = self.config("a", steps=3)
        self.run_trainer(config, f"output={self.dir}/größer", "data.class_names=[" + ", ".join(f"class-{k}" for k in range(4)) + "]", ranks=0)
        self.run_trainer(config, ranks=0)
        text = self.tool("compare", "größer", "a")
        lines = [line for line in text.splitlines() if line.startswith(" ")]
        self.assertEqual(len({len(line) for line in lines}), 1, text)
        self.assertRegex(text, r"data.class_names +\[class-0, class-1, class-2, c\.\.\. +-\n")
        self.tool("compare", "größer", "a", "-o", "c.csv")
        self.assertIn("[class-0, class-1, class-2, class-3]", (self.dir / "c.csv").read_text())

    PIPELINE = """
name: p
output: out
device: cpu
data: {train: {format: synthetic, samples: 64}}
model: {input: [6], layers: [linear: {out: 16, name: wide}, relu, linear: {out: 3}], loss: cross_entropy}
train: {steps: 2, batch: 4, optimizer: {sgd: {lr: 0.1}}}
"""

    def test_pipelines(self):
        """Stages by their names, in whatever places; of those that some run lacks, what is not their default. No row of a part of
        the runs is empty."""
        (self.dir / "p.yaml").write_text(self.PIPELINE)
        names = ["a" * 30, "b" * 30, "c" * 30, "d" * 30]
        finetune = "{finetune: {train: {steps: 1}}}"
        for name, stages in zip(names, (f"[train, {{prune: {{amount: 0.2}}}}, {finetune}]", "[train]", f"[train, fold, {{prune: {{amount: 0.5}}}}, {finetune}]",
                                        f"[train, {finetune}, {{finetune: {{train: {{steps: 2}}}}}}]")):
            self.run_trainer("p.yaml", f"output={name}", f"pipeline={stages}", "--quiet", ranks=0)
        want = {"pipeline": ["train, prune, finetune", "train", "train, fold, prune, finetune", "train, finetune, finetune"],
                "pipeline.prune.amount": ["0.2", None, "0.5", None], "pipeline.finetune.train.steps": ["1", None, "1", "1"],
                "pipeline.finetune.2.train.steps": [None, None, None, "2"]}
        found = self.compared(*names)
        self.assertEqual({k: [r["config"].get(k) for r in found] for r in found for k in r["config"]}, want)
        first, second = self.tool("compare", *names).split("\n\n")
        self.assertEqual(first.split()[:2], names[:2])
        for text in (first, second):
            for line in text.splitlines():
                self.assertFalse(re.fullmatch(r" +\S+( +-)+", line), text)
        self.assertNotIn("pipeline.finetune.2", first)

    TEXT = """
name: t
output: t
device: cpu
data: {train: {path: book.txt, format: text}, eval: {path: book.txt, format: text}}
model: {input: [16], layers: [embedding: {num: 256, dim: 8}, linear: {out: 256}], loss: cross_entropy}
train: {steps: 8, batch: 8, eval: {every_steps: 4}, optimizer: {adamw: {lr: 0.01}}}
"""

    def test_text(self):
        """What is measured of text, by records and by run files alike."""
        (self.dir / "book.txt").write_text("it was the best of times, it was the worst of times. " * 40)
        (self.dir / "t.yaml").write_text(self.TEXT)
        self.run_trainer("t.yaml", ranks=0)
        recorded, file = self.compared("t", "t/model.h5")
        evals = self.records("t", "eval")
        for run in (recorded, file):
            for metric in ("perplexity", "bits_per_byte"):
                self.assertEqual(run["evaluation"][metric], [e[metric] for e in evals])
                self.assertEqual(run["results"]["best_" + metric], min(e[metric] for e in evals))
        self.assertRegex(self.tool("compare", "t", "t/model.h5"), r"best_perplexity +[\d.]+ +[\d.]+\n")
        self.tool("compare", "t", "t/model.h5", "-o", "p.svg", "--metric", "perplexity")

    def test_same(self):
        config = self.config("a", steps=3)
        for name in "ab":
            self.run_trainer(config, f"output={self.dir}/{name}", "--force", ranks=1)
        text = self.tool("compare", self.dir / "a", self.dir / "b")
        self.assertIn("\nconfig: the same\nresults\n", text)

    def test_files(self):
        """A plot with a curve for each run, a table with a row each; nothing is written over unasked."""
        a, b = self.runs()
        self.tool("compare", a, b, "-o", "curves.svg")
        drawn = (self.dir / "curves.svg").read_text()
        xml.etree.ElementTree.fromstring(drawn)
        for run in (a, b):
            self.assertIn(f"{run}, evaluation", drawn)
        self.tool("compare", a, b, "-o", "accuracy.svg", "--metric", "accuracy")
        self.assertNotIn(", evaluation", (self.dir / "accuracy.svg").read_text())
        self.assertIn("none of the runs has measured auc", self.tool("compare", a, b, "-o", "no.svg", "--metric", "auc", status=1))
        self.assertFalse((self.dir / "no.svg").exists())
        self.tool("compare", a, b, "-o", "table.csv")
        with open(self.dir / "table.csv", newline="") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([(r["run"], r["train.steps"], float(r["steps"])) for r in rows], [(str(a), "30", 30), (str(b), "20", 20)])
        self.assertIn("is there", self.tool("compare", a, b, "-o", "table.csv", status=2))
        self.tool("compare", a, b, "-o", "table.csv", "--force")

    def test_unfinished(self):
        """Stopped, killed, without an evaluation; a run file has what is in it."""
        config = self.config("a", steps=20000, every=10)
        self.stop("a", 15, config, ranks=2)
        config.write_text(re.sub(r"(?m)^ +eval: .*\n", "", config.read_text()))
        self.run_trainer(config, f"output={self.dir}/b", "train.steps=4", ranks=1)
        lines = (self.dir / "b/metrics.jsonl").read_text().splitlines()
        (self.dir / "b/metrics.jsonl").write_text("\n".join(line for line in lines if '"event":"end"' not in line) + '\n{"ev')
        stopped, killed, file = self.compared(self.dir / "a", self.dir / "b", self.dir / "b/model.h5")
        self.assertEqual(stopped["status"], self.records("a", "end")[-1]["reason"])
        self.assertGreaterEqual(stopped["results"]["steps"], 15)
        self.assertEqual(killed["status"], "unfinished")
        self.assertEqual(killed["results"]["steps"], 4)
        self.assertFalse([k for k in killed["results"] if "best" in k])
        self.assertEqual((file["status"], file["results"]["steps"]), ("run file", 4))
        self.assertEqual(file["results"]["parameters"], killed["results"]["parameters"])
        self.assertEqual(file["training"]["loss"], killed["training"]["loss"])
        self.assertNotIn("loss", file["evaluation"])

    def test_gone_on(self):
        """Killed and gone on with: what the last start did counts, and nothing behind the step that it began from."""
        config = self.config("a", steps=20, every=5)
        self.run_trainer(config, ranks=1)
        metrics = self.dir / "a/metrics.jsonl"
        killed = [line for line in metrics.read_text().splitlines() if '"event":"end"' not in line]  # by kill -9
        (self.dir / "a/checkpoints/step-00000020.h5").unlink()
        (self.dir / "a/model.h5").unlink()
        metrics.write_text("\n".join(killed) + "\n")
        self.run_trainer(config, "--resume", "train.steps=25", ranks=1)
        starts = self.records("a", "start")
        self.assertEqual((len(starts), starts[1]["step"], len(self.records("a", "end"))), (2, 15, 1))
        shutil.copytree(self.dir / "a", self.dir / "b")
        lines = (self.dir / "b/metrics.jsonl").read_text().splitlines()
        second = max(i for i, line in enumerate(lines) if '"event":"start"' in line)
        (self.dir / "b/metrics.jsonl").write_text("\n".join(lines[:second + 1] + ['{"event":"step","step":1e999,"loss":1}']) + "\n")
        done, begun = self.compared(self.dir / "a", self.dir / "b")
        self.assertEqual((done["status"], done["results"]["steps"]), ("done", 25))
        self.assertEqual(done["results"]["samples_per_s"], self.records("a", "end")[-1]["samples_per_s"])
        self.assertEqual(done["training"]["step"], [*range(1, 26)])
        self.assertEqual((begun["status"], begun["results"]["steps"]), ("unfinished", 15))
        self.assertEqual(begun["training"]["step"], [*range(1, 16)])
        self.assertEqual(begun["evaluation"]["step"], [10])

    def test_sweep(self):
        """A sweep's folder stands for its trials, those that took over another's training included."""
        self.config("run", steps=6, every=3)
        (self.dir / "sweep.yaml").write_text("config: run.yaml\noutput: sweep\nset: {pipeline: [train, {prune: {amount: 0.1}}]}\n"
                                             "grid: {train.optimizer.lr: [0.005, 0.01], pipeline.prune.amount: [0.2, 0.5]}\n")
        self.run_trainer("sweep", "sweep.yaml", ranks=1)
        found = self.compared("sweep")
        self.assertEqual([r["run"] for r in found], [f"sweep/trial-{k:03}" for k in range(4)])
        self.assertEqual([r["config"]["train.optimizer.adamw.lr"] for r in found], ["0.005", "0.005", "0.01", "0.01"])
        self.assertEqual([r["results"]["steps"] for r in found], [6] * 4)

    def test_wrong(self):
        a = self.config("a", steps=2)
        self.run_trainer(a, ranks=1)
        run = self.dir / "a"
        (self.dir / "empty").mkdir()
        for arguments, status, said in (((), 2, "which runs?"), ((run,), 2, "one run"), ((run, "gone"), 1, "gone is not there"),
                                        ((run, "empty"), 1, "empty: no run folder"), ((run, a), 1, "a.yaml"),
                                        ((run, run, "-o", "x.pdf"), 2, "ends in .svg, .csv or .json"),
                                        ((run, run, "--metric", "acuracy", "-o", "x.svg"), 2, 'did you mean "accuracy"'),
                                        ((run, run, "--metric", "loss"), 2, "-o FILE.svg"), ((run, run, "--jsn"), 2, "--jsn")):
            self.assertIn(said, self.tool("compare", *arguments, status=status))

    def test_records_that_cannot_be_read(self):
        """Too large, or a folder: the run goes by its run file; without one it is left out, and the others are compared."""
        runs = self.runs()
        shutil.copytree(runs[1], self.dir / "c")
        metrics = runs[0] / "metrics.jsonl"
        with metrics.open("ab") as f:
            f.truncate((64 << 20) + 1)
        for folder in (False, True):
            if folder:
                metrics.unlink()
                metrics.mkdir()
            out = self.run_trainer("compare", *runs, "-o", "c.json", "--force", ranks=0)
            self.assertRegex(out, r"warning: compare: without what \S*/a recorded: \S*metrics\.jsonl")
            found = json.loads((self.dir / "c.json").read_text())["runs"]
            self.assertEqual([r["status"] for r in found], ["run file", "done"])
            self.assertEqual(found[0]["results"]["steps"], 30)
        (runs[0] / "model.h5").unlink()
        shutil.rmtree(runs[0] / "checkpoints")
        out = self.run_trainer("compare", *runs, self.dir / "c", "-o", "c.json", "--force", ranks=0)
        self.assertRegex(out, r"warning: compare: \S*/a is left out: ")
        self.assertEqual(len(json.loads((self.dir / "c.json").read_text())["runs"]), 2)
        self.assertIn("1 of 2 runs cannot be read", self.tool("compare", *runs, status=1))


if __name__ == "__main__":
    main()
