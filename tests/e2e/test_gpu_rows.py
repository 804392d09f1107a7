"""Cross entropy of rows, and language models, on the stand-in for a GPU: the tests of test_rows.py and test_text.py."""
import harness
from gpu import GpuCase

harness.Case = GpuCase

import test_text  # noqa: E402: the cases are to derive from GpuCase
from test_rows import Rows  # noqa: E402, F401: tests to be found here


class Text(test_text.Text):
    test_stages = test_refused = None  # of the CPU's


if __name__ == "__main__":
    harness.main()
