"""train.micro_batch: max and plan --largest: the largest that fits is accepted by a run, and one more is not."""
import json

from harness import main
from limits import DEEP, MIB, LimitCase

WIDE = """
name: wide
device: cpu
output: run
data: {train: {format: synthetic, samples: 24, classes: 4}}
model:
  input: [3, 192, 192]
  loss: cross_entropy
  layers:
    - repeat: {times: 8, layers: [conv2d: {out: 16, kernel: 3, padding: 1}, gelu]}
    - global_avgpool
    - flatten
    - linear: {out: 4}
train: {steps: 1, batch: 24, recompute: none, optimizer: {sgd: {lr: 0.1}}}
run: {threads: 1}
"""


class LargestBatch(LimitCase):
    def test_max(self):
        """The largest micro-batch that fits what is given; one more does not."""
        config = self.write(DEEP)
        need = {}
        for micro in (16, 128, 1024):
            need[micro] = self.planned(config, f"train.micro_batch={micro}", "train.eval.batch=16")["fit"]["needed_bytes"]
        self.assertLess(need[16], need[1024])
        room = {"TRIREME_MEM_AVAILABLE": str((need[128] + 32 * MIB) * 20 // 19 + 4096)}
        out = self.run_trainer(config, "train.micro_batch=max", "train.eval.batch=16", "--force", ranks=1, env=room)
        self.assertIn("train.micro_batch max: micro-batches of 128 samples", out)
        self.assertNotIn("run.memory_limit", out)
        self.assertEqual(self.records(event="start")[-1]["micro_batches"], 8)

    def test_max_does_not_fit(self):
        """There is no limit to be raised, and recomputation was not tried."""
        config = self.write(DEEP)
        room = {"TRIREME_MEM_AVAILABLE": "1000000"}
        for key, advice in (("auto", "run.memory_limit=auto looks"), ("none", "run.memory_limit=auto with train.recompute=auto looks")):
            out = self.run_trainer(config, "train.micro_batch=max", f"train.recompute={key}", "--force", ranks=1, status=1, env=room)
            self.assertRegex(out, r"command line: train.micro_batch=max: training does not fit the \d+ kB that are left on a node, with one sample at once")
            self.assertIn(advice, out)
            self.assertNotIn("whatever", out)
            self.assertNotIn("smallest limit", out)
        out = self.run_trainer(config, "train.recompute=none", "run.memory_limit=1MB", "--force", ranks=1, status=1)
        self.assertNotIn("whatever", out)

    def test_largest_is_accepted(self):
        """By a run with that limit; one more is not. A sample takes more than MPI does, which plan does without."""
        config = self.write(WIDE)
        for ranks in (0, 2):
            needs = [self.smallest(config, f"train.micro_batch={n}", ranks=ranks)[0] for n in (3, 4)]
            self.assertGreater(needs[1] - needs[0], max(ranks, 1) * 30 * MIB)
            limit = sum(needs) // 2
            for arguments in (("--memory", f"{limit}B"), (f"run.memory_limit={limit}B",), (f"run.memory_limit={limit}B", "--memory", "80GB"),
                              ("run.memory_limit=80GB", "--memory", f"{limit}B")):
                found = json.loads(self.tool("plan", config, "--largest", "--json", "--ranks", max(ranks, 1), *arguments))
                self.assertEqual((found["memory_bytes"], found["micro_batch"], found["largest_batch"]), (limit, 3, 3 * max(ranks, 1)), arguments)
            for n, status in ((3, 0), (4, 1)):
                self.run_trainer(config, f"train.micro_batch={n}", f"run.memory_limit={limit}B", "--force", ranks=ranks, status=status)

    def test_largest(self):
        config = self.write(DEEP.replace("samples: 2048", "samples: 1000000").replace("every_steps: 3}", "every_steps: 3, batch: 16}"))
        for where in (("--ranks", 2), ("--nodes", 2, "--ranks", 4)):
            found = json.loads(self.tool("plan", config, "--memory", "200MB", "--largest", "--json", *where))
            for key, extra in (("largest_batch", ("train.recompute=none",)), ("largest_batch_recomputed", ("train.recompute=blocks",))):
                for part, status in ((0.97, 0), (1.05, 1)):  # programs differ by pages
                    self.run_trainer("plan", config, "run.memory_limit=200MB", f"train.batch={round(found[key] * part)}", "train.accumulate=1",
                                     *extra, *where, ranks=0, status=status)
            self.assertGreater(found["largest_batch_recomputed"], found["largest_batch"])
            micro = json.loads(self.tool("plan", config, "--memory", "200MB", f"train.micro_batch={found['micro_batch']}", "--json", *where))
            self.assertEqual(micro["micro_batches"], found["micro_batches"])
        none = self.run_trainer("plan", config, "--memory", "1MB", "--largest", "--json", ranks=0, status=1)
        self.assertIn('"micro_batch":0', none.replace(" ", ""))
        text = self.tool("plan", config, "--memory", "90MB", "--largest")
        self.assertRegex(text, r"batch, in one micro-batch +\d+")
        self.assertIn("--memory 80GB", self.tool("plan", config, "--largest", "device=cuda", status=2))


if __name__ == "__main__":
    main()
