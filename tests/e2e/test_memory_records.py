"""Memory while a run goes on: predicted and held in its records, every rank's peak, warnings of a node that is nearly full or swaps."""
import re
import subprocess

from harness import main
from limits import DEEP, LimitCase


class MemoryRecords(LimitCase):
    def test_records(self):
        """Predicted and held, by kind, at the start, at evaluations and at the end, with every rank's peak."""
        config = self.write(DEEP)
        out = self.run_trainer(config, "run.memory_limit=1GB", ranks=2)
        seen = self.records(event="memory")
        self.assertEqual([r["when"] for r in seen], ["start", "eval", "end"])
        kinds = [k[len("predicted_"):] for k in seen[0] if k.startswith("predicted_")]
        self.assertEqual(len(kinds), 9)
        for record in seen:
            for kind in kinds:
                # a checkpoint that is being written holds a confusion matrix more
                self.assertAlmostEqual(record[f"predicted_{kind}"], record[f"held_{kind}"], delta=0 if record["when"] == "end" else 0.001,
                                       msg=(record["when"], kind))
            self.assertEqual(record["limit_mb"], 1000)
            self.assertGreater(record["rss_mb"], 1)
        end = self.records(event="end")[-1]
        self.assertIn(end["highest_peak_rank"], (0, 1))
        self.assertGreaterEqual(end["highest_peak_rss_mb"], end["peak_rss_mb"] - 1)
        self.assertRegex(out, r"peaks by rank +[\d.]+ MB, [\d.]+ MB; the most [\d.]+ MB, of rank [01]")
        self.assertNotIn("run.memory_warn", out)
        self.assertNotIn("swapped out", out)

    def test_warnings(self):
        config = self.write(DEEP)
        status = self.dir / "status"
        status.write_text("Name:\ttrainer\nVmSwap:\t  70000 kB\nRssAnon:\t  960000 kB\nRssFile:\t 8000 kB\nRssShmem:\t 0 kB\n")
        env = {"TRIREME_PROCESS_STATUS": str(status)}
        out = self.run_trainer(config, "run.memory_limit=1GB", ranks=1, env=env)
        self.assertEqual(out.count("are in use on this node: more than run.memory_warn: 0.95 of it"), 1, out)
        self.assertEqual(out.count("71.7 MB of this process are swapped out on"), 1, out)
        self.assertEqual(self.records(event="memory")[-1]["swapped_mb"], 71.68)
        out = self.run_trainer(config, "run.memory_limit=1GB", "run.memory_warn=none", "--force", ranks=1, env=env)
        self.assertNotIn("run.memory_warn", out)
        # auto is of what was left beside that
        out = self.run_trainer(config, "run.memory_limit=auto", "--force", ranks=1, env=env | {"TRIREME_MEM_AVAILABLE": "900000000"})
        self.assertNotIn("run.memory_warn", out)
        out = self.run_trainer(config, "run.memory_limit=auto", "run.memory_warn=0.01", "--force", ranks=1, env={"TRIREME_MEM_AVAILABLE": "900000000"})
        self.assertIn("MB (run.memory_limit auto) are in use on this node", out)
        for said in ("0.5", "0.95", "none", "auto"):
            out = self.run_trainer(config, f"run.memory_warn={said}", "--force", ranks=1)
            self.assertEqual(out.count(f"run.memory_warn: {said} of no run.memory_limit: memory in use will not be warned of"), said[0] == "0", out)
            again = self.run_trainer(self.dir / "run/config.yaml", f"output={self.dir}/again", "--force", ranks=1)
            self.assertEqual(again.count("run.memory_warn"), said[0] == "0", again)  # what was not said is not in the run's config

    def test_warnings_of_others(self):
        """Every rank looks, also where another is at ease, and one of a node says it."""
        config = self.write(DEEP)
        status = self.dir / "status"
        status.write_text("Name:\ttrainer\nVmSwap:\t  70000 kB\nRssAnon:\t  480000 kB\nRssFile:\t 8000 kB\nRssShmem:\t 0 kB\n")
        rank = [str(self.program), str(config), "run.memory_limit=1GB", "--force"]
        pretend = ["-x", f"TRIREME_PROCESS_STATUS={status}"]
        for first, other, of in (([], pretend, r"rank 1 \(\S+\): "), (pretend, pretend, r"(?:rank 1 \(\S+\): )?"), (pretend, [], "")):
            done = subprocess.run(["mpirun", "--oversubscribe", "-np", "1", *first, *rank, ":", "-np", "1", *other, *rank], cwd=self.dir,
                                  env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout)
            for said in (r"memory: 991 MB of 1.00 GB \(run.memory_limit 1GB\) are in use on this node",
                         r"memory: 71.7 MB of this process are swapped out on \S+, and"):
                self.assertEqual(len(re.findall(said, done.stdout)), 1, done.stdout)
                self.assertRegex(done.stdout, f"(?m)^trainer: warning: {of}{said}")

    def test_warnings_of_a_sweep(self):
        """Trials share a node, beside each other or one after the other: it is said once, as is what all that are as large lack."""
        self.write(DEEP)
        status = self.dir / "status"
        status.write_text("Name:\ttrainer\nVmSwap:\t  70000 kB\nRssAnon:\t  960000 kB\nRssFile:\t 8000 kB\nRssShmem:\t 0 kB\n")
        for beside in ("ranks_per_trial: 1", ""):
            (self.dir / "sweep.yaml").write_text(f"config: job.yaml\noutput: trials\n{beside}\nset: {{run.memory_limit: 1GB}}\n"
                                                 "grid: {train.optimizer.sgd.lr: [0.1, 0.2]}\n")
            out = self.run_trainer("sweep", "sweep.yaml", "--force", ranks=2, env={"TRIREME_PROCESS_STATUS": str(status)})
            for said in ("(run.memory_limit 1GB) are in use on this node", "of this process are swapped out on"):
                self.assertEqual(out.count(said), 1, out)
        (self.dir / "sweep.yaml").write_text("config: job.yaml\noutput: trials\nranks_per_trial: 1\nset: {run.overcommit_memory: true}\n"
                                             "grid: {train.optimizer.sgd.lr: [0.1, 0.2]}\n")
        out = self.run_trainer("sweep", "sweep.yaml", "--force", ranks=2, env={"TRIREME_MEM_AVAILABLE": "20000000"})
        self.assertEqual(out.count("training does not fit this node"), 1, out)


if __name__ == "__main__":
    main()
