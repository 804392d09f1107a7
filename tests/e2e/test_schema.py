#!/usr/bin/env python3
"""The JSON schemas of configs and sweeps, which editors check by: they take every config of the tree, and refuse what
tests/unit/config/test_bad.c has the trainer refuse by a table."""
import json
import pathlib
import re
import subprocess
import os
import unittest

import yaml

try:
    import jsonschema
except ImportError:
    jsonschema = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What a table says, and a schema with it; other messages are about several keys, or about the text itself.
BY_TABLE = re.compile(r"unknown key|found .*expected|required key|expected a map of keys|out of range|expected one$|unknown layer|expected .*stands twice")
# JSON has one kind of number: 64.0 is whole there.
SAME_NUMBER = {"64.0"}


class Loader(yaml.SafeLoader):
    """Numbers and booleans as the trainer reads them."""


Loader.yaml_implicit_resolvers = {}
for tag, pattern, first in (("bool", r"true|false", "tf"), ("null", r"~|null|", ["~", "n", ""]),
                            ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
                            ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+0123456789."),
                            ("merge", r"<<", "<")):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))
Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(node.value))


def load(text):
    return yaml.load(text, Loader)


def literal(text):
    """The value of C string literals, one behind the other."""
    return "".join(json.loads(f'"{part}"') for part in re.findall(r'"((?:[^"\\]|\\.)*)"', text))


@unittest.skipUnless(jsonschema, "python3-jsonschema is not installed")
class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        def schema(command):
            text = subprocess.run([os.environ["TRAINER"], command, "--schema"], check=True, capture_output=True, text=True).stdout
            made = json.loads(text)
            validator = jsonschema.validators.validator_for(made)
            validator.check_schema(made)
            return validator(made)
        cls.config, cls.sweep = schema("check"), schema("sweep")

    def test_every_config_of_the_tree(self):
        seen = 0
        for path in sorted((ROOT / "configs").rglob("*.yaml")):
            text = path.read_text()
            made = load(text)
            (self.sweep if "config" in made else self.config).validate(made)
            seen += 1
        self.assertGreater(seen, 5)

    def test_resolved(self):
        """What `trainer check` prints, with every key, is a config as well."""
        for name in ("digits.yaml", "compress.yaml"):
            text = subprocess.run([os.environ["TRAINER"], "check", ROOT / "configs" / name], check=True, capture_output=True, text=True).stdout
            self.config.validate(load(text))

    def test_bad(self):
        good = literal(re.search(r"GOOD =(.*?);", (ROOT / "tests/unit/config/good.h").read_text(), re.S)[1])
        self.config.validate(load(good))
        source = (ROOT / "tests/unit/config/test_bad.c").read_text()
        string = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
        refused = 0
        for case in re.finditer(r"\{\s*" + string + r",\s*" + string + r",\s*" + string + r"\}", source):
            old, new, expected = (literal(part) for part in case.groups())
            if not BY_TABLE.search(expected) or "pipeline" in expected or any(n in new for n in SAME_NUMBER):
                continue
            if "a list of 1, expected a text" in expected:  # but of tables, which list columns
                continue
            if re.search(r"documents: .*, as \w+ .*have$", expected):  # of a text, or a type of tokens
                continue
            try:
                made = load(good.replace(old, new))
            except yaml.YAMLError:
                continue
            with self.subTest(new=new, expected=expected):
                self.assertFalse(self.config.is_valid(made), f"{new!r} passes, but: {expected}")
                refused += 1
        self.assertGreater(refused, 40)

    def test_layers(self):
        good = load((ROOT / "configs/digits.yaml").read_text())

        def valid(layers, **more):
            return self.config.is_valid(dict(good, model=dict(good["model"], layers=layers, **more)))
        self.assertTrue(valid([{"linear": {"out": 10}}, "relu", {"x": {"residual": {}}}][:2]))
        for padding in ("same", 1, [1, 0]):
            self.assertTrue(valid([{"conv2d": {"out": 4, "kernel": 3, "padding": padding}}, {"maxpool2d": {"kernel": 3, "padding": padding}}]))
        self.assertFalse(valid([{"conv2d": {"out": 4, "kernel": 3, "padding": "valid"}}]))
        self.assertTrue(valid([{"maxpool2d": {"kernel": 2, "ceil": True}}]), "the name that ceil_mode had")
        for bad in ([{"linear": {}}], [{"linear": None}], ["linear"], ["rleu"], [{"rleu": {}}], [{"linear": {"out": 10, "bais": True}}],
                    [{"linear": {"out": "ten"}}], [{"linear": {"out": 0}}], [{"relu": {}, "tanh": {}}], [], {"linear": {"out": 10}},
                    [{"residual": {"body": [{"linear": {"out": -1}}]}}], [{"repeat": {"times": 2}}]):
            self.assertFalse(valid(bad), bad)
        unit = {"unit": {"params": {"out": None}, "layers": [{"linear": {"out": "$out"}}]}}
        self.assertTrue(valid([{"unit": {"out": 4}}, {"linear": {"out": "$width * 2"}}], define=unit, params={"width": 4}))
        self.assertFalse(valid([{"unit": {"out": 4}}]))


if __name__ == "__main__":
    unittest.main()
