"""Folding and pruning as stages of a pipeline: what is left, on any number of ranks, by latency."""
import re

import h5py
import numpy as np

from harness import RANKS, main
from stages import StageCase

HEADS = """
name: heads
output: {out}
data: {{train: {{format: synthetic, samples: 64}}, eval: {{format: synthetic, samples: 32}}, workers: 0}}
model:
  input: [5, 24]
  layers:
    - transformer: {{layers: 2, heads: 6, kv_heads: 3, causal: false, position: rotary, mlp: 40, name: t}}
    - flatten
    - linear: {{out: 4, name: head}}
  loss: cross_entropy
train: {{steps: 6, batch: 8}}
run: {{threads: 1}}
"""

SMALL = """
name: small
output: {out}
data: {{train: {{format: synthetic, samples: 64, classes: 2}}, eval: {{format: synthetic, samples: 32, classes: 2}}, workers: 0}}
model:
  input: [3]
  layers: [{layers}]
  loss: cross_entropy
train: {{steps: 5, batch: 8, optimizer: {{sgd: {{lr: 0.1}}}}}}
run: {{threads: 1}}
"""


class Prune(StageCase):
    def zeros(self, path):
        """How many values of the model are 0, of how many."""
        values = [v for n, v in self.arrays(path).items() if n.startswith("model/params/")]
        return sum(int((v == 0).sum()) for v in values), sum(v.size for v in values)

    def test_fold_and_prune(self):
        """Batchnorm is folded, channels are removed in rounds, weights are masked and stay 0 while others train."""
        config = self.config(every=50)
        out = self.run_trainer(config, "pipeline=[train, fold, {prune: {amount: 0.6, rounds: 2, train: {steps: 6}}}, "
                               "{prune: {kind: weights, amount: 0.5, by: taylor}}, {finetune: {train: {steps: 6}}}]")
        self.assertRegex(out, r"\d+ of \d+ values are 0; zeros save neither time nor memory here: .*kind: channels removes")
        self.assertIn("save neither", self.attributes(self.stage("03-prune.h5"), "03-prune")["zeros"])
        self.assertNotIn("zeros", self.attributes(self.stage("02-prune.h5"), "02-prune"))
        # dense in files, too: as many bytes of values as before
        sizes = [sum(v.nbytes for n, v in self.arrays(self.stage(f)).items() if n.startswith("model/"))
                 for f in ("02-prune.h5", "03-prune.h5")]
        self.assertEqual(*sizes)
        fold, small, masked, last = (self.attributes(self.stage(f"{s}.h5"), s) for s in
                                     ("01-fold", "02-prune", "03-prune", "04-finetune"))
        self.assertAlmostEqual(fold["loss"], fold["loss_before"], 4)
        self.assertLess(fold["parameters"], self.attributes(self.stage("01-fold.h5"), "00-train")["parameters"])
        self.assertLessEqual(small["multiply_adds"], 0.4 * fold["multiply_adds"])
        self.assertGreater(small["multiply_adds"], 0.2 * fold["multiply_adds"])
        before, after = self.arrays(self.stage("03-prune.h5")), self.arrays(self.stage("04-finetune.h5"))
        self.assertEqual({n for n in before if "batchnorm" in n and n.startswith("model/")}, set())
        zeros = total = moved = 0
        for name in (n for n in before if n.startswith("model/") and n.endswith("weight")):
            gone = before[name] == 0
            self.assertTrue((after[name][gone] == 0).all(), name)
            moved += (after[name] != before[name]).sum()
            zeros, total = zeros + gone.sum(), total + gone.size
        self.assertLess(abs(zeros / total - 0.5), 0.01)
        self.assertGreater(moved, 0.9 * (total - zeros))
        self.assertIn("masked: true", self.tool("inspect", self.stage("04-finetune.h5"), "--json").replace("\\n", "\n"))
        with h5py.File(self.stage("02-prune.h5"), "r") as f:
            layers = f["stages/02-prune/layers"]
            self.assertTrue((layers["parameters"][()] <= layers["parameters_before"][()]).all())

    def test_ranks(self):
        """What fold, prune and sketch make of a model, and say of it, is the same for any number of ranks; a training to rounding."""
        config = self.config(every=50)
        self.run_trainer(config)
        model = self.dir / "run/model.h5"
        for stage, *keys in (("fold",), ("prune", "sensitivity=0.1", "by=batchnorm"), ("prune", "by=taylor"),
                             ("prune", "kind=weights", "by=taylor"), ("sketch", "match=head", "rank=2")):
            self.assert_same_ranks(stage, model, *keys, "run.threads=1")
        made, arrays = self.dir / "run/model-finetune.h5", []
        for ranks in (1, 2, 3, 4):
            self.run_trainer("finetune", model, "train.steps=6", "run.threads=1", "--force", ranks=ranks)
            arrays.append({n: v for n, v in self.arrays(made).items() if n.startswith("model/")})
            for name, value in arrays[0].items():
                np.testing.assert_allclose(arrays[-1][name], value, **RANKS, err_msg=f"on {ranks}: {name}")
        for stage, key, said in (("fold", "skip=[batchnorms]", 'did you mean "batchnorm"'),
                                 ("prune", "pattern=[4, 2]", "expected [n, m] with n below m"),
                                 ("prune", "train={batches: 3}", "batches")):
            out = self.run_trainer(stage, model, key, *(["kind=pattern"] if "pattern" in key else []), "--force", status=2)
            self.assertIn(said, out)

    def test_zeros_are_counted(self):
        """So many values are 0, of so many, as the file has them, whatever lies between arrays in memory."""
        config = self.dir / "run.yaml"
        config.write_text(SMALL.format(out=self.dir / "run", layers="linear: {out: 5}, tanh, linear: {out: 3}, tanh, linear: {out: 2}"))
        self.run_trainer(config)
        for keys in (["kind=weights"], ["kind=pattern", "pattern=[1, 2]"]):
            out = self.run_trainer("prune", self.dir / "run/model.h5", *keys, "--force")
            zeros, all_ = self.zeros(self.dir / "run/model-prune.h5")
            self.assertEqual(all_, 46)
            self.assertGreaterEqual(zeros, 10)
            self.assertIn(f" {zeros} of 46 values are 0; zeros save neither", out)
            self.assertNotIn("left as they are", out)

    def test_left_out(self):
        """Of embeddings, recurrent layers, sketches and what `keep` names no weight goes: it is said how many may go and which layers
        stay, and warned of where none can."""
        config = self.dir / "run.yaml"
        config.write_text(SMALL.format(out=self.dir / "run", layers="embedding: {num: 9, dim: 4, name: token}, "
                                       "lstm: {hidden: 4, layers: 2, name: r}, flatten, linear: {out: 2, name: head}"))
        self.run_trainer(config, "pipeline=[train, {sketch: {match: head, rank: 1}}]")
        dense, sketched = self.dir / "run/model.h5", self.stage("01-sketch.h5")
        stay = "left as they are: embedding (token), lstm_layer (r.l0, r.l1)"
        out = self.run_trainer("prune", dense, "kind=weights", "amount=0.5", "--force", ranks=2)
        self.assertEqual(out.count(f"prune: 24 of 316 weights may become 0; {stay}\n"), 1)
        before, after = (self.arrays(f) for f in (dense, dense.with_name("model-prune.h5")))
        for name in (n for n in before if n.startswith("model/params/") and n != "model/params/head/weight"):
            np.testing.assert_array_equal(before[name], after[name], name)
        self.assertEqual((after["model/params/head/weight"] == 0).sum(), 12)
        for model, *keys in ((sketched, "kind=weights", "amount=0.4"), (sketched, "kind=pattern"), (dense, "kind=weights", "keep=head"),
                             (sketched, "kind=weights", "sensitivity=0.1")):
            out = self.run_trainer("prune", model, *keys, "--force", ranks=2)
            why = ", `keep` (head)" if model is dense else ", sklinear (head)"
            self.assertEqual(out.count(f"warning: prune: no weight can become 0; {stay}{why}\n"), 1, keys)
            self.assertNotIn("allow no more", out)
            self.assertEqual(self.zeros(model.with_name(f"{model.stem}-prune.h5")), self.zeros(model))

    def test_weights_by_sensitivity(self):
        """Weights of layers that matter less go first: sparsities differ by layer, are what was asked for in all, the same on any
        number of ranks, and where layers may not lose so much it is said."""
        self.run_trainer(self.config(every=50), "pipeline=[train, fold]")
        model = self.stage("01-fold.h5")
        made = model.with_name("01-fold-prune.h5")
        self.assert_same_ranks("prune", model, "kind=weights", "sensitivity=0.02", "rounds=2", "train={steps: 2}", "amount=0.4",
                               "run.threads=1", ranks=(1,))
        self.assert_same_ranks("prune", model, "kind=weights", "sensitivity=0.02", "amount=0.4", "run.threads=1")
        with h5py.File(made, "r") as f:
            found = f["stages/02-prune"]
            sparsity, share = found["layers/sparsity"][()], found["sensitivity/share"][()]
            self.assertEqual(found["sensitivity"].attrs["rows"].split(), found["layers"].attrs["rows"].split())
            self.assertTrue((found["sensitivity/loss_0.75"][()] > 0).all())
            weights = [v[()] for n, v in self.arrays(made).items() if n.startswith("model/") and n.endswith("weight")]
        self.assertEqual(share.max(), 1)
        self.assertLess(share.min(), 1)
        self.assertEqual(sparsity.argmax(), share.argmax())
        self.assertGreater(sparsity.max() - sparsity.min(), 0.1)
        self.assertAlmostEqual(sum((w == 0).sum() for w in weights) / sum(w.size for w in weights), 0.4, 2)
        out = self.run_trainer("prune", model, "kind=weights", "sensitivity=0.02", "most=0.2", "--force")
        self.assertIn("prune: 0.2 of the weights become 0, not 0.5: `sensitivity`, `most` or `keep` allow no more", out)

    def test_so_many_samples(self):
        """Gradients for by: taylor are of so many samples, whatever a batch of them is: as of data that has no more, on any number
        of ranks."""
        self.run_trainer(self.config(every=50), "pipeline=[train, fold]")
        model, kept = self.stage("01-fold.h5"), {}
        made = model.with_name("01-fold-prune.h5")
        few = self.dir / "few.h5"
        with h5py.File(self.dir / "data.h5", "r") as f, h5py.File(few, "w") as g:
            g["x"], g["y"] = f["x"][:10], f["y"][:10]
        for samples, keys in ((10, [f"data.train.path={few}", "train.batch=10"]), (10, ["train.batch=7"]), (10, ["train.batch=10"]),
                              (10, ["train.batch=64"]), (64, ["train.batch=64"])):
            self.run_trainer("prune", model, "kind=weights", "by=taylor", f"samples={samples}", *keys, "--force")
            arrays = self.arrays(made)
            zeros = {n: (v == 0).tobytes() for n, v in arrays.items() if n.startswith("model/") and n.endswith("weight")}
            kept.setdefault(samples, zeros)
            self.assertEqual(kept[samples], zeros, keys)
        self.assertNotEqual(kept[10], kept[64])
        self.assert_same_ranks("prune", model, "kind=weights", "by=taylor", "samples=10", "train.batch=7", "run.threads=1")

    def test_heads(self):
        """Of attention whole heads go, with keys and values that they share; what is left trains, and is a model of plain layers."""
        config = self.dir / "run.yaml"
        config.write_text(HEADS.format(out=self.dir / "run"))
        self.run_trainer(config, "pipeline=[train, {prune: {amount: 0.5, by: taylor, samples: 16}}, {finetune: {train: {steps: 3}}}]")
        made = self.arrays(self.stage("02-finetune.h5"))
        for block in "01":
            q, k, v, proj = (made[f"model/params/t.{block}.{n}/weight"] for n in ("q", "k", "v", "proj"))
            self.assertIn(len(q), (8, 16))
            self.assertEqual((len(k), len(v), proj.shape[1]), (len(q) // 2, len(q) // 2, len(q)))
        text = self.tool("inspect", self.stage("02-finetune.h5"), "--json").replace("\\n", "\n")
        self.assertRegex(text, r"heads: [24], kv_heads: [12],")

    def test_held(self):
        """Where little or nothing can go, it is said what keeps layers as they are: their output, an embedding's stream, ALiBi."""
        config = self.dir / "run.yaml"
        config.write_text(HEADS.format(out=self.dir / "run").replace("input: [5, 24]", "input: [5]").replace("rotary", "alibi")
                          .replace("layers:\n", "layers:\n    - embedding: {num: 9, dim: 24, name: words}\n", 1)
                          .replace("samples: 64", "samples: 64, classes: 4"))
        out = self.run_trainer(config, "pipeline=[train, {prune: {amount: 0.9, by: batchnorm, most: 0.5}}]")
        self.assertIn("by: batchnorm, but no channel that may go has a batchnorm", out)
        self.assertRegex(out, r"prune: 0\.\d+ of the multiply-adds are left \(0\.1 was asked for\): widths, `most` or `keep` allow no less")
        held = re.search(r"what keeps layers as wide as they are: (.*)", out)[1]
        self.assertRegex(held, r"proj.* \(in the stream of words, an embedding\)")
        self.assertRegex(held, r"[qkv].* \(\S+ needs all of its inputs\)")
        self.assertIn("head (the model's output)", held)
        config.write_text(config.read_text().replace("alibi", "rotary"))
        self.assertNotIn("ALiBi", self.run_trainer(config, "pipeline=[train, {prune: {amount: 0.9, most: 0.5}}]", "--force"))
        linear = self.dir / "linear.yaml"
        linear.write_text(HEADS.format(out=self.dir / "linear").replace(re.search(r".*transformer.*\n", HEADS.format(out=""))[0], ""))
        self.assertIn("all of the multiply-adds are left (0.5 was asked for): no channel can go; what keeps layers as wide as they are: head (the model's output)",
                      self.run_trainer(linear, "pipeline=[train, {prune: {amount: 0.5}}]"))

    def test_prune_by_latency(self):
        """What is measured decides how much goes: the same for all ranks, which end with one model."""
        config = self.config(every=50)
        self.run_trainer(config, "pipeline=[train, fold, {prune: {measure: latency, amount: 0.1, rounds: 2, train: {steps: 2}}}]",
                         "run.threads=1", ranks=3)
        a = self.attributes(self.stage("02-prune.h5"), "02-prune")
        self.assertGreater(a["reached"], 0)
        self.assertIn("measure: latency", a["options"])
        self.assertLessEqual(a["parameters"], self.attributes(self.stage("01-fold.h5"), "01-fold")["parameters"])


if __name__ == "__main__":
    main()
