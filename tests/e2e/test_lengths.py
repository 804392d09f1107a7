"""One class for samples of several lengths, from their last row or the mean of those that count: what stands behind a sample's end
changes no bit, buckets and ranks no loss, and a model that reads it all the same is told so."""
import h5py
import numpy as np

from harness import Case, main

CONFIG = """
name: lengths
output: {out}
data:
  train: {{path: {file}.h5, inputs: {{x: x, length: n}}, labels: y}}
  shuffle: false
{buckets}
model:
  inputs: {{x: [9], length: [1]}}
  layers:
    - embedding: {{num: 12, dim: 8, from: x, name: token}}
    - positions: {{name: place}}
    - transformer: {{layers: 2, heads: 2, {blocks}, name: blocks}}
    - layernorm: {{name: norm}}
{row}
    - linear: {{out: 3, name: head}}
  loss: cross_entropy
train: {{steps: 12, batch: 7, log_every: 1, optimizer: {{adamw: {{lr: 0.01}}}}, precision: {precision}}}
run: {{threads: 1}}
"""
LAST = ("causal: true, from: [place, length]", "    - select: {{index: -1{}}}")
CAUSAL = ("causal: true", LAST[1])
MEAN = ("causal: false, from: [place, length]", "    - mean_rows{}")
POOL = (MEAN[0], "    - permute: {dims: [2, 1]}\n    - global_avgpool\n    - flatten")
TOLD = "takes in rows behind a sample's end, which do not count in layers before it: expected `select` or `mean_rows` with the lengths"


class Lengths(Case):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(3)
        n = np.concatenate([[9, 1, 0], rng.integers(0, 10, 60)])
        x, garbage = rng.integers(0, 12, (2, len(n), 9))
        for name, ids in (("clean", x), ("garbage", np.where(np.arange(9) < n[:, None], x, garbage))):
            with h5py.File(self.dir / f"{name}.h5", "w") as f:
                f["x"], f["n"], f["y"] = ids, n[:, None], (x[:, 0] + n) % 3

    def write(self, name, kind, file="clean", lengths=True, buckets="", precision="fp32"):
        row = kind[1]
        if "{}" in row:
            given = (", from: [norm, length]" if "select" in row else ": {from: [norm, length]}") if lengths else ""
            row = row.replace("{{", "{").replace("}}", "}").replace("{}", given)
        path = self.dir / f"{name}.yaml"
        path.write_text(CONFIG.format(out=self.dir / name, file=file, buckets=f"  buckets: {buckets}" if buckets else "", blocks=kind[0], row=row, precision=precision))
        return path

    def test_garbage_behind_the_end(self):
        for kind in (LAST, CAUSAL, MEAN):
            for precision in ("fp32", "bf16"):
                of = []
                for file in ("clean", "garbage"):
                    out = self.run_trainer(self.write(file, kind, file, precision=precision), "--force", ranks=1)
                    self.assertNotIn("behind a sample's end", out)
                    of.append((self.losses(file), self.arrays(self.dir / file / "model.h5")))
                self.assertEqual(of[0][0], of[1][0])
                for key, values in ((k, v) for k, v in of[0][1].items() if k.startswith("model/")):
                    np.testing.assert_array_equal(values, of[1][1][key], key)

    def test_buckets_and_ranks(self):
        for i, kind in enumerate((LAST, CAUSAL, MEAN)):
            for name, buckets, ranks in (("all", "", 1), ("cut", "[3, 6]", 1), ("two", "", 2), ("both", "[3, 6]", 2)):
                self.run_trainer(self.write(f"{name}{i}", kind, buckets=buckets), ranks=ranks)
                np.testing.assert_allclose(self.losses(f"{name}{i}"), self.losses(f"all{i}"), rtol=2e-5)

    def test_told(self):
        """Without lengths the row is one of padding: a warning; with buckets an error."""
        for kind, layer in ((LAST, "select1"), (MEAN, "mean_rows1"), (POOL, "global_avgpool1")):
            out = self.run_trainer("check", self.write("bare", kind, lengths=False), ranks=0)
            self.assertRegex(out, rf'warning: .*bare.yaml:\d+:\d+: layer "{layer}": .* {TOLD}')
            out = self.run_trainer("check", self.write("cut", kind, lengths=False, buckets="[3]"), ranks=0, status=2)
            self.assertIn("takes in rows behind a sample's end", out)
        with h5py.File(self.dir / "clean.h5", "r+") as f:
            f["n"][4] = 10
        out = self.run_trainer("check", "--data", self.write("long", LAST), ranks=0, status=1)
        self.assertRegex(out, r'dataset n: sample 4 .*: element 0 is 10, expected a length: a whole number from 0 to 9, which layer "blocks\S*" takes')
        for index in (0, 3):
            path = self.write("first", LAST)
            path.write_text(path.read_text().replace("index: -1", f"index: {index}"))
            self.assertIn("expected an index below 0", self.run_trainer("check", path, ranks=0, status=2))


if __name__ == "__main__":
    main()
