"""Stages that measure times: on rank 0, while the others wait."""
import os
import signal

from harness import Case, main


class Measuring(Case):
    def test_stop(self):
        """What measures for hours hears of a stop between two calls, and ends as all that is stopped."""
        self.run_trainer(self.config(steps=3, every=3))
        for stage, *options in (("benchmark", "seconds=10000"), ("benchmark", "seconds=0", "runs=1", "batches=[1]", "rates=[0.001]"),
                                ("profile", "mode=inference", "runs=100000", "batches=[4096]")):
            process, seen = self.start(stage, self.dir / "run/model.h5", *options), []
            for line in process.stdout:
                seen.append(line)
                if f"stage 01-{stage}" in line:
                    os.kill(self.rank_pids(process.pid)[0], signal.SIGTERM)  # the one that measures
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
