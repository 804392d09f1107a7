"""Every option on a GPU: the tests of test_options.py, test_machine.py, test_data.py and test_mix.py, with the same tolerances, on the
stand-in. Those that name what only CPUs have are written anew."""
import numpy as np

import harness
from gpu import GpuCase

harness.Case = GpuCase

import test_machine  # noqa: E402: the cases are to derive from GpuCase
from test_data import Data  # noqa: E402, F401: tests to be found here
from test_mix import Mixed  # noqa: E402, F401
from test_options import Files, Losses, Schedules, Updates  # noqa: E402, F401


class Machine(test_machine.Machine):
    def test_collectives(self):
        for name, argument in (("auto", "run.collectives=auto"), ("nccl", "run.collectives=nccl"),
                               ("mpi", "run.collectives=mpi"), ("small", "run.bucket_mb=0.001"),
                               ("one", "run.workspace_mb=1")):
            out = self.run_trainer(self.config(name, steps=12), argument, ranks=2)
            np.testing.assert_allclose(self.losses(name), self.losses("auto"), rtol=1e-4, err_msg=out)
            self.assertIn("MPI through host memory" if name == "mpi" else "NCCL", out)
        self.assertEqual(self.losses("nccl"), self.losses("auto"))
        out = self.run_trainer(self.config("shared"), "run.collectives=shared", status=2)
        self.assertIn("run.collectives: shared is for CPUs", out)

    def test_precision(self):
        """Parameters stay float32 in files; losses follow those of float32, closer with fp16's longer mantissa."""
        off = {}
        for precision in ("fp32", "bf16", "fp16"):
            self.run_trainer(self.config(precision, steps=20), f"train.precision={precision}", "train.loss_scale=128")
            off[precision] = np.abs(np.subtract(self.losses(precision), self.losses("fp32"))).max()
            for name, array in self.arrays(self.dir / precision / "model.h5").items():
                if name.startswith("model/"):
                    self.assertEqual(array.dtype, np.float32)
        np.testing.assert_allclose(self.losses("bf16"), self.losses("fp32"), rtol=0.1, atol=0.03)
        self.assertGreater(off["bf16"], off["fp16"])
        self.assertGreater(off["fp16"], 0)


if __name__ == "__main__":
    harness.main()
