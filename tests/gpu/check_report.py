#!/usr/bin/env python3
"""The time and the memory of tests/gpu/run: a part gets its share and what those before it left; a part that time cut
short is gone on with by the next call, a whole one is not run again."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import report as reports


class Parts(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        reports.time = self  # its monotonic()

    def monotonic(self):
        return self.now

    def part(self, report, name, share, items, cost):
        """Of so many items those for which there is time; how many seconds there were."""
        seen, ran = [], []

        def work():
            seen.append(round(report.left()))
            for item in items:
                if report.passed_before(item):
                    continue
                if report.left() < cost:
                    report.skip(item, "no time left")
                    continue
                self.now += cost
                ran.append(item)
                report.say("PASS", item, f"{name} {item}")

        report.run_part(name, share, work)
        return seen, ran

    def test_time(self):
        report = reports.Report(100)
        self.assertEqual(self.part(report, "a", 40, "xy", 5), ([40], ["x", "y"]))
        self.assertEqual(self.part(report, "b", 30, "xyz", 25), ([60], ["x", "y"]))
        self.assertEqual(self.part(report, "c", 30, "x", 8), ([40], ["x"]))
        self.assertEqual(self.part(report, "d", 0, "x", 40), ([32], []))
        self.assertEqual(report.done, ["a", "c"])
        self.assertEqual(report.not_shown("abcd"), ["b", "d"])

    def test_going_on(self):
        first = reports.Report(100)
        self.part(first, "a", 50, "x", 5)
        self.part(first, "b", 10, "xyz", 25)
        self.assertEqual(first.done, ["a"])
        kept = json.loads(json.dumps([first.rows, first.done, first.markdown]))
        second = reports.Report(100)
        second.go_on(*kept)
        self.assertEqual(second.done, ["a"])
        self.assertEqual(self.part(second, "b", 100, "xyz", 25), ([100], ["z"]))
        self.assertEqual(second.done, ["a", "b"])
        self.assertEqual(second.rows, [("a", "x", "PASS", "a x"), *(("b", i, "PASS", f"b {i}") for i in "xyz")])
        self.assertFalse(second.not_shown("ab"))


if __name__ == "__main__":
    unittest.main()
