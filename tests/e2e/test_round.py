"""model.round_dims: what it says it changed, in runs, checks and plans; the run's config and files have the numbers; resumes; a
model where nothing is to be rounded."""
import json
import pathlib
import re

from harness import Case, main

RESIDUAL = """
name: rounded
seed: 3
device: cpu
output: {out}
data:
  train: {{format: synthetic, samples: 64}}
  workers: 0
model:
  input: [3, 6, 6]
  params: {{width: {width}}}
  layers:
    - conv2d: {{out: $width, kernel: 3, padding: 1, name: stem}}
    - repeat:
        times: 2
        layers:
          - residual: {{body: [batchnorm, relu, {{conv2d: {{out: $width, kernel: 3, padding: 1, name: conv}}}}]}}
    - flatten
    - linear: {{out: 37, name: hidden}}
    - relu
    - linear: {{out: 5, name: head}}
  loss: cross_entropy
train: {{steps: {steps}, batch: 8, log_every: 1, checkpoint: {{every_steps: 4}}}}
run: {{threads: 1}}
"""
SAID = "model.round_dims: stem.out 14 -> 16, conv.1.out 14 -> 16, conv.2.out 14 -> 16, hidden.out 37 -> 40"


class Round(Case):
    def write(self, name="run", width=14, steps=8):
        path = self.dir / f"{name}.yaml"
        path.write_text(RESIDUAL.format(out=self.dir / name, width=width, steps=steps))
        return path

    def outs(self, text):
        return [int(n) for n in re.findall(r"^ +out: (\d+)$", text, re.M)]

    def test_said_and_kept(self):
        """Residual sums agree; check, plan and the run say the same, on any number of ranks; config.yaml has the numbers."""
        config = self.write()
        check = self.run_trainer("check", config, "model.round_dims=8", ranks=0)
        self.assertIn(SAID, check)
        self.assertEqual(self.outs(self.tool("check", config, "model.round_dims=8")), [16, 16, 16, 40, 5])
        self.assertIn(SAID, self.run_trainer("plan", config, "model.round_dims=8", ranks=0))
        parameters = json.loads(self.tool("plan", config, "model.round_dims=8", "--json"))["parameters"]
        self.assertEqual(parameters, 16 * 27 + 16 + 2 * (16 * 16 * 9 + 16 + 32) + 40 * 16 * 36 + 40 + 41 * 5)
        self.assertIn(SAID, self.run_trainer(config, "model.round_dims=8", ranks=2))
        kept = (self.dir / "run/config.yaml").read_text()
        self.assertEqual(self.outs(kept), [16, 16, 16, 40, 5])
        self.assertEqual(self.arrays(self.dir / "run/model.h5")["model/params/conv.2/weight"].shape, (16, 16, 3, 3))
        self.tool("inspect", self.dir / "run/model.h5")
        self.tool("export", self.dir / "run/model.h5", "format=onnx")

    def test_auto(self):
        """Of vectors' lanes on CPUs, of tensor cores' tiles on GPUs: the largest that adds no eighth, in each precision."""
        config, widths = self.write(), (9, 22, 27, 97, 101, 250)
        gpu = {"fp32": [9, 24, 28, 104, 112, 256], "bf16": [9, 24, 27, 104, 112, 256]}
        cpu = {"fp32": [9, 24, 28, 104, 104, 256], "bf16": [9, 24, 27, 104, 112, 256]}
        if "avx512f" in pathlib.Path("/proc/cpuinfo").read_text():
            cpu = {"fp32": [9, 24, 27, 104, 112, 256], "bf16": [9, 22, 27, 97, 112, 256]}
        for device, want in (("cpu", cpu), ("cuda", gpu)):
            for precision in ("fp32", "bf16"):
                got = [self.outs(self.tool("check", config, "model.round_dims=auto", f"device={device}", f"train.precision={precision}",
                                           f"model.layers.3.linear.out={width}"))[3] for width in widths]
                self.assertEqual(got, want[precision], (device, precision))

    def test_resume(self):
        """As in one piece; with auto, the run's widths hold where this machine would like others."""
        whole, part = self.write("whole"), self.write("part")
        hidden = "model.layers.3.linear.out=97"
        by = ["model.round_dims=4", hidden, "model.params.width=15"]
        self.run_trainer(whole, *by, ranks=2)
        self.run_trainer(part, *by, "train.steps=5", ranks=2)
        out = self.run_trainer(part, "model.round_dims=auto", *by[1:], "--resume", ranks=2)
        self.assertIn("hidden.out 97 -> 100", out)  # 104 by rule
        self.assertEqual(self.losses("part"), self.losses("whole"))
        self.assert_same_model(self.dir / "part/model.h5", self.dir / "whole/model.h5")

    def test_resume_of_another(self):
        """A model or a number that leads to other widths than the run's is refused by name, and the run stays as it is."""
        run = self.write(width=15)
        self.run_trainer(run, "model.round_dims=8", "train.steps=5", ranks=0)
        before = (self.dir / "run/config.yaml").read_text()
        other = "model.layers.3.linear.out=100"
        for words, status, found in (
            (["model.round_dims=8", other], 2, "hidden.: model.round_dims: out: 100 becomes 104, but the run that is to go on has 40"),
            (["model.round_dims=auto", other], 2, "hidden.: model.round_dims: out: 100 becomes 1[01][0-9], but .* has 40"),
            (["model.round_dims=16"], 2, "hidden.: model.round_dims: out: 37 becomes 48, but .* has 40"),
            (["model.round_dims=8", "model.layers.5.linear.name=other"], 1, "none of this config's model"),
        ):
            with self.subTest(" ".join(words)):
                self.assertRegex(self.run_trainer(run, *words, "--resume", ranks=2, status=status), found)
                self.assertEqual((self.dir / "run/config.yaml").read_text(), before)
        out = self.run_trainer(run, "model.round_dims=8", "--resume", ranks=2)
        self.assertIn(SAID.replace("14", "15"), out)

    def test_nothing(self):
        """What fits already trains to the same bits; so does what would grow by more than an eighth, with auto."""
        for name, width, how in (("even", 64, "auto"), ("off", 14, "off"), ("small", 3, "auto")):
            with self.subTest(name):
                config = self.write(name, width, 3)
                hidden = "model.layers.3.linear.out=" + ("64" if width == 64 else "3")
                out = self.run_trainer(config, hidden, f"model.round_dims={how}", ranks=0)
                self.assertEqual("model.round_dims: nothing is to be rounded" in out, how == "auto")
                self.run_trainer(config, hidden, f"output={self.dir}/plain", "--force", ranks=0)
                self.assert_same_model(self.dir / name / "model.h5", self.dir / "plain/model.h5")

    def test_other_keys(self):
        """With sketches of the model's own key, values to start from and tokens; what it is not."""
        text = self.write("sketched")
        out = self.run_trainer("check", text, "model.round_dims=16", "model.sketch={match: hidden, rank: 5}", ranks=0)
        self.assertIn("hidden.out 37 -> 48, hidden.rank 5 -> 16", out)
        self.run_trainer(self.write("first"), "model.round_dims=8", ranks=0)
        out = self.run_trainer(self.write("second"), "model.round_dims=8", f"model.init_from={self.dir}/first/model.h5", ranks=0)
        self.assertIn("first/model.h5", (self.dir / "second/config.yaml").read_text())
        out = self.run_trainer(
            self.write("third"), "model.round_dims=16", f"model.init_from={self.dir}/first/model.h5", ranks=2, status=2
        )
        self.assertRegex(out, "does not fit the model: .* model.round_dims made layers wider")
        out = self.run_trainer("check", text, "model.round_dims=up", ranks=0, status=2)
        self.assertIn('model.round_dims: found "up", expected an integer from 1 to 4096, or auto, or off', out)


if __name__ == "__main__":
    main()
