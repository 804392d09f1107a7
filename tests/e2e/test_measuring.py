"""Stages that measure times: on rank 0, while the others wait."""
import os
import pathlib
import signal
import time

from harness import CNN, Case, main


def ticks(pid):
    """Processor time so far, in hundredths of a second."""
    return sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))


class Measuring(Case):
    def others_sleep(self, stage, *options):
        """While rank 0 times, the other one takes next to no processor time."""
        process = self.start(stage, "run/model.h5", *options, "run.threads=1", "--force")
        seen = next(line for line in process.stdout if f"stage 01-{stage}" in line)
        ranks, first, last = self.rank_pids(process.pid), None, None
        self.assertEqual(len(ranks), 2, seen)
        while process.poll() is None:
            try:
                last = [ticks(pid) for pid in ranks]
            except OSError:
                break
            first = first or last
            time.sleep(0.02)
        said = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, said)
        busy, idle = (b - a for a, b in zip(first, last))
        self.assertGreater(busy, 30, said)  # or it is not worth a look
        self.assertLess(idle, 0.5 * busy, (first, last))

    def test_others_sleep(self):
        self.run_trainer(self.config(steps=3, every=3, text=CNN.replace("out: 8", "out: 96")))
        for stage, *options in (("benchmark", "batches=[1]", "seconds=1", "runs=5"),
                                ("profile", "mode=inference", "batches=[64]", "runs=20"),
                                ("prune", "measure=latency", "amount=0.3"),
                                ("quantize", "layers=auto", "samples=16", "batch=64")):
            with self.subTest(stage):
                self.others_sleep(stage, *options)

    def test_stop(self):
        """What measures for hours hears of a stop between two calls, whichever rank is told, and ends as all that is stopped."""
        self.run_trainer(self.config(steps=3, every=3))
        for stage, *options in (("benchmark", "seconds=10000"), ("benchmark", "seconds=0", "runs=1", "batches=[1]", "rates=[0.001]"),
                                ("profile", "mode=inference", "runs=100000", "batches=[4096]"),
                                ("quantize", "samples=16", "batch=65536")):
            process, seen = self.start(stage, self.dir / "run/model.h5", *options), []
            for line in process.stdout:
                seen.append(line)
                if f"stage 01-{stage}" in line:
                    os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)  # not the one that measures
                    break
            said = "".join(seen) + process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 75, said)
            self.assertIn("stopped between two", said)
            self.assertFalse((self.dir / f"run/model-{stage}.h5").exists())

    def test_stop_of_rounding(self):
        """Nor does what learns for minutes keep a job from its end."""
        wide = """
            name: wide
            device: cpu
            output: run
            data: {train: {format: synthetic, samples: 16}}
            model: {input: [1152], layers: [linear: {out: 20000}, relu, linear: {out: 4}], loss: cross_entropy}
            train: {steps: 1, batch: 16, optimizer: {sgd: {lr: 0.1}}}
            """
        (self.dir / "wide.yaml").write_text(wide)
        self.run_trainer("wide.yaml", ranks=1)
        process, seen = self.start("quantize", "run/model.h5", "samples=16", "rounding=adaround", "run.threads=1"), []
        for line in process.stdout:
            seen.append(line)
            if "stage 01-quantize" in line:
                os.kill(self.rank_pids(process.pid)[1], signal.SIGTERM)
                break
        said = "".join(seen) + process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 75, said)
        self.assertIn("stopped while roundings were learned", said)


if __name__ == "__main__":
    main()
