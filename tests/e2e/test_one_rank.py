"""What goes wrong on one rank alone inside a stage (memory, a file) ends all ranks with one error and leaves nothing half made."""
import os
import random
import subprocess

from harness import SOURCE, long, main
from stages import StageCase

STAGES = {
    "fold": (),
    "prune": ("sensitivity=0.1", "train={steps: 2}"),
    "quantize": ("layers=all", "samples=16", "rounding=adaround"),
    "sketch": ("rank=2",),
    "finetune": ("train={steps: 2}", "teacher=model.h5"),
    "export": ("external_mb=1e-6",),
    "benchmark": ("batches=[1]", "seconds=0.01", "runs=2", "models=[model.h5]"),
    "profile": ("batches=[1]", "runs=1"),
    "report": (),
}
# Of each stage a file that rank 0 writes beside its own.
BESIDE = {"export": "model-export.onnx", "benchmark": "model-benchmark.md", "profile": "model-profile.txt", "report": "model-report.html",
          "finetune": "model-finetune/train/metrics", "prune": "model-prune/round-1/config"}


class OneRank(StageCase):
    @classmethod
    def setUpClass(cls):
        cls.shim = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"trireme-one-rank-{os.getpid()}.so")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", cls.shim, SOURCE / "tests/e2e/one_rank.c", "-ldl"], check=True)
        cls.addClassCleanup(os.unlink, cls.shim)

    def setUp(self):
        super().setUp()
        self.run_trainer(self.config(steps=5, every=5))

    def by_hand(self, stage, *options, **how):
        """The stage's command with something wrong: its status, what it says, and how many allocations each rank asked for."""
        (self.dir / f"run/model-{stage}.h5").unlink(missing_ok=True)
        done = subprocess.run(self.command(stage, "run/model.h5", *STAGES[stage], *options, "run.threads=1", "--force"), cwd=self.dir,
                              env={**self.environment(), "LD_PRELOAD": self.shim, "FAIL_NOTE": str(self.dir / "note"), **how},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        notes = [self.dir / f"note.{rank}" for rank in (0, 1)]  # none where the job was ended
        return done.returncode, done.stdout, [int(note.read_text()) if note.exists() else 0 for note in notes]

    def fails(self, stage, rank, because, *options, **how):
        """Where something failed: one error that names the rank, its cause, and nothing of the stage's left but whole files."""
        status, out, _ = self.by_hand(stage, *options, ONE_RANK=str(rank), **how)
        what = (stage, rank, how, out)
        if status == 0 and "FAIL_ALLOC" in how:  # it asked for less than before
            return self.assertTrue((self.dir / f"run/model-{stage}.h5").exists(), what)
        self.assertEqual(status, 1, what)
        errors = [line for line in out.splitlines() if "error: " in line]
        self.assertEqual(len(errors), 1, what)
        self.assertRegex(errors[0], rf"error: rank {rank} \(\S+\): .*(?:{because})", what)
        left = [p for p in (self.dir / "run").iterdir() if ".tmp-" in p.name or "candidate" in p.name]
        self.assertEqual(left, [], what)
        self.assertFalse((self.dir / f"run/model-{stage}.h5").exists(), what)

    def runs_out(self, stage, points):
        """Memory, at so many points of the command's second half and near its end, on the second rank and on the first."""
        chance = random.Random(stage)
        status, out, counts = self.by_hand(stage)
        self.assertEqual(status, 0, out)
        for rank in (1, 0):
            late = [counts[rank] - 30] * rank  # when the stage's file takes its place
            for n in late + [chance.randrange(counts[rank] // 2, counts[rank] - 30) for _ in range(points)]:
                self.fails(stage, rank, "could not be allocated|[Mm]emory", FAIL_ALLOC=str(n))

    def test_memory(self):
        for stage in STAGES:
            self.runs_out(stage, 1)

    @long
    def test_memory_at_many_points(self):
        """By hand at hundreds: TRIREME_FAULTS=100."""
        for stage in STAGES:
            self.runs_out(stage, int(os.environ.get("TRIREME_FAULTS", 2)))

    def test_data(self):
        """The data cannot be read by the second rank; where it can, the same command works. Who can do without says why."""
        for stage in ("fold", "quantize", "finetune"):
            self.fails(stage, 1, "data.h5: .*cannot be opened", FAIL_OPEN="data.h5")
            self.assertEqual(self.by_hand(stage)[0], 0)
        status, out, _ = self.by_hand("export", ONE_RANK="1", FAIL_OPEN="data.h5")
        self.assertEqual(status, 0, out)
        self.assertRegex(out, r"compared with the model's on no data: a peer failed: rank 1 \(\S+\): \S*data.h5: cannot be opened")

    def test_export(self):
        """What a rank cannot read back, or has no graph, is not left: neither the graph nor its values beside it, nor values without
        their loader; and nothing of an older export that was begun to be replaced."""
        whole = {"onnx": {"onnx", "onnx.data"}, "safetensors": {"safetensors", "load_model.py"}}
        for form, rank, file in (("onnx", 0, "model-export.onnx.tmp"), ("onnx", 1, "model-export.onnx"), ("onnx", 0, ".data.tmp"),
                                 ("safetensors", 0, "load_model")):
            for older in (False, True):
                if older:
                    self.assertEqual(self.by_hand("export", f"format={form}")[0], 0)
                    self.assertLessEqual(whole[form], self.exported())
                self.fails("export", rank, "cannot (be|create)", f"format={form}", FAIL_OPEN=file)
                self.assertEqual(self.exported(), set(), (form, file, older))

    def exported(self):
        return {p.name.removeprefix("model-export.") for p in (self.dir / "run").glob("model-export*")}

    def test_files(self):
        """What the first rank cannot write: the stage's own file, or one beside it."""
        for stage, file in BESIDE.items():
            self.fails(stage, 0, "cannot (be|create)", FAIL_OPEN=file)
        for stage in ("fold", "finetune"):
            self.fails(stage, 0, "candidate", FAIL_OPEN=f"model-{stage}.candidate")
            self.assertEqual(self.by_hand(stage)[0], 0)


if __name__ == "__main__":
    main()
