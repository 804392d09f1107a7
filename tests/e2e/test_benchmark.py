"""What a benchmark in a pipeline leaves."""
import json
import os
import re
import xml.etree.ElementTree

import h5py

from harness import main
from stages import StageCase, text


class Benchmark(StageCase):
    def test_benchmark(self):
        """Rows for each model and batch, in the file, as JSON, as Markdown and as plots, alike for any ranks."""
        config = self.config(every=50)
        asked = "{batches: [1, 3], seconds: 0, runs: 5, rates: [2000], target_ms: 1e6, models: [model.h5]}"
        said = self.run_trainer(config, f"pipeline=[train, {{benchmark: {asked}}}]")
        with h5py.File(self.stage("01-benchmark.h5"), "r") as f:
            calls = f["stages/01-benchmark/calls"]
            self.assertEqual(list(calls["batch"]), [1, 3, 1, 3])
            self.assertTrue(all(calls["runs"][:] >= 5) and all(calls["median_ms"][:] > 0))
            self.assertTrue(all(calls["p99_ms"][:] >= calls["median_ms"][:]))
            self.assertEqual(list(f["stages/01-benchmark/load/rate"]), [2000, 2000])
            best = f["stages/01-benchmark/best"]
            self.assertEqual(text(best.attrs["rows"]).split(), [b"model.h5", b"this"])
            self.assertTrue(set(best["batch"]) <= {1, 3} and set(best["target_ms"]) == {1e6})
            self.assertTrue(set(calls["stable"]) <= {0, 1} and all(calls["warmup_runs"][:] > 8))
            self.assertTrue(all(calls["quiet_ms"][:] > 0))
            self.assertIn("processors", calls)
            self.assertIn("batches_per_s", calls)
            self.assertNotIn("gpu_percent", calls)
        found = json.loads(self.stage("01-benchmark.json").read_text())
        self.assertEqual([(r["model"], r["batch"]) for r in found["calls"]],
                         [("model.h5", 1), ("model.h5", 3), ("this", 1), ("this", 3)])
        self.assertEqual(found["calls"][0]["accuracy"], found["calls"][2]["accuracy"])
        markdown = self.stage("01-benchmark.md").read_text().splitlines()
        columns = [c.strip() for c in markdown[0].strip("|").split("|")]
        cells = next(line for line in markdown if line.startswith("| this | cpu | fp32 | 3 |"))
        shown = dict(zip(columns, (c.strip() for c in cells.strip("|").split("|"))))
        self.assertEqual(len(columns), len(cells.strip("|").split("|")))
        row = found["calls"][3]
        for column, key in (("median ms", "median_ms"), ("p90", "p90_ms"), ("p95", "p95_ms"), ("p99", "p99_ms"), ("max", "max_ms"),
                            ("min", "min_ms"), ("mean", "mean_ms"), ("deviation", "deviation_ms"), ("quietest", "quiet_ms")):
            self.assertEqual(shown[column], f"{row[key]:.4f}", column)
        for column, key, digits in (("load ms", "load_ms", 1), ("first ms", "first_ms", 2), ("samples/s", "samples_per_s", 1),
                                    ("batches/s", "batches_per_s", 1), ("processors", "processors", 2), ("warm-up", "warmup_runs", 0)):
            self.assertEqual(shown[column], f"{row[key]:.{digits}f}", column)
        self.assertEqual((shown["GPU"], shown["GPU memory"], row["gpu_percent"], row["gpu_memory_bytes"]), 2 * ("not measured",) + 2 * (None,))
        self.assertEqual(shown["stable"], "yes" if row["stable"] else "no")
        # the log's table fits a terminal; doubts are of rows, and told there, too
        table = [line for line in said.splitlines() if re.search(r" (cpu|backend) +(fp32|type) .*(accuracy|B +\d\.\d{4})$", line)]
        self.assertEqual(len(table), 5, said)
        self.assertLessEqual(max(map(len, table)), len("trainer: model.h5") + 110)
        doubts = [f"batch {r['batch']}: times did not settle" for r in found["calls"] if not r["stable"]]
        doubts += [f"batch {r['batch']}: other work met these calls" for r in found["calls"] if r["median_ms"] > 1.25 * r["quiet_ms"]]
        for doubt in doubts:
            self.assertIn(doubt, said)
            self.assertIn(doubt, "\n".join(markdown))
        self.assertEqual(len(doubts), len(re.findall("times did not settle|other work met these", said)))
        for column in ("memory", "process peak", "its mean"):
            self.assertRegex(shown[column], r"^[\d.]+ [kMG]?B$")
        for row in found["calls"]:
            self.assertAlmostEqual(row["samples_per_s"] * row["median_ms"], 1e3 * row["batch"], delta=1e-4 * row["batch"] * 1e3)
            self.assertAlmostEqual(row["batches_per_s"] * row["batch"], row["samples_per_s"], delta=1e-4 * row["samples_per_s"])
            self.assertLessEqual(row["min_ms"], row["median_ms"])
            self.assertGreater(row["load_ms"], 0)
            self.assertGreater(row["processors"], 0)
            self.assertLess(row["processors"], os.cpu_count() + 0.5)
            self.assertGreater(row["memory_bytes"], 0)
            self.assertGreaterEqual(row["rss_peak_bytes"], row["rss_mean_bytes"])
            self.assertGreater(row["rss_mean_bytes"], row["memory_bytes"])
        for plot in ("batches", "percentiles", "accuracy"):
            xml.etree.ElementTree.parse(self.stage(f"01-benchmark.{plot}.svg"))
        for asked, said in (("models: [{}]", "pipeline.1.benchmark.models: expected a run file"),
                            ("backends: [gpu]", 'pipeline.1.benchmark.backends: found "gpu"; expected cpu or cuda'),
                            ("backends: [cpu, cpu]", "pipeline.1.benchmark.backends: cpu stands twice")):
            out = self.run_trainer(config, f"pipeline=[train, {{benchmark: {{{asked}}}}}]", "--resume", status=2, ranks=1)
            self.assertIn(said, out)
        # several places side by side: each with its own accuracy; what cannot run here is named
        self.run_trainer(config, "pipeline=[train, {benchmark: {batches: [1, 2], seconds: 0, runs: 5, models: [model.h5],"
                         " backends: [cpu, cpu-bf16, cuda, cpu-fp16]}}]", "--resume")
        found = json.loads(self.stage("01-benchmark.json").read_text())
        self.assertEqual([(r["model"], r["backend"], r["precision"], r["batch"]) for r in found["calls"]],
                         [(m, *p, n) for m in ("model.h5", "this") for p in (("cpu", "fp32"), ("cpu-bf16", "bf16")) for n in (1, 2)])
        self.assertEqual([r["speedup"] for r in found["calls"][:2]], [1, 1])
        self.assertTrue(all(r["file_bytes"] > 0 and 0 <= r["accuracy"] <= 1 for r in found["calls"]))
        self.assertEqual([u["backend"] for u in found["unavailable"]], ["cuda", "cpu-fp16"])
        self.assertIn("CPUs have no kernels for fp16", found["unavailable"][1]["reason"])
        self.assertIn("- cuda cannot run here: ", self.stage("01-benchmark.md").read_text())
        with h5py.File(self.stage("01-benchmark.h5"), "r") as f:
            self.assertEqual(f["stages/01-benchmark/calls/median_ms"].shape, (8,))
            self.assertIn(b"fp16", f["stages/01-benchmark"].attrs["cpu-fp16_cannot_run"])
        out = self.run_trainer(config, "pipeline=[train, {benchmark: {backends: [cuda, cpu-fp16]}}]", "--resume", status=1)
        self.assertIn("none of `backends` can run here: cuda: ", out)


if __name__ == "__main__":
    main()
