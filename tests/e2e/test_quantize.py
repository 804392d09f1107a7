"""Quantizing as a stage of a pipeline."""
import os
import re
import signal

import h5py
import numpy

from harness import CNN, SOURCE, main
from stages import StageCase, text


class Quantize(StageCase):
    def assert_tight(self, f, size):
        """Besides its arrays, names and attributes (each with at most 46 bytes of HDF5's: headers of message and attribute 14,
        type 20, space 12) a file has headers of groups and arrays, and hardly a gap."""
        objects, names = [f], []
        f.visititems(lambda name, o: (objects.append(o), names.append(name.split("/")[-1])) and None)
        arrays = [o for o in objects if isinstance(o, h5py.Dataset)]
        attributes = sum(len(k) + 46 + o.attrs.get_id(k).get_storage_size() for o in objects for k in o.attrs)
        headers = size - sum(o.nbytes for o in arrays) - attributes - sum(map(len, names))
        self.assertLess(headers, 500 + 130 * len(arrays) + 95 * (len(objects) - len(arrays)))

    def test_without_accuracy(self):
        """layers: auto of a model that has no accuracy lets the loss rise by a twentieth at the most."""
        rng = numpy.random.default_rng(5)
        x = rng.normal(size=(256, 24)).astype(numpy.float32)
        with h5py.File(self.dir / "values.h5", "w") as f:
            f["x"], f["y"] = x, (x @ rng.normal(size=(24, 2))).astype(numpy.float32)
        config = self.dir / "values.yaml"
        source = f"{{path: {self.dir}/values.h5, inputs: x, labels: y}}"
        config.write_text(f"name: values\noutput: {self.dir}/run\ndevice: cpu\ndata: {{train: {source}, eval: {source}}}\n"
                          "model: {input: [24], loss: mse, layers: [linear: {out: 512}, relu, linear: {out: 512}, relu, linear: {out: 2}]}\n"
                          "train: {epochs: 60, batch: 32, optimizer: {adamw: {lr: 0.001}}, schedule: {cosine: {final: 0}}}\n")
        self.run_trainer(config, "pipeline=[train, quantize]", ranks=1)
        found = self.attributes(self.stage("01-quantize.h5"), "01-quantize")
        self.assertLessEqual(found["loss"], 1.051 * found["loss_before"])
        # bounded, it may rise more; rounded all the same, it does
        made = self.dir / "run/model-quantize.h5"
        self.run_trainer("quantize", self.dir / "run/model.h5", "layers=all", ranks=1)
        self.assertGreater(self.attributes(made, "01-quantize")["loss"], 1.06 * found["loss_before"])

    def test_quantize(self):
        """8 bits: the same file but for its times at any number of ranks; every command takes it."""
        self.run_trainer(self.config(every=50))
        model, made = self.dir / "run/model.h5", self.dir / "run/model-quantize.h5"
        refined = ["equalize=true", "bias_correction=true", "rounding=adaround"]

        def check_time(made, said):
            """What it takes is told, and what to do where that is more than before."""
            a = self.attributes(made, "01-quantize")
            self.assertTrue(a["float_ms"] > 0 and a["int8_ms"] > 0)
            self.assertEqual("with layers: auto those stay floats that make it slower" in said, a["int8_ms"] > 1.02 * a["float_ms"])

        def check_static(made, said):
            check_time(made, said)
            learned = "rounding: adaround: layer 3 of 3, head: 288 values for each output" in said
            with h5py.File(made, "r") as f:
                self.assertEqual(f["model/params/head/weight"].dtype, "int8")
                self.assertEqual(f["model/state/head/weight_scale"].shape, f["model/params/head/weight"].shape[:1])
                self.assertIn(b"fake_quantize", text(f.attrs["config"]))
                self.assert_tight(f, made.stat().st_size)
                table = {k: v[()] for k, v in f["stages/01-quantize/layers"].items()}
                self.assertTrue((table["weight_sqnr_db"] > 30).all())
                self.assertTrue((table["float_us"] > 0).all() and (table["int8_us"] > 0).all())
                self.assertEqual(learned, "output_sqnr_nearest_db" in table)
                if learned:  # what rounding by data is for
                    gain = table["output_sqnr_db"] - table["output_sqnr_nearest_db"]
                    self.assertTrue((gain > -0.1).all() and gain.mean() > 0.5, gain)

        def check_dynamic(made, said):
            check_time(made, said)
            with h5py.File(made, "r") as f:
                self.assertIn(b"dynamic_quantize", text(f.attrs["config"]))
                self.assertTrue((f["stages/01-quantize/layers/weight_sqnr_db"][()] > 30).all())
        for options in (["calibrate=minmax"], ["calibrate=percentile"], ["calibrate=entropy"], refined):
            self.assert_same_ranks("quantize", model, "layers=all", *options, "samples=70", check=check_static)
        # so many samples, whatever a batch of them is
        scales = []
        for batch in (7, 64):
            self.run_trainer("quantize", model, "layers=all", "calibrate=minmax", "samples=10", f"train.eval.batch={batch}", "--force")
            with h5py.File(made, "r") as f:
                state = f["model/state"]
                scales.append({f"{a}/{b}": state[a][b][()].tobytes() for a in state for b in state[a] if b.endswith("scale")})
        self.assertGreaterEqual(len(scales[0]), 3)
        self.assertEqual(*scales)
        # ranges of each call: no data.train is asked for, and batches do not matter
        self.assert_same_ranks("quantize", model, "activations=dynamic", "layers=all", "data.train.path=gone.h5", check=check_dynamic)
        a = self.attributes(made, "01-quantize")
        self.assertLess(abs(a["loss"] - a["loss_before"]), 0.05)
        self.run_trainer("export", made, "--force")  # what is read back answers alike
        self.assertIn("nothing is calibrated", self.run_trainer("quantize", model, "activations=dynamic", "calibrate=minmax",
                                                                "--force", status=2))
        refined = ["equalize=true", "bias_correction=true", "rounding=adaround"]
        self.run_trainer("quantize", model, "activations=dynamic", "layers=all", *refined, "samples=70", "--force")
        with h5py.File(made, "r") as f:
            table = f["stages/01-quantize/layers"]
            self.assertGreater((table["output_sqnr_db"][()] - table["output_sqnr_nearest_db"][()]).mean(), 0.5)
        # by itself it is never slower: on another day others are faster, but what is said is what was done
        for options in (["samples=70"], ["activations=dynamic", "data.train.path=gone.h5"]):
            out = self.run_trainer("quantize", model, *options, "--force")
            self.assertNotIn("make it slower", out)
            a = self.attributes(made, "01-quantize")
            with h5py.File(made, "r") as f:
                table = f["stages/01-quantize/layers"]
                names = text(table.attrs["rows"]).decode().split()
                self.assertTrue((table["float_us"][()] > 0).all() and (table["int8_us"][()] > 0).all())
                for name, int8 in zip(names, table["int8"][()]):
                    self.assertEqual(f[f"model/params/{name}/weight"].dtype == "int8", int8 == 1)
                self.assertEqual("int8_ms" in a, table["int8"][()].any())
                self.assertEqual("no layer is worth 8 bits here" in out, not table["int8"][()].any())
            if "int8_ms" in a:
                self.assertLess(a["int8_ms"], a["float_ms"])
        self.run_trainer("quantize", model, "layers=all", "weights=per_tensor", "samples=70", "--force")
        with h5py.File(made, "r") as f:
            self.assertEqual(len(set(f["model/state/head/weight_scale"][()])), 1)
        self.assertIn("int8", self.tool("inspect", made))
        a = self.attributes(made, "01-quantize")
        self.assertLess(abs(a["loss"] - a["loss_before"]), 0.05)
        for kind in ("float16", "bfloat16"):
            self.run_trainer("quantize", model, f"kind={kind}", "budget.loss_rise=0.05", "--force")
            self.assertIn(kind, self.tool("inspect", made))
        self.assertIn("no layer \"hed\"", self.run_trainer("quantize", model, "skip=[hed]", "--force", status=2))
        # what is done to inputs is the parent's, which fold has changed
        self.run_trainer(self.config("scaled", every=50), "data.normalize={mean: 0, std: 4}",
                         "pipeline=[train, {fold: {normalize: true}}, {quantize: {layers: all, budget: {loss_rise: 0.05}}}, "
                         "{finetune: {train: {steps: 8, eval: {every_steps: 8}, optimizer: {sgd: {lr: 0.01}}}}}]")
        with h5py.File(self.stage("02-quantize.h5", "scaled"), "r") as f:
            self.assertNotIn(b"std: 4", text(f.attrs["config"]))
            before = f["model/params/head/weight"][()]
        # quantization-aware training: its evaluation is the file's, whose largest weights are whole
        last = self.stage("03-finetune.h5", "scaled")
        with h5py.File(last, "r") as f:
            after = f["model/params/head/weight"][()]
            self.assertEqual(after.dtype, "int8")
            self.assertTrue((abs(after.astype(int)).max(axis=1) == 127).all())
            self.assertTrue((after != before).any())
        evals = [r for r in self.records("scaled/stages/03-finetune/train", "eval")]
        self.assertAlmostEqual(evals[-1]["loss"], self.attributes(last, "03-finetune")["loss"], places=5)

    def test_proven(self):
        """What the pass int8 makes of answers is measured on data and said, the same on any number of ranks, as fold behind it says; where
        it is more than the bound, the model is computed without it wherever its file goes."""
        self.run_trainer(self.config(every=50), "pipeline=[train, fold]", ranks=1)
        model = self.stage("01-fold.h5")
        made = self.stage("01-fold-quantize.h5")

        def check_proven(made, said):
            self.assertNotIn("pass over the graph", said)
            found = self.graph_passes(made, "02-quantize")
            self.assertGreater(found["int8"][0], 0)
            self.assertTrue(all(undone == 0 for _, _, undone in found.values()))
        self.assert_same_ranks("quantize", model, "layers=all", "samples=70", check=check_proven)
        found = self.graph_passes(made, "02-quantize")
        with_it, without = self.answers(made), self.answers(made, "run.skip_passes=[int8]")
        apart = numpy.abs(with_it - without).max() / max(1, numpy.abs(without).max())
        self.assertGreater(apart, 0)
        self.assertLessEqual(apart, found["int8"][1] * 1.01)
        self.assertRegex(self.tool("inspect", made), r"(?s)graph_passes.*\n +int8 +\d+ +[\d.e-]+ +0\n")
        self.run_trainer("fold", made, ranks=1)
        self.assertEqual(found, self.graph_passes(self.stage("01-fold-quantize-fold.h5"), "03-fold"))

        def check_undone(made, said):
            count, difference, undone = self.graph_passes(made, "02-quantize")["int8"]
            self.assertEqual((count, undone), (0, 1))
            self.assertEqual(difference, found["int8"][1])
            self.assertIn(f'quantize: with the pass over the graph "int8" outputs differ by {difference:.3g}, the bound is 1e-07', said)
            self.assertIn(f"outputs differ by {difference:.3g}", self.attributes(made, "02-quantize")["note_graph_int8"])
        self.assert_same_ranks("quantize", model, "layers=all", "samples=70", "bound=1e-7", check=check_undone)
        self.assertRegex(self.config_of(made), r"skip_passes: \[.*int8.*\]")
        numpy.testing.assert_array_equal(self.answers(made), without)
        # no data is read where none is asked for
        self.run_trainer(self.config("blind", every=50, text=re.sub(r"\n  eval: .*", "", CNN)), ranks=1)
        self.run_trainer("quantize", self.dir / "blind/model.h5", "activations=dynamic", "data.train.path=gone.h5", ranks=1)
        with h5py.File(self.dir / "blind/model-quantize.h5", "r") as f:
            self.assertNotIn("graph_passes", f["stages/01-quantize"])

    def outlier(self):
        """The data that the model was trained on, with four values in one sample that no range should cover."""
        path = self.dir / "outlier.h5"
        with h5py.File(self.dir / "data.h5", "r") as f, h5py.File(path, "w") as g:
            for name in f:
                g[name] = f[name][()]
            g["x"][3, 0, :2, :2] = 3000
        return path

    def attempts(self, found):
        """(options, what was missed, loss) of each that did."""
        out = []
        while f"attempt_{len(out) + 1}" in found:
            n = f"attempt_{len(out) + 1}"
            self.assertGreater(found[f"{n}_bytes"], 0)
            self.assertGreater(found[f"{n}_latency_ms"], 0)
            self.assertTrue(0 <= found[f"{n}_accuracy"] <= 1)
            out.append((found[f"{n}_options"], found[n], found[f"{n}_loss"]))
        return out

    def test_retry(self):
        """Of milder settings the first that keeps to the budget is taken; each before it is listed with its own and its numbers."""
        self.run_trainer(self.config(every=50))
        model, made = self.dir / "run/model.h5", self.dir / "run/model-quantize.h5"
        # the range of all that was seen leaves no step for the data itself; one of a percentile, or of more samples, does
        options = [f"data.train.path={self.outlier()}", "layers=all", "calibrate=minmax", "on_miss=retry", "samples=70"]
        out = self.run_trainer("quantize", model, *options, "budget.loss_rise=0.05")
        found = self.attributes(made, "01-quantize")
        missed = self.attempts(found)
        self.assertEqual(len(missed), 1, out)
        self.assertRegex(missed[0][0], r"^\{kind: int8, .*calibrate: minmax, .*\}$")
        self.assertNotIn("budget", missed[0][0])
        self.assertRegex(missed[0][1], r"budget.loss_rise: [\d.e+]+, at most 0.05")
        self.assertGreater(missed[0][2], found["loss_before"] + 0.05)
        self.assertIn("calibrate: percentile", found["options"])
        self.assertLessEqual(found["loss"], found["loss_before"] + 0.05)
        with h5py.File(made, "r") as f:
            self.assertEqual(f["model/params/head/weight"].dtype, "int8")
        shown = self.tool("inspect", made)
        self.assertIn("attempt_1: budget.loss_rise", shown)
        self.assertIn("attempt_1_options: {kind: int8, activations: static, calibrate: minmax", shown)
        # nothing helps: each setting was tried, the last one is float16's
        self.assertIn("budget.loss:", self.run_trainer("quantize", model, *options, "budget.loss=0", "--force", status=1))
        last = self.dir / "run/model-quantize.rejected.h5"
        missed = [a[0] for a in self.attempts(self.attributes(last, "01-quantize"))]
        self.assertEqual(len(set(missed)), len(missed))
        said = ("calibrate: minmax", "calibrate: percentile", "samples: 280", "bias_correction: true", "rounding: adaround", "keep_float: 1")
        for i, what in enumerate(said):
            self.assertIn(what, missed[i])
            self.assertFalse(i and what in missed[i - 1], what)
        self.assertIn("kind: float16", self.attributes(last, "01-quantize")["options"])
        # layers that are skipped twice, or could not be in 8 bits anyway, change nothing of how many are left
        skip = "skip=[conv2d1, conv2d1, relu1, flatten1, dropout1]"
        self.run_trainer("quantize", model, "layers=all", "budget.loss=0", "on_miss=retry", "activations=dynamic", "bias_correction=true",
                         "rounding=adaround", "samples=70", skip, "--force", status=1)
        missed = [a[0] for a in self.attempts(self.attributes(last, "01-quantize"))]
        self.assertEqual([re.search(r"keep_float: (\d+)", a)[1] for a in missed], ["0", "1"])
        # the worst layers alone as floats: the same on any number of ranks

        def check(made, said):
            with h5py.File(made, "r") as f:
                table = f["stages/01-quantize/layers"]
                worst = table["output_sqnr_db"][()].argmin()
                self.assertEqual([i for i, int8 in enumerate(table["int8"][()]) if not int8], [worst])
        self.assert_same_ranks("quantize", model, "layers=all", "keep_float=1", "samples=70", check=check)

    def test_choice_ends(self):
        """Without time nothing is tried apart; a signal ends it between calls, however long they would go on."""
        self.run_trainer(self.config(every=50))
        model, made = self.dir / "run/model.h5", self.dir / "run/model-quantize.h5"
        out = self.run_trainer("quantize", model, "layers=auto", "samples=70", "seconds=0")
        self.assertIn("`seconds: 0` are over", out)
        self.assertIn("expected fewer", self.run_trainer("quantize", model, "keep_float=1000", "--force", status=2))
        found = self.attributes(made, "01-quantize")
        self.assertIn("by `seconds`", found["choice_ended"])
        self.assertGreater(found["choice_comparisons"], 0)
        # calls of this batch take long enough that the choice is not through when it is asked to stop
        p = self.start("quantize", model, "layers=auto", "samples=70", "batch=16384", "seconds=1e9", "--force")
        seen = []
        for line in p.stdout:
            seen.append(line)
            if "layers are compared" in line:
                os.kill(self.rank_pids(p.pid)[1], signal.SIGTERM)  # not the one that measures
                break
        seen += p.stdout.readlines()
        self.assertEqual(p.wait(timeout=120), 75, "".join(seen))
        p.stdout.close()
        self.assertIn("stopped while layers were chosen", "".join(seen))

    def test_size(self):
        """The int8 file of a network of 270 thousand parameters in 22 products: at most 27 % of the one that was trained."""
        self.run_trainer(SOURCE / "configs/bench/resnet20.yaml", f"output={self.dir}/run", "train.epochs=none", "train.steps=2", "train.batch=16",
                         "data.train.samples=64", "data.eval={format: synthetic, samples: 16}", "pipeline=[train, fold, {quantize: {layers: all, samples: 16}}]")
        whole, made = (p.stat().st_size for p in (self.dir / "run/model.h5", self.stage("02-quantize.h5")))
        with h5py.File(self.stage("02-quantize.h5"), "r") as f:
            numbers = []
            f["model"].visititems(lambda name, o: numbers.append(o.nbytes) if isinstance(o, h5py.Dataset) else None)
            # layers say all of their options, so that another version with other defaults rebuilds the same model
            for layer, usual in ((rb"conv2d", b"groups: 1, bias: true"), (rb"fake_quantize", b"learn_scale: false")):
                written = re.findall(rb"(?m)^ *- " + layer + rb"\b.*", text(f.attrs["config"]))
                self.assertGreater(len(written), 8)
                for line in written:
                    self.assertIn(usual, line)
            # a stage's inputs leave out the model, which its parent has
            self.assertNotIn(b"conv2d", text(f["stages/02-quantize"].attrs["inputs"]))
        self.run_trainer("quantize", self.stage("01-fold.h5"), "kind=float16", "budget.size=0.55", ranks=1)
        halves = self.stage("01-fold-quantize.h5").stat().st_size / self.stage("01-fold.h5").stat().st_size
        self.assertTrue(0.45 < halves < 0.55, halves)
        floor = sum(numbers) / whole  # int8 weights, scales and biases of float32
        self.assertLess(floor, 0.2452)
        self.assertLess(made / whole, 0.2700, f"{made} of {whole}, {sum(numbers)} of numbers")

    def test_batchnorm_at_the_end(self):
        """Trained in 8 bits with batchnorm, which goes into the scales then: the integers stay but for their sign."""
        self.run_trainer(SOURCE / "configs/digits.yaml", f"output={self.dir}/run", "train.epochs=1", "train.checkpoint={every_epochs: none}",
                         "pipeline=[train, {quantize: {layers: all}}, {finetune: {train: {steps: 6}}}, fold]", ranks=1)
        with h5py.File(self.stage("02-finetune.h5"), "r") as f, h5py.File(self.stage("03-fold.h5"), "r") as g:
            table = g["stages/03-fold/passes"]
            at = text(table.attrs["rows"]).decode().split().index("batchnorm")
            self.assertEqual((table["count"][at], table["undone"][at]), (4, 0))
            self.assertFalse([n for n in g["model/params"] if "batchnorm" in n])
            for name, rows in g["model/params"].items():
                q, was = rows["weight"][()].astype(int), f[f"model/params/{name}/weight"][()].astype(int)
                self.assertEqual(rows["weight"].dtype, "int8")
                self.assertTrue((abs(q) == abs(was)).all(), name)
        found = self.attributes(self.stage("03-fold.h5"), "03-fold")
        self.assertLess(abs(found["loss"] - found["loss_before"]), 0.01)

    def test_what_keeps_floats(self):
        """Sketches and shared weights: said of a model that has some, and why, where there is nothing else."""
        path = self.dir / "q.yaml"
        path.write_text("name: q\noutput: q\ndevice: cpu\ndata: {train: {format: synthetic, samples: 64}}\ntrain: {steps: 1, batch: 4, optimizer: {sgd: {lr: 0.1}}}\n"
                        "model: {input: [64], layers: [linear: {out: 64, name: a}, relu, linear: {out: 64, name: b}, relu, linear: {out: 3}], loss: cross_entropy}\n")
        out = self.run_trainer(path, "pipeline=[train, {sketch: {match: [a, b], rank: 4}}, {quantize: {layers: all}}]", ranks=1)
        self.assertEqual(out.count("quantize: in floats as before: a, b are sketches, which have no form in fewer bits"), 1, out)
        out = self.run_trainer("quantize", self.stage("01-sketch.h5", "q"), "skip=[linear3]", ranks=1, status=2)
        self.assertIn("quantize.kind: no layer can be computed in 8 bits: a, b are sketches", out)
        tied = "model={input: [16], layers: [embedding: {num: 32, dim: 8, name: e}, %slinear: {out: 32, bias: false, weight_of: e, name: head}], loss: cross_entropy}"
        out = self.run_trainer("check", path, tied % "", "pipeline=[train, quantize]", ranks=1, status=2)
        self.assertIn("no layer can be computed in 8 bits: head has a weight that is another layer's, too", out)
        out = self.run_trainer(path, tied % "linear: {out: 8}, ", "pipeline=[train, {quantize: {layers: all}}]", "--force", ranks=2)
        self.assertEqual(out.count("quantize: in floats as before: head has a weight that is another layer's, too"), 1, out)
        out = self.run_trainer(path, tied % "", "pipeline=[train, {quantize: {kind: float16}}]", "--force", ranks=1)
        self.assertIn("quantize: in floats as before: e, head have weights that are other layers', too", out)

    def test_learned_scales(self):
        """Scales are trained with the weights, at any number of ranks and over a stop, and end as a plain int8 model."""
        train = "train: {steps: 8, eval: {every_steps: 8}, checkpoint: {every_steps: 4}, " \
                "optimizer: {sgd: {lr: 0.05, momentum: 0.9}}}"
        stages = f"pipeline=[train, {{quantize: {{layers: all}}}}, {{finetune: {{scales: learned, {train}}}}}]"
        config = self.config(every=50)
        self.run_trainer(config, stages, ranks=1)
        last, folder = self.stage("02-finetune.h5"), "run/stages/02-finetune/train"
        with h5py.File(self.stage("01-quantize.h5"), "r") as f, h5py.File(last, "r") as g:
            was, now = (x["model/state/head/weight_scale"][()] for x in (f, g))
            self.assertTrue((was != now).any() and (now > 0).all())
            self.assertNotIn(b"learn_scale: true", text(g.attrs["config"]))
            self.assertNotEqual(*(re.findall(rb"scale: ([0-9.e-]+)", text(x.attrs["config"])) for x in (f, g)))
            self.assertNotIn("learned_scale", g["model/params/head"])
            self.assertEqual(g["model/params/head/weight"].dtype, "int8")
            self.assertGreater(g["stages/02-finetune"].attrs["learned_scales"], 2)
        evals = self.records(folder, "eval")
        self.assertAlmostEqual(evals[-1]["loss"], self.attributes(last, "02-finetune")["loss"], places=5)
        with h5py.File(self.dir / folder / "checkpoints/step-00000004.h5", "r") as f:
            self.assertEqual(f["model/params/head/learned_scale"].shape, now.shape)
        losses = [r["loss"] for r in self.records(folder)]
        whole = last.read_bytes()
        # the same from a checkpoint on: the last one is as if it had never been
        for gone in (folder + "/model.h5", folder + "/checkpoints/step-00000008.h5", "run/stages/02-finetune.h5"):
            (self.dir / gone).unlink()
        self.assertRegex(self.run_trainer(config, stages, "--resume", ranks=1), r"resuming from \S+ \(step 4\)")
        with h5py.File(last, "r") as g:
            self.assertTrue((g["model/state/head/weight_scale"][()] == now).all())
        self.assertEqual([r["loss"] for r in self.records(folder)], losses)
        self.assertEqual(len(whole), last.stat().st_size)
        self.run_trainer("finetune", self.stage("01-quantize.h5"), "scales=learned", f"train={{{train[8:-1]}}}",
                         "--force", ranks=3)
        with h5py.File(self.stage("01-quantize-finetune.h5"), "r") as g:
            self.assertLess(abs(g["model/state/head/weight_scale"][()] / now - 1).max(), 1e-3)
        self.assertIn("behind quantize", self.run_trainer("finetune", self.dir / "run/model.h5", "scales=learned", "--force",
                                                          status=2))


if __name__ == "__main__":
    main()
