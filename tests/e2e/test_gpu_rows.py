"""Cross entropy of rows, and language models, on the stand-in for a GPU: the tests of test_rows.py, test_text.py, test_tokens.py
and test_tokenize_text.py."""
import harness
from gpu import GpuCase

Plain = harness.Case


class Commands(GpuCase):
    """Of commands, what comes first is no config."""

    def command(self, config, *arguments, **how):
        if str(config) not in ("evaluate", "predict", "check", "export"):
            return super().command(config, *arguments, **how)
        return Plain.command(self, config, *arguments, "device=cuda", *self.same_bits, **how)


harness.Case = Commands

import test_text  # noqa: E402: the cases are to derive from Commands
import test_tokenize_text  # noqa: E402
import test_tokens  # noqa: E402
from test_rows import Rows  # noqa: E402, F401: tests to be found here


class Text(test_text.Text):
    test_stages = test_byte_gpt = test_lstm_text = test_sees_its_targets = test_initial_values_are_past = None  # of the CPU's


class Tokens(test_tokens.Tokens):
    test_refused = test_no_separator = test_other_files_are_of_trains_kind = None


class TokenizeText(test_tokenize_text.TokenizeText):
    test_tokenize = None


if __name__ == "__main__":
    harness.main()
