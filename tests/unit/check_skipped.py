#!/usr/bin/env python3
"""What tests/skipped.py reads from a log of ctest, planted here, and what --must refuses."""
import contextlib
import io
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True
import skipped

RAN = [("e2e/test_hosts", "OK", False), ("e2e/test_disks", "OK", False)]
AARCH64 = ("unit/aarch64", "skipped: aarch64-linux-gnu-gcc is not installed (Debian: gcc-aarch64-linux-gnu)", True)
BUNDLE = ("gpu/bundle", "skipped: patchelf is not installed", True)
SCHEMA = ("e2e/test_schema", "test_rows (__main__.Schema.test_rows) ... skipped 'python3-jsonschema is not installed'", False)
TOKENIZER = ("e2e/test_tokenize_text", "test_real_tokenizer (__main__.T.test_real_tokenizer)\nA BPE tokenizer.json ... skipped "
             "'no package `tokenizers` here, nor in the Python that TRIREME_PEERS names'", False)
DRIVER = ("gpu/no_device", "test_gone (__main__.Gone.test_gone) ... skipped 'there is a driver'", False)


def log(tests):
    return "".join(f"{n}/{len(tests)} Testing: {name}\n{n}/{len(tests)} Test: {name}\nOutput:\n{'-' * 58}\n{text}\n<end of output>\n"
                   f"Test {'Skipped' if whole else 'Passed'}.\n" for n, (name, text, whole) in enumerate(tests, 1))


class Skipped(unittest.TestCase):
    def run_on(self, *tests, apt=True, must=True, namespaces=None, peers=""):
        """(what is printed, why it ends with an error or None). namespaces: why there are none."""
        said, error = io.StringIO(), None
        with tempfile.TemporaryDirectory() as build, contextlib.redirect_stdout(said), \
                unittest.mock.patch.object(shutil, "which", lambda _: "/usr/bin/apt-get" if apt else None), \
                unittest.mock.patch.dict(os.environ, TRIREME_PEERS=peers), \
                unittest.mock.patch.dict(sys.modules, namespaces=unittest.mock.Mock(why_not=lambda: namespaces)):
            path = pathlib.Path(build, "Testing/Temporary/LastTest.log")
            path.parent.mkdir(parents=True)
            path.write_text(log([*RAN, *tests]))
            try:
                skipped.main([*(["--must"] if must else []), build])
            except SystemExit as e:
                error = e.code
        return said.getvalue(), error

    def test_reasons(self):
        self.assertEqual(self.run_on(must=False), ("Skipped: nothing\n", None))
        said, error = self.run_on(AARCH64, BUNDLE, SCHEMA, DRIVER, ("unit/silent", "", True), must=False)
        self.assertIsNone(error)
        self.assertEqual(said.splitlines(), [
            "Skipped:", "  unit/aarch64: aarch64-linux-gnu-gcc is not installed (Debian: gcc-aarch64-linux-gnu)",
            "  gpu/bundle: patchelf is not installed", "  e2e/test_schema: test_rows: python3-jsonschema is not installed",
            "  gpu/no_device: test_gone: there is a driver", "  unit/silent: as a whole"])

    def test_what_could_be_installed(self):
        for test in (AARCH64, BUNDLE, SCHEMA):
            self.assertIn(f"could have it: {test[0]}: ", self.run_on(DRIVER, test)[1])
            self.assertIsNone(self.run_on(test, apt=False)[1])
        self.assertIsNone(self.run_on(DRIVER)[1])
        self.assertIn("could have it: e2e/test_tokenize_text: test_real_tokenizer: ", self.run_on(TOKENIZER, peers="python")[1])
        self.assertIsNone(self.run_on(TOKENIZER)[1])
        self.assertIsNone(self.run_on(TOKENIZER, peers="python", must=False)[1])

    def test_what_must_run(self):
        hosts = ("e2e/test_hosts", "test_two (__main__.Hosts.test_two) ... skipped 'no namespaces'", False)
        alone = ("e2e/test_disks/long", "test_own (__main__.Disks.test_own) ... skipped 'a process namespace of its own'", False)
        self.assertIn("and yet: e2e/test_hosts was skipped in part", self.run_on(hosts)[1])
        self.assertIsNone(self.run_on(alone)[1])
        said, error = self.run_on(hosts, namespaces="no namespaces for pretend hosts")
        self.assertIsNone(error)
        self.assertIn("here they cannot: no namespaces for pretend hosts", said)


if __name__ == "__main__":
    unittest.main()
