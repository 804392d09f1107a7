"""A sweep that is gone on with and has fewer trials: what others came to is not lost."""
import csv

from harness import Case, main

LIST = "config: run.yaml\noutput: sweep\nset: {{pipeline: [train, {{prune: {{amount: 0.1}}}}]}}\nlist: [{}]\n"
TRIALS = ["{train.optimizer.lr: 0.005, pipeline.prune.amount: 0.2}", "{train.optimizer.lr: 0.005}", "{pipeline.prune.amount: 0.5}"]


class Fewer(Case):
    def sweep(self, trials, *arguments):
        (self.dir / "sweep.yaml").write_text(LIST.format(", ".join(trials)))
        return self.run_trainer("sweep", "sweep.yaml", *arguments, ranks=0)

    def rows(self):
        with open(self.dir / "sweep/sweep.csv", newline="") as f:
            return list(csv.DictReader(f))

    def test_fewer(self):
        self.config(steps=4, every=4)
        self.assertNotIn("earlier", self.sweep(TRIALS))
        before = self.rows()
        out = self.sweep(TRIALS[:1], "--resume")
        self.assertIn("warning: sweep holds 2 trials of before that this sweep does not have, from trial 1 on", out)
        rows = self.rows()
        self.assertEqual([(r["trial"], r["state"]) for r in rows], [("0", "done"), ("1", "earlier"), ("2", "earlier")])
        self.assertEqual([r["pipeline.prune.amount"] for r in rows], ["0.2", "0.1", "0.5"])
        self.assertEqual([r["train.optimizer.lr"] for r in rows], ["0.005"] * 3)
        for key in ("parameters", "bytes", "latency_ms", "loss", "accuracy", "trained_accuracy"):
            self.assertEqual([r[key] for r in rows], [r[key] for r in before])
        self.assertEqual([r["front"] for r in rows], ["1", "", ""])
        self.assertIn("From trial 1 on there are trials of a sweep before", (self.dir / "sweep/sweep.md").read_text())
        # all of them again: nothing runs, nothing is earlier
        out = self.sweep(TRIALS, "--resume")
        self.assertEqual(out.count("as recorded"), 3)
        self.assertEqual([r["state"] for r in self.rows()], ["done"] * 3)
        # another one in the place of a trial that is done
        out = self.sweep([TRIALS[0], "{pipeline.prune.amount: 0.4}"], "--resume")
        self.assertEqual(out.count("trial 1: sweep/trial-001 holds one that is done with other settings, which this one replaces"), 1, out)
        self.assertEqual([r["state"] for r in self.rows()], ["done", "done", "earlier"])
        self.sweep(TRIALS[:1], "--force")
        self.assertEqual(len(self.rows()), 1)


if __name__ == "__main__":
    main()
