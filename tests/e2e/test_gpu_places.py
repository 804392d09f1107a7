"""Where ranks land: which GPU each of a node's ranks takes, where a launcher shows different ones to them."""
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


if __name__ == "__main__":
    main()
