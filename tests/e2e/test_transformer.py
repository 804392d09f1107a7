"""Hugging Face's GPT-2, Llama, BERT and ViT as docs/recipes.md writes them: their state_dicts are model.init_from; logits and one
step of SGD are torch's (tests/golden/language.h5), the logits by an ONNX file that is read back, too, and so is the state_dict that
an export by the same map writes."""
import json
import re
import shlex

import h5py
import numpy as np
import yaml

from harness import SOURCE, Case, main
from test_init_from import read_safetensors, write_safetensors

FLOAT = dict(rtol=1e-4, atol=1e-5)  # torch computed in float64
# The models of docs/recipes.md, in their order.
RECIPES = dict(zip(("gpt2", "gpt2-saved", "llama", "bert", "vit"), (
    yaml.safe_load(text)["model"] for text in re.findall(
        r"(?ms)^```yaml\n(.*?)^```$", (SOURCE / "docs/recipes.md").read_text().split("## Weights of GPT-2")[1].split("\n## ")[0]))))
RECIPES["gpt2-saved"] = RECIPES["gpt2"] | RECIPES["gpt2-saved"]  # the same model
# How their values go out again.
EXPORT = re.search(r"(?m)^trainer export runs/mine/model.h5 (.*format=safetensors.*)$",
                   (SOURCE / "docs/recipes.md").read_text().split("## Weights of GPT-2")[1])[1]
WORDS, WIDTH, CLASSES = 41, 16, 3


def small(name, inputs):
    """A recipe in the sizes of language.h5."""
    model = json.loads(json.dumps(RECIPES[name]))
    sizes = {"embedding": lambda o: {"num": 2 if o["num"] == 2 else WORDS, "dim": WIDTH},
             "patch_embedding": lambda o: {"size": 4, "dim": WIDTH},
             "transformer": lambda o: {"layers": 2, "heads": 4, **({"kv_heads": 2} if "kv_heads" in o else {}),
                                       **({} if name.startswith("gpt2") else {"mlp": 40})},
             "linear": lambda o: {"out": {"pooler": WIDTH, "classifier": CLASSES}.get(o["name"], WORDS)}}
    for layer in (of for of in model["layers"] if isinstance(of, dict)):
        for kind, options in layer.items():
            options |= sizes.get(kind, lambda o: {})(options)
    model.pop("input", None)
    model["inputs"] = inputs
    model["init_from"] |= {"file": "weights.safetensors", "strict": True}
    return model


