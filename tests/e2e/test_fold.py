"""The stage fold: passes over the graph, proven on data and kept out of a model where they change what it answers."""
import h5py
import numpy

from harness import main
from stages import StageCase


class Fold(StageCase):
    def test_over_graph(self):
        """A pass that makes more than the bound is said, and off wherever the file goes; what it makes is measured, and the
        same on any number of ranks. One that skip_graph names stays off in what later stages make, too."""
        self.run_trainer(self.config(every=50), "pipeline=[train, {fold: {skip_graph: [activation]}}, {quantize: {layers: all}}]", ranks=1)
        first, given = self.stage("01-fold.h5"), self.stage("02-quantize.h5")
        self.assertEqual({"activation", "residual"} & self.graph_passes(first, "01-fold").keys(), {"residual"})
        for path in (first, given):
            self.assertIn("skip_passes: [activation]", self.config_of(path))
        kept, made = self.answers(given), given.with_name("02-quantize-fold.h5")
        apart = numpy.abs(kept - self.answers(given, "run.skip_passes=[int8]")).max()
        self.assertGreater(apart, 0)

        def check_undone(path, said):
            found = self.graph_passes(path, "03-fold")
            count, difference, undone = found["int8"]
            self.assertEqual((count, undone), (0, 1))
            self.assertLessEqual(apart / max(1, numpy.abs(kept).max()), difference * 1.01)
            self.assertLess(difference, 0.05)
            self.assertIn(f'with the pass over the graph "int8" outputs differ by {difference:.3g}, the bound is 1e-07', said)
            self.assertIn(f"outputs differ by {difference:.3g}", self.attributes(path, "03-fold")["note_graph_int8"])
            for _, difference, undone in found.values():
                self.assertEqual(difference > 1e-7, undone == 1)
        self.assert_same_ranks("fold", given, "bound=1e-7", check=check_undone)
        off = [name for name, (_, _, undone) in self.graph_passes(made, "03-fold").items() if undone]
        numpy.testing.assert_array_equal(self.answers(made), self.answers(given, f"run.skip_passes={off}".replace("'", "")))

        out = self.run_trainer("fold", given, "--force", ranks=1)  # as usual nothing of the kind
        self.assertNotIn("pass over the graph", out)
        found = self.graph_passes(made, "03-fold")
        self.assertGreater(found["int8"][0], 0)
        self.assertTrue(all(undone == 0 for _, _, undone in found.values()))
        numpy.testing.assert_array_equal(self.answers(made), kept)

    def test_normalize(self):
        """data.normalize stays in front of what is rounded, pruned and trained further: features may be of very different sizes."""
        rng, sizes, means = numpy.random.default_rng(3), numpy.array([1, 1000, 0.01]), numpy.array([0, 5000, 3])
        z = rng.normal(size=(256, 3))
        with h5py.File(self.dir / "features.h5", "w") as f:
            f["x"], f["y"] = (z * sizes + means).astype(numpy.float32), z @ rng.normal(size=(3, 2)).astype(numpy.float32)
        config = self.dir / "features.yaml"
        source = f"{{path: {self.dir}/features.h5, inputs: x, labels: y}}"
        config.write_text(f"name: features\noutput: {self.dir}/run\ndevice: cpu\ndata: {{train: {source}, eval: {source}, normalize: auto}}\n"
                          "model: {input: [3], loss: mse, layers: [linear: {out: 16}, relu, linear: {out: 2, name: head}]}\n"
                          "train: {epochs: 60, batch: 32, optimizer: {adamw: {lr: 0.01}}}\n")
        said = self.run_trainer(config, "pipeline=[train, fold, {finetune: {train: {epochs: 2}}}, {quantize: {layers: all}}]", ranks=1)
        self.assertNotIn("fold: data.normalize", said)
        losses = [self.attributes(self.stage("03-quantize.h5"), stage)["loss"] for stage in ("00-train", "02-finetune", "03-quantize")]
        self.assertLess(losses[0], 0.01)
        self.assertLess(losses[1], 2 * losses[0])
        self.assertLess(losses[2], 0.01)
        # asked for, it is in the weights, and what is behind is warned of
        said = self.run_trainer(config, "output=" + str(self.dir / "folded"),
                                "pipeline=[train, {fold: {normalize: true}}, {quantize: {layers: all}}]", ranks=1)
        self.assertIn("fold: data.normalize is in the first layers now, and stage 02-quantize meets inputs as the data has them", said)
        self.assertIn("normalize: {}", self.config_of(self.stage("01-fold.h5", "folded")))
        numpy.testing.assert_allclose(self.answers(self.stage("01-fold.h5", "folded")), self.answers(self.dir / "folded/model.h5"), atol=1e-3)

    def test_planned(self):
        """What a model is computed without is skipped in a plan of it."""
        shown = self.tool("plan", self.config(), "model.skip_passes=[residual, in_place]").splitlines()
        for name in ("residual", "in_place"):
            self.assertIn(["skipped"] * 3, [line.split()[1:] for line in shown if line.startswith(f"  {name} ")])

    def test_refused(self):
        config = self.config()
        for options, said in (("{fold: {skip_graph: [norm]}}", 'pipeline.1.fold.skip_graph: there is no pass over a graph "norm"'),
                              ("{fold: {skip_graph: [batchnorm]}}", 'there is no pass over a graph "batchnorm"')):
            self.assertIn(said, self.tool("check", config, f"pipeline=[train, {options}]", status=2))
        self.assertIn('model.skip_passes: there is no pass over a graph "in_plase": did you mean "in_place"?',
                      self.tool("check", config, "model.skip_passes=[in_plase]", status=2))


if __name__ == "__main__":
    main()
