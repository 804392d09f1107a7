"""run.level: what a level sets, what is given stays; under cpu_small whole processes stay below 500 MB."""
from harness import SOURCE, main
from limits import NORMED, LimitCase


class Levels(LimitCase):
    def test_levels(self):
        config = self.write(NORMED.replace("run: {threads: 1}", "run: {threads: 1, level: cpu_small}"))
        text = self.tool("check", config, "data.workers=3")
        self.assertIn("#   sets run.memory_limit: 500MB", text)
        self.assertIn("#   leaves data.workers, which is given", text)
        for line in ("  memory_limit: \"500MB\"\n", "  workers: 3\n", "  prefetch: 1\n", "  level: cpu_small\n"):
            self.assertIn(line, text)
        again = self.dir / "again.yaml"
        again.write_text(text)
        self.assertEqual(self.tool("check", again).split("\nname:")[1], text.split("\nname:")[1])
        for level in ("basic", "advanced", "ultra", "high_throughput"):
            self.assertIn(f"# run.level {level}: ", self.tool("check", config, f"run.level={level}"))
            self.run_trainer(config, f"run.level={level}", "--force", ranks=1)
        self.assertIn("precision: bf16\n", self.tool("check", config, "run.level=ultra"))
        self.assertIn("precision: fp32\n", self.tool("check", config, "run.level=ultra", "train.precision=fp32"))
        self.assertNotIn("# run.level", self.tool("check", config, "run.level=custom"))
        self.assertIn('did you mean "cpu_small"?', self.tool("check", config, "run.level=cpu_smal", status=2))

    def test_cpu_small(self):
        """ResNet-20 at batch 128, the whole process."""
        self.run_trainer(SOURCE / "configs/bench/resnet20.yaml", "run.level=cpu_small", f"output={self.dir}/run", "train.steps=2", "run.threads=1", ranks=1)
        end = self.records(event="end")[-1]
        self.assertLess(end["peak_rss_mb"], 500)
        self.assertEqual(end["held_mb"], end["predicted_mb"])

    def test_cpu_small_text(self):
        """The byte GPT, each of two ranks a whole process: together below it."""
        text = self.dir / "a.txt"
        text.write_text("the quick brown fox jumps over the lazy dog; " * 400)
        self.run_trainer(SOURCE / "configs/byte-gpt.yaml", "run.level=cpu_small", f"data.train.path={text}", f"output={self.dir}/run", "train.steps=3",
                         "train.eval.every_steps=3", "run.threads=1")
        end = self.records(event="end")[-1]
        self.assertEqual(end["steps"], 3)
        self.assertLess(2 * end["highest_peak_rss_mb"], 500)
        self.assertEqual(end["held_mb"], end["predicted_mb"])


if __name__ == "__main__":
    main()
