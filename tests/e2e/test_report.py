"""The page that a report is: what it says, and how it looks in a browser."""
import platform
import sys
import unittest
import xml.etree.ElementTree

from harness import SOURCE, main
from stages import FINETUNE, StageCase

sys.path.insert(0, str(SOURCE / "tests/report"))
import screenshots  # noqa: E402

PIPELINE = f"pipeline=[train, {FINETUNE}, {{benchmark: {{seconds: 0, runs: 5}}}}, " \
           "{profile: {batches: [1], runs: 3}}, report]"


class Report(StageCase):
    def check_tables(self, root):
        """Throughput, environment and memory are those that the run wrote down."""
        rows = {}
        for row in root.iter("tr"):
            cells = ["".join(cell.itertext()) for cell in row]
            rows.setdefault(cells[0], cells[1:])
        start, end, memory = (self.records(event=e)[-1] for e in ("start", "end", "memory"))
        for name, value in (("samples a second", end["samples_per_s"]), ("process at its peak, MB", end["peak_rss_mb"]),
                            ("predicted, MB", end["predicted_mb"]), ("held, MB", end["held_mb"]), ("cores", start["cores"]),
                            ("memory of the host, MB", start["memory_mb"]), ("ranks", 2), ("nodes", 1),
                            ("threads of a rank", start["threads"])):
            self.assertAlmostEqual(float(rows[name][0]) / value, 1, 5, name)
        kinds = {"packed": "packed weights", "activations": "arena: activations", "workspace": "arena: workspace", "io": "batches",
                 "snapshot": "checkpoints"}
        of_run = {key[5:-3] for key in memory if key.startswith("held_")}
        has = {key for key in of_run if memory[f"held_{key}_mb"] > 0 or memory[f"predicted_{key}_mb"] > 0}
        self.assertLess({"weights", "activations", "snapshot"}, has)
        for key in has:
            self.assertEqual(rows[kinds.get(key, key)], [f"{memory[f'{w}_{key}_mb']:.6g}" for w in ("predicted", "held")])
        for key in of_run - has:
            self.assertNotIn(kinds.get(key, key), rows)
        for name, value in (("CPU", start["cpu"]), ("kernel", start["kernel"]), ("MPI", start["mpi"]), ("HDF5", start["hdf5"]),
                            ("computed by", start["backend"]), ("trireme", start["version"]), ("host", platform.node()),
                            ("gradients added by", start["reducer"])):
            if value:  # /proc/cpuinfo does not name every CPU
                self.assertEqual(rows[name][0], value)
        self.assertIn(platform.release(), start["kernel"])
        self.assertIn("oneDNN", start["backend"])
        self.assertRegex(start["hdf5"], r"^\d+\.\d+\.\d+$")
        self.assertTrue(start["mpi"])

    @unittest.skipUnless(screenshots.CHROMIUM, "chromium is not installed")
    def test_looks(self):
        """In a browser, light and dark, wide and narrow: nothing is fetched or too wide, text is readable; it prints."""
        config = self.config(every=50)
        self.run_trainer(config, PIPELINE)
        page = self.dir / "run/report.html"
        for dark in (False, True):
            for width in (screenshots.WIDTH, 420):
                wrong, found = screenshots.measure(page, dark, width)
                self.assertEqual(wrong, [])
                self.assertGreater(found["texts"], 200)
                self.assertGreaterEqual(found["svgs"], 9)
        self.assertEqual(screenshots.measure(page, False, screenshots.PAPER, paper=True)[0], [])
        screenshots.pictures(page, self.dir / "pictures")
        for name, magic in (("light.png", b"\x89PNG"), ("dark.png", b"\x89PNG"), ("print.pdf", b"%PDF")):
            self.assertEqual((self.dir / "pictures" / name).read_bytes()[:4], magic)
        # what is wrong is seen
        broken = self.dir / "broken.html"
        broken.write_text(page.read_text().replace(
            "</body>", "<div style='width:3000px;color:#aaa;background:#bbb'>wide and faint</div><script>nowhere()</script>"
            "<img src='http://nowhere.invalid/x.png'></body>"))
        said = " ".join(screenshots.measure(broken, False)[0])
        for word in ("too wide", "wide and faint", "nowhere is not defined", "fetched http://nowhere.invalid"):
            self.assertIn(word, said)

    def test_page(self):
        """One page that is XML but for its first line, holds every stage, and names no other file."""
        config = self.config(every=50)
        self.run_trainer(config, PIPELINE)
        page = (self.dir / "run/report.html").read_text()
        root = xml.etree.ElementTree.fromstring(page.split("\n", 1)[1].replace('<meta charset="utf-8">', "").replace(
            '<meta name="viewport" content="width=device-width,initial-scale=1">', ""))
        words = " ".join(root.itertext())
        for word in ("e2e", "01-finetune", "Confusion matrix", "Learning rate", "steps: 12", "loss_before"):
            self.assertIn(word, words)
        plots = sorted(self.stage("").glob("02-benchmark.*.svg"))
        self.assertEqual(len(plots), 3)  # latency, distribution, accuracy
        for plot in plots:
            self.assertIn(xml.etree.ElementTree.parse(plot).getroot()[1].text, words)
        for plot in ("flame", "roofline"):
            self.assertIn(xml.etree.ElementTree.parse(self.stage(f"03-profile.{plot}.svg")).getroot().find(
                "{http://www.w3.org/2000/svg}title").text, words)
        self.assertIn("training step, batch 8: ", words)  # a frame of the flame graph
        self.assertIn("samples a second", [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")])  # throughput
        self.check_tables(root)
        self.assertGreaterEqual(page.count("<svg"), 9)
        self.assertNotRegex(page, r'(?:src|href)=|url\(|@import')
        markdown = (self.dir / "run/report.md").read_text()
        loss = self.attributes(self.stage("01-finetune.h5"), "01-finetune")["loss"]
        self.assertIn("| 01-finetune | 19", markdown)
        self.assertIn(f"| loss | {loss:.6g} |", markdown)
        self.run_trainer("report", self.stage("01-finetune.h5"), "markdown=false", ranks=1)
        self.assertTrue(self.stage("01-finetune-report.html").exists())
        self.assertFalse(self.stage("01-finetune-report.md").exists())

    def test_records_that_cannot_be_read(self):
        """The page is made of what else there is, and it is said; without the file, as of a model by hand, nothing is."""
        self.run_trainer(self.config(every=50))
        for there, said in ((True, "report: without what the run recorded: "), (False, "")):
            metrics = self.dir / "run/metrics.jsonl"
            metrics.unlink() if there else metrics.rmdir()
            if there:
                metrics.mkdir()
            out = self.run_trainer("report", self.dir / "run/model.h5", "--force")
            self.assertEqual(out.count("warning: report: "), there, out)
            self.assertIn(said, out)
            self.assertIn("Loss", (self.dir / "run/model-report.html").read_text())

    def test_regression(self):
        """Where nothing is classified no accuracy is told or drawn."""
        (self.dir / "homes.csv").write_text("rooms,price\n" + "".join(f"{i % 7},{3 * (i % 7)}.5\n" for i in range(64)))
        self.tool("new", "--data", "homes.csv", "--labels", "price", "-o", "homes.yaml")
        self.run_trainer(self.dir / "homes.yaml", "output=run", "train.epochs=3", "pipeline=[train, report]", ranks=1)
        for name in ("report.md", "report.html"):
            page = (self.dir / "run" / name).read_text()
            self.assertRegex(page, r"Last evaluation, at step \d+: loss [0-9.e-]+\.\s*(<|\n)")
            self.assertNotRegex(page, r"(?i)\bnan\b|>Accuracy<")


if __name__ == "__main__":
    main()
