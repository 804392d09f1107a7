"""Where ranks land: which GPU each of a node's ranks takes, where a launcher shows different ones to them."""
import os
import shutil
import signal
import time

from gpu import GpuCase
from harness import main


class Places(GpuCase):
    """What a launcher does that shows each rank GPUs of its own: Slurm's --gpu-bind, a script that sets
    CUDA_VISIBLE_DEVICES."""

    shown = ()  # to rank 0, to rank 1, ...

    def command(self, config, *arguments, ranks=2, program=None):
        command = super().command(config, *arguments, ranks=1, program=program)
        at = command.index("1") + 1
        launcher, job = command[:at - 2], command[at:]
        for devices in self.shown:
            launcher += ["-np", "1", "env", f"CUDA_VISIBLE_DEVICES={devices}", *job, ":"]
        return launcher[:-1]

    def show(self, *shown):
        self.shown = shown

    def test_sets(self):
        """Two sockets and ranks dealt round, sets that overlap, all for all, one each: always the same job."""
        want = {}
        for i, shown in enumerate((("0,1,2", "0,1,2"), ("0", "1"), ("0,1", "0"), ("0", "0,1"), ("1,0", "1"),
                                   ("0,1", "2,3", "0,1"), ("0,1", "2,3", "0,1", "2,3"), ("0,1,2,3",) * 4)):
            with self.subTest(shown=shown):
                self.show(*shown)
                losses = self.losses_of(f"r{i}", values=dict(steps=4))
                self.assertEqual(self.records(f"r{i}", "start")[0]["ranks"], len(shown))
                self.assertEqual(losses, want.setdefault(len(shown), losses))

    def test_impossible(self):
        """Enough GPUs, but not for these ranks; too few, counted once each."""
        for name, shown, words in (
                ("crowd", ("3", "0,1,2", "3"),
                 "ranks 0, 2 see only 1 GPU between them, though its 3 ranks see 4 together: show all of the node's GPUs to "
                 "every rank (srun --gpu-bind=none, CUDA_VISIBLE_DEVICES), or to each rank another"),
                ("few", ("0", "0,1", "1"), "has 2 visible GPUs for 3 ranks: start 2 ranks on it (mpirun --map-by ppr:2:node)")):
            with self.subTest(shown=shown):
                self.show(*shown)
                config = self.config(name, steps=2)
                out = self.run_trainer(config, "device=cuda", status=2)
                self.assertEqual(out.count(words + ", or set device: cpu"), 1, out)
                self.assertFalse((self.dir / name).exists())
                out = self.run_trainer(config, "device=auto")
                self.assertEqual(out.count("device: auto takes the CPU: "), 1, out)
                self.assertEqual(out.count(words), 1, out)
                self.assertEqual(self.records(name, "start")[0]["device"], "cpu")


class Groups(GpuCase):
    def test_sweep(self):
        """Trials side by side, each on a GPU of its own: to the bit what they are alone; a signal to one rank stops both."""
        plain = ("device=cuda", *self.same_bits)
        (self.dir / "sweep.yaml").write_text("config: run.yaml\noutput: sweep\nranks_per_trial: 1\ngrid: {seed: [1, 2]}\n")
        alone = [self.losses_of("run", f"seed={seed}", "--force", values=dict(steps=4), ranks=1) for seed in (1, 2)]
        out = self.run_trainer("sweep", "sweep.yaml", *plain)
        self.assertIn("2 trials at a time, on 1 rank each", out)
        for k in (0, 1):
            name = f"sweep/trial-{k:03}"
            self.assertEqual(self.losses(name), alone[k])
            self.assertEqual(self.records(name, "start")[0]["device"], "cuda")
        shutil.rmtree(self.dir / "sweep")
        process = self.start("sweep", "sweep.yaml", "train.steps=100000000", *plain)
        self.addCleanup(process.kill)
        while not all((self.dir / f"sweep/trial-{k:03}/metrics.jsonl").exists() for k in (0, 1)) and process.poll() is None:
            time.sleep(0.01)
        os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, out)
        self.assertEqual(len({f.parent for f in self.dir.glob("sweep/trial-*/checkpoints/step-*.h5")}), 2)


if __name__ == "__main__":
    main()
