"""trainer sample on the stand-in for a GPU: the tests of test_sample.py."""
import harness
from gpu import GpuCase


class Commands(GpuCase):
    """What is trained is trained on the CPU; sample runs on the GPU."""

    def command(self, config, *arguments, **how):
        return super(GpuCase, self).command(config, *arguments, **how)

    def more(self):
        return ("device=cuda", "run.deterministic=on")


harness.Case = Commands

import test_sample  # noqa: E402: the cases are to derive from Commands


class Sample(test_sample.Sample):
    more = Commands.more
    test_refused = test_bf16 = test_seeds = None  # of the CPU's


if __name__ == "__main__":
    harness.main()
