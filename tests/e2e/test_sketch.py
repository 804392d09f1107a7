"""Layers that are learned in sketches: trained, resumed, on any number of ranks, in files; the stage that makes them of dense
ones, in a pipeline, by hand and in a sweep; what plan says of them."""
import csv
import json
import os
import re
import signal

import h5py
import numpy as np

from harness import SOURCE, main
from stages import StageCase

MODEL = """
name: sketched
output: {out}
data:
  train: {data}
  eval: {data}
  workers: {workers}
  shuffle: {shuffle}
model:
  input: [1, 6, 6]
  layers:
    - skconv2d: {{out: 12, kernel: 3, terms: 1, rank: 3, padding: 1, name: filters}}
    - relu
    - flatten
    - {kind}: {{out: 40, {terms}name: wide}}
    - relu
    - linear: {{out: 5, name: head}}
  loss: cross_entropy
train: {{steps: {steps}, batch: {batch}, checkpoint: {{every_steps: {every}}}}}
"""
SKETCHED = dict(kind="sklinear", terms="terms: 2, rank: 4, ")
DENSE = dict(kind="linear", terms="")


class Sketch(StageCase):
    def data(self):
        return "{format: synthetic, samples: 96}"

    def write(self, name="run", **values):
        path = self.dir / f"{name}.yaml"
        path.write_text(MODEL.format(**{**dict(out=self.dir / name, data=self.data(), workers=1, shuffle="true", steps=12,
                                               batch=16, every=4), **SKETCHED, **values}))
        return path

    def parameters(self, path):
        return {k: v for k, v in self.arrays(path).items() if k.startswith("model/") and v.dtype == np.float32}

    def test_training(self):
        """A resumed run has the bits of one in one piece; two ranks learn the same; a file has no signs."""
        self.run_trainer(self.write(), "run.threads=1", ranks=1)
        whole = self.parameters(self.dir / "run/model.h5")
        self.assertEqual({k for k in whole if "head" not in k}, {f"model/params/{k}" for k in (
            "filters/s1", "filters/bias", "wide/s1", "wide/s2", "wide/bias")})
        self.assertEqual(sum(v.size for v in whole.values()), 6 * 9 + 12 + 8 * (432 + 40) + 40 + 205)
        self.run_trainer(self.write("part"), "run.threads=1", "train.steps=7", ranks=1)
        self.run_trainer(self.write("part"), "run.threads=1", "--resume", ranks=1)
        for name, value in self.parameters(self.dir / "part/model.h5").items():
            self.assertEqual(value.tobytes(), whole[name].tobytes(), name)
        self.run_trainer(self.write("two"), "run.threads=1", ranks=2)
        for name, value in self.parameters(self.dir / "two/model.h5").items():
            np.testing.assert_allclose(value, whole[name], rtol=2e-3, atol=2e-5, err_msg=name)

    def test_plan(self):
        """Beside the dense layer; a note where the sketch is larger."""
        layers = {r["layer"]: r for r in json.loads(self.tool("plan", self.write(), "--json"))["sketched_layers"]}
        self.assertEqual(layers["wide"]["weights"], 8 * 472)
        self.assertEqual(layers["wide"]["dense_weights"], 432 * 40)
        self.assertEqual(layers["wide"]["multiply_adds"], 16 * 472)
        self.assertEqual(layers["filters"]["multiply_adds"], 36 * 6 * (9 + 12))
        self.assertEqual(layers["filters"]["dense_multiply_adds"], 36 * 9 * 12)
        # weights, gradients, AdamW's two moments; of the sketch its two whole matrices, and 16 samples' rows between the products
        self.assertEqual(layers["wide"]["dense_training_bytes"], 4 * 4 * 432 * 40)
        self.assertEqual(layers["wide"]["training_bytes"], 4 * 4 * 8 * 472 + 4 * 16 * 472 + 4 * 16 * 16)
        text = self.tool("plan", self.write(), "model.layers.3.sklinear.rank=40")
        self.assertRegex(text, r"note: layer wide: .* 219 % of the weights and 437 % of the arithmetic of the dense 40 x 432")
        self.assertIn("note: layer filters: its sketch, terms 1 of rank 3, has 50 % of the weights and 117 %", text)
        self.assertNotIn("note: layer", self.tool("plan", self.write(), "model.layers.0.skconv2d.rank=2"))

    def test_stage(self):
        """Least squares, the error by layer, training behind it, an export that computes the same; budgets."""
        out = self.run_trainer(self.write(**DENSE), "pipeline=[train, {sketch: {match: w*, terms: 2, rank: 4}}, "
                               "{finetune: {train: {steps: 6}}}, {export: {format: onnx}}, report]")
        self.assertNotIn("sketch: layer", out)
        with h5py.File(self.stage("01-sketch.h5"), "r") as f:
            layers = f["stages/01-sketch/layers"]
            error, before, after = (layers[k][()] for k in ("error", "parameters_before", "parameters"))
        self.assertEqual((before.tolist(), after.tolist()), ([432 * 40], [8 * 472]))
        self.assertTrue(0.3 < error[0] < 1, error)
        made = self.parameters(self.stage("01-sketch.h5"))
        parent = self.parameters(self.dir / "run/model.h5")
        bias = next(k for k in parent if "wide" in k and "bias" in k)
        self.assertEqual(made[bias].tobytes(), parent[bias].tobytes())
        tuned = self.parameters(self.stage("02-finetune.h5"))
        self.assertEqual(set(tuned), set(made))
        self.assertTrue(any((tuned[k] != made[k]).any() for k in made if "s2" in k))
        self.assertIn("wide", (self.dir / "run/report.html").read_text())
        self.assertRegex(self.tool("inspect", self.stage("01-sketch.h5"), "--json"), r"sklinear: .{1,60}seed: \d+")
        miss = self.run_trainer(self.write("miss", **DENSE), "pipeline=[train, {sketch: {match: wide, rank: 1, budget: {size: 0.01}}}]", status=1)
        self.assertIn("size", miss)

    def test_by_hand(self):
        """`trainer sketch FILE`: the same on any number of ranks; what is refused; what warns."""
        self.run_trainer(self.write(**DENSE))
        model, made = self.dir / "run/model.h5", self.dir / "run/model-sketch.h5"
        for fit in ("least_squares", "sketch"):
            said = self.run_trainer("sketch", model, "rank=3", f"fit={fit}", "--force", ranks=1)
            self.assertRegex(said, "stage .*-sketch wrote .*model-sketch.h5\n")
            one = self.parameters(made)
            self.assertIn("s2", "".join(one))
            self.run_trainer("sketch", model, "rank=3", f"fit={fit}", "--force", ranks=3)
            for name, value in self.parameters(made).items():
                self.assertEqual(value.tobytes(), one[name].tobytes(), name)
        out = self.run_trainer("sketch", model, "match=[wide, haed]", "--force", status=2)
        self.assertIn('did you mean "head"', out)
        self.assertIn("layer head: its sketch, terms 1 of rank 4, has 90 % of the weights and 180 % of the arithmetic of the dense 5 x 40: "
                      "only terms * rank of at most 2 takes less arithmetic",
                      self.run_trainer("sketch", model, "match=head", "rank=4", "terms=1", "--force"))
        self.assertIn("sketch: layer head stays as it is: its weight is frozen", self.run_trainer(
            "sketch", self.frozen(), "match=[wide, head]", "rank=3"))
        out = self.run_trainer("sketch", self.frozen(), "match=head", "rank=3", "--force", status=2)
        self.assertIn("none of the layers that it names can be sketched: head: its weight is frozen", out)
        self.assertIn("sketch: no layer is chosen: it is learned in sketches already (1 layer: filters); its sketch takes no less "
                      "arithmetic (2 layers: wide, head): match names", self.run_trainer("sketch", model, "rank=500", "--force"))

    def test_none_chosen(self):
        """Without `match` each reason is told, with the layers that it is for."""
        pipeline = "pipeline=[train, {prune: {kind: pattern}}, {sketch: {rank: 2}}]"
        dense = "model.layers.0={conv2d: {out: 12, kernel: 3, padding: 1, name: filters}}"
        out = self.run_trainer(self.write(**DENSE), dense, pipeline)
        self.assertIn("sketch: no layer is chosen: its weight is masked (3 layers: filters, wide, head)\n", out)
        self.run_trainer(self.write("all"), "model.layers.5={sklinear: {out: 5, terms: 1, rank: 1, name: head}}")
        out = self.run_trainer("sketch", self.dir / "all/model.h5", "rank=2")
        self.assertIn("sketch: no layer is chosen: it is learned in sketches already (3 layers: filters, wide, head)\n", out)

    def test_room(self):
        """Of sketches for which there is no memory the stage says so before anything is made, and which it could have."""
        self.run_trainer(self.write(**DENSE))
        model, made = self.dir / "run/model.h5", self.dir / "run/model-sketch.h5"
        out = self.run_trainer("sketch", model, "match=wide", "rank=1048576", "terms=4096", ranks=1, status=1)
        self.assertRegex(out, r"pipeline.0.sketch.rank: layer wide of 40 x 432: sketches in 4096 terms of rank 1048576 take [\d.]+e?[+\d]* ?[A-Z]*B of memory "
                         r"while they are found, and [\d.]+ .B are available: expected terms \* rank of at most \d+ \(of at most 18 they take less ")
        for ranks in (1, 2):
            for room, environment in (([], {"TRIREME_MEM_AVAILABLE": "20000000"}), (["run.memory_limit=200MB"], {})):
                with self.subTest(ranks=ranks, room=room):
                    small = ["sketch", model, "match=wide", "terms=1", *room, "--force"]
                    out = self.run_trainer(*small, "rank=60000", ranks=ranks, status=1, env=environment)
                    self.assertIn("of run.memory_limit are left" if room else "20.0 MB are available", out)
                    self.assertEqual("on each rank" in out, ranks > 1)
                    most = int(re.search(r"expected terms \* rank of at most (\d+)", out)[1])
                    self.assertFalse(made.exists())
                    if not room:  # programs do not always hold the same
                        self.run_trainer(*small, f"rank={most + 1}", ranks=ranks, status=1, env=environment)
                        self.assertIn("layer wide: its sketch, ", self.run_trainer(*small, f"rank={most}", ranks=ranks, env=environment))
                        made.unlink()

    def test_stop(self):
        """A signal is heard within a fit that would take minutes."""
        self.run_trainer(self.write(**DENSE))
        p = self.start("sketch", self.dir / "run/model.h5", "match=wide", "terms=4096", "rank=1")
        seen = []
        for line in p.stdout:
            seen.append(line)
            if "layer wide: its sketch, " in line:
                os.kill(self.rank_pids(p.pid)[1], signal.SIGTERM)
                break
        seen += p.stdout.readlines()
        self.assertEqual(p.wait(timeout=120), 75, "".join(seen))
        p.stdout.close()
        self.assertIn("stopped while sketches were fitted, which begins again when the stage does", "".join(seen))
        self.assertFalse((self.dir / "run/model-sketch.h5").exists())

    def frozen(self):
        """A model whose last layer does not learn."""
        path = self.dir / "frozen/model.h5"
        if not path.exists():
            self.run_trainer(self.write("frozen", **DENSE), "model.layers.5.linear.freeze=true")
        return path

    def test_retry(self):
        """A budget that no sketch keeps to is given up once a sketch is no smaller than the layer, named or not."""
        out = self.run_trainer(self.write(**DENSE), "pipeline=[train, {sketch: {match: wide, terms: 1, rank: 16, on_miss: retry, "
                               "budget: {loss: 0}}}]", status=1)
        self.assertEqual(out.count("again with"), 2, out)  # 16, 24, 36; 54 would have 54 * 472 weights, not 17280
        out = self.run_trainer(self.write("all", **DENSE), "pipeline=[train, {sketch: {terms: 1, rank: 10, on_miss: retry, "
                               "budget: {loss: 0}}}]", status=1)
        self.assertEqual(out.count("again with"), 1, out)  # 15; of 23 the arithmetic is more
        # more rank is no smaller: the size is not tried for again, whatever else is missed
        out = self.run_trainer(self.write("size", **DENSE), "pipeline=[train, {sketch: {match: wide, terms: 1, rank: 16, on_miss: retry, "
                               "budget: {size: 0.01, loss: 0}}}]", status=1)
        self.assertEqual(out.count("again with"), 0, out)
        self.assertIn("not tried again: milder options make nothing smaller or faster", out)
        self.assertRegex(out, r"budget.loss: [\d.e+]+, at most 0 was asked for .*; budget.size: [\d.]+, at most 0.01")

    def test_init_from(self):
        """Sketches of other signs are refused, whose shape says nothing of it; by default the signs are the name's (FNV-1a)."""
        self.run_trainer(self.write())
        file = self.dir / "run/model.h5"
        seed = 2166136261
        for byte in b"wide":
            seed = (seed ^ byte) * 16777619 % 2 ** 32
        seed //= 2
        self.run_trainer(self.write("same"), f"model.init_from={file}")
        layer = "model.layers.3.sklinear."
        renamed = (layer + "name=broad", "model.init_from={file: %s, map: {'wide.*': 'broad.*'}}" % file)
        loose = "model.init_from={file: %s, strict: false}" % file
        for changes in ([f"model.init_from={file}", layer + "seed=5"], renamed, [loose, layer + "seed=5"],
                        [f"model.init_from={file}", layer + "rank=8", layer + "terms=1"]):
            out = self.run_trainer(self.write("other"), *changes, status=2)
            self.assertRegex(out, rf"wide\.s[12] was learned beside other signs than the model's \w+\.s[12]: set terms: 2, rank: 4, seed: {seed} in")
        self.run_trainer(self.write("broad"), *renamed, f"{layer}seed={seed}")
        self.run_trainer("export", file, "format=safetensors")
        exported = f"model.init_from={self.dir / 'run/model-export.safetensors'}"
        self.run_trainer(self.write("exported"), exported)
        self.assertIn(f"set terms: 2, rank: 4, seed: {seed} in", self.run_trainer(self.write("other"), exported, layer + "seed=5", status=2))
        out = self.run_trainer(self.write("other"), exported, "model.layers.0.skconv2d.seed=5", status=2)
        self.assertIn("filters.s1 was learned beside other signs", out)
        plan = json.loads(self.tool("plan", self.write(), "--json"))["sketched_layers"]
        self.assertIn(seed, [r["seed"] for r in plan])

    READY = {  # a step of each ready config's variant, smaller where it is large; layers that are sketched
        "byte-gpt": (["model.input=[16]"], 12),
        "lstm-text": (["model.input=[16]"], 1),
        "vit-tiny": (["model.layers.3.transformer.layers=1", "train.batch=2", "train.epochs=1", "data.train.samples=2"], 6),
        "gpt2-124m": (["model.input=[16]", "model.layers.2.transformer.layers=1", "model.layers.0.embedding.num=300",
                       "model.layers.4.linear.out=300", "train.batch=2", "train.micro_batch=auto", "data.train.samples=4"], 4)}

    def test_dense_ready_configs(self):
        """ViT and GPT-2 as their files are, of one block: a step, and what it leaves can be read."""
        for name in ("vit-tiny", "gpt2-124m"):
            run = [SOURCE / "configs" / f"{name}.yaml", f"output={self.dir}/{name}", "run.threads=1", *self.READY[name][0]]
            self.run_trainer(*run, "train.steps=1", "train.log_every=1", ranks=0)
            start, = self.losses(name)
            classes = {"vit-tiny": 1000, "gpt2-124m": 300}[name]
            self.assertAlmostEqual(start, np.log(classes), delta=0.5)  # weights are small at first
            self.tool("inspect", self.dir / name / "model.h5")

    def test_ready_configs(self):
        """Each ready model with model.sketch as its file says it: fewer weights by plan, a training that resumes, a file that
        makes the same model, `check` prints the layers that they are."""
        for name, (smaller, count) in self.READY.items():
            with self.subTest(name):
                text = (SOURCE / "configs" / f"{name}.yaml").read_text()
                given = "model.sketch=" + re.search(r"^  # sketch: (\{.*?\})", text, re.M)[1]
                config = SOURCE / "configs" / f"{name}.yaml"
                dense = json.loads(self.tool("plan", config, "--json"))
                sketched = json.loads(self.tool("plan", config, given, "--json"))
                self.assertLess(sketched["parameters"], dense["parameters"])
                self.assertLess(sketched["flop_per_sample"]["forward"], dense["flop_per_sample"]["forward"])
                self.assertTrue(all(r["weights"] < r["dense_weights"] for r in sketched["sketched_layers"]))
                (self.dir / "a.txt").write_text("the quick brown fox jumps over the lazy dog; " * 20)
                if "text" in text:
                    smaller = [f"data.train.path={self.dir}/a.txt", *smaller]
                run = [config, given, f"output={self.dir}/{name}", "run.threads=1", *smaller]
                self.assertEqual(len(re.findall("- sk(linear|conv2d):", self.tool("check", *run[:2], *run[4:]))), count)
                self.run_trainer(*run, "train.steps=2", ranks=0)
                self.run_trainer(*run, "train.steps=3", "--resume", ranks=0)
                model = self.dir / name / "model.h5"
                self.assertEqual(sum(k.endswith("/s1") for k in self.parameters(model)), count)
                self.tool("inspect", model)

    def test_sweep(self):
        """Terms and rank as a grid: a table and a plot of loss, size and time."""
        self.write(**DENSE)
        (self.dir / "sweep.yaml").write_text(
            "config: run.yaml\noutput: sweep\nset: {pipeline: [train, {sketch: {match: wide}}]}\n"
            "grid:\n  pipeline.sketch.terms: [1, 2]\n  pipeline.sketch.rank: [2, 6]\n")
        self.run_trainer("sweep", "sweep.yaml")
        with open(self.dir / "sweep/sweep.csv", newline="") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([int(r["parameters"]) - int(rows[0]["parameters"]) for r in rows], [472 * k for k in (0, 4, 2, 10)])
        self.assertTrue(all(float(r["latency_ms"]) > 0 and float(r["loss"]) > 0 for r in rows))
        self.assertIn("<svg", (self.dir / "sweep/sweep.svg").read_text())


if __name__ == "__main__":
    main()