class Transformer(Case):
    def check(self, name):
        with h5py.File(SOURCE / "tests/golden/language.h5") as f:
            g = f[name.split("-")[0]]
            hub = name == "gpt2"  # there without its head's module
            weights, after = ({k.removeprefix("transformer." if hub else ""): v[()] for k, v in self.named(g[part]).items()}
                              for part in ("weights", "after"))
            loss, logits = g["loss"][()], g["logits"][()]
            for key, value in g["inputs"].items():
                np.save(self.dir / f"{key}.npy", value[()])
            np.save(self.dir / "y.npy", g["y"][()])
            files = {key: f"{key}.npy" for key in g["inputs"]}
            model = small(name, {key: list(value.shape[1:]) for key, value in g["inputs"].items()})
        written = {k: v for k, v in RECIPES[name].items() if k != "init_from"}
        (self.dir / "recipe.yaml").write_text(json.dumps({
            "name": name, "data": {"train": {"format": "synthetic", "samples": 5}}, "model": {**written, "loss": "cross_entropy"},
            "train": {"steps": 1, "batch": 5, "optimizer": {"sgd": {"lr": 0.1}}}}))
        self.run_trainer("check", "recipe.yaml", ranks=0)
        write_safetensors(self.dir / "weights.safetensors", weights)
        (self.dir / "run.yaml").write_text(json.dumps({
            "name": name, "device": "cpu", "data": {"train": {"inputs": files, "labels": "y.npy"}, "shuffle": False},
            "model": {**model, "loss": "cross_entropy"},
            "train": {"steps": 1, "batch": 5, "log_every": 1, "optimizer": {"sgd": {"lr": 0.1, "momentum": 0}}, "schedule": "constant"}}))
        self.run_trainer("import", "weights.safetensors", "w.h5", "--config", "run.yaml", ranks=0)
        if logits.ndim == 3:  # `predict` writes one answer a sample: the rows of a language model as one
            (self.dir / "flat.yaml").write_text(json.dumps({
                "name": name, "device": "cpu", "data": {"train": {"inputs": files, "labels": "y.npy"}},
                "model": {**model, "layers": [*model["layers"], "flatten"], "loss": "cross_entropy"},
                "train": {"steps": 1, "batch": 5, "optimizer": {"sgd": {"lr": 0.1}}}}))
        self.run_trainer("import", "weights.safetensors", "z.h5", "--config", "flat.yaml" if logits.ndim == 3 else "run.yaml", ranks=0)
        self.run_trainer("predict", "z.h5", f"data.predict={json.dumps({'inputs': files})}", "-o", "z.npy", "--raw", "--quiet", ranks=0)
        np.testing.assert_allclose(np.load(self.dir / "z.npy").reshape(logits.shape), logits, **FLOAT)
        # as ONNX, read back: the same answers
        self.run_trainer("export", "z.h5", ranks=0)
        self.run_trainer("import", "z-export.onnx", "onnx.h5", ranks=0)
        self.run_trainer("predict", "onnx.h5", f"data.predict={json.dumps({'inputs': files})}", "-o", "onnx.npy", "--raw", "--quiet", ranks=0)
        np.testing.assert_allclose(np.load(self.dir / "onnx.npy").reshape(logits.shape), logits, **FLOAT)
        # what the step makes of the weights: through the same map
        write_safetensors(self.dir / "weights.safetensors", after)
        self.run_trainer("import", "weights.safetensors", "after.h5", "--config", "run.yaml", ranks=0)
        write_safetensors(self.dir / "weights.safetensors", weights)
        want = self.arrays(self.dir / "after.h5")
        # what came in by `import` goes out as it came
        self.run_trainer("export", "after.h5", *shlex.split(EXPORT), ranks=0)
        out = read_safetensors(self.dir / "after-export.safetensors")
        self.assertEqual(set(out), set(after))
        for key, value in after.items():
            np.testing.assert_array_equal(out[key], value.astype(np.float32), err_msg=key)
        for ranks in (1, 2):
            self.run_trainer("run.yaml", f"output=run{ranks}", ranks=ranks)
            self.assertAlmostEqual(self.losses(f"run{ranks}")[0], loss, places=5)
            got = self.arrays(self.dir / f"run{ranks}/model.h5")
            for key in (k for k in want if k.startswith("model/params")):
                np.testing.assert_allclose(got[key], want[key], err_msg=key, **FLOAT)
        self.run_trainer("export", "run2/model.h5", *shlex.split(EXPORT), ranks=0)
        out = read_safetensors(self.dir / "run2/model-export.safetensors")
        self.assertEqual({k: v.shape for k, v in out.items()}, {k: v.shape for k, v in after.items()})
        for key, value in after.items():
            np.testing.assert_allclose(out[key], value, err_msg=key, **FLOAT)
        self.run_trainer("import", "run2/model-export.safetensors", "back.h5", "--config", "run.yaml", ranks=0)
        self.assert_same_model(self.dir / "run2/model.h5", self.dir / "back.h5")

    def named(self, group):
        found = {}
        group.visititems(lambda k, v: found.__setitem__(k, v) if isinstance(v, h5py.Dataset) else None)
        return found

    def test_gpt2(self):
        self.check("gpt2")

    def test_gpt2_saved(self):
        self.check("gpt2-saved")

    def test_llama(self):
        self.check("llama")

    def test_bert(self):
        self.check("bert")

    def test_vit(self):
        self.check("vit")


if __name__ == "__main__":
    main()
