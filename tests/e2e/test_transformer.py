"""Hugging Face's GPT-2, Llama, BERT and ViT by `transformer`: their state_dicts are model.init_from; logits and one step of SGD
are torch's (tests/golden/language.h5)."""
import h5py
import numpy as np

from harness import SOURCE, Case, main
from test_init_from import write_safetensors

FLOAT = dict(rtol=1e-4, atol=1e-5)  # torch computed in float64
# By model: inputs, what init_from says beside the file, layers; where our arrays of one layer are its own otherwise.
BERT = "layers: 2, heads: 4, mlp: 40, qkv: separate, causal: false"
MODELS = {
    "gpt2": ("{x: [11]}", """
    transpose: ["*.c_attn.weight", "*.c_proj.weight", "*.c_fc.weight"]
    map:
      transformer.wte.*: wte.*
      transformer.wpe.*: wpe.*
      transformer.ln_f.*: ln_f.*
      transformer.h.*.ln_*.*: h.*.norm*.*
      transformer.h.*.attn.c_attn.*: h.*.qkv.*
      transformer.h.*.attn.c_proj.*: h.*.proj.*
      transformer.h.*.mlp.c_fc.*: h.*.up.*
      transformer.h.*.mlp.c_proj.*: h.*.down.*""", """
    - embedding: {name: wte, num: 41, dim: 16}
    - positions: {name: wpe}
    - transformer: {name: h, layers: 2, heads: 4, activation: gelu_tanh, causal: true}
    - layernorm: {name: ln_f}
    - linear: {name: lm_head, out: 41, bias: false, weight_of: wte}"""),
    "llama": ("{x: [11]}", """
    map:
      model.embed_tokens.*: embed_tokens.*
      model.norm.*: norm.*
      model.layers.*.input_layernorm.*: layers.*.norm1.*
      model.layers.*.post_attention_layernorm.*: layers.*.norm2.*
      model.layers.*.self_attn.o_proj.*: layers.*.proj.*
      model.layers.*.self_attn.*_proj.*: layers.*.*.*
      model.layers.*.mlp.*_proj.*: layers.*.*.*""", """
    - embedding: {name: embed_tokens, num: 41, dim: 16}
    - transformer: {name: layers, layers: 2, heads: 4, kv_heads: 2, mlp: 40, norm_type: rmsnorm, activation: swiglu,
                    position: rotary, bias: false, causal: true}
    - rmsnorm: {name: norm, eps: 1.0e-5}
    - linear: {name: lm_head, out: 41, bias: false}"""),
    "bert": ("{x: [11], types: [11], lengths: [1]}", """
    map:
      bert.embeddings.word_embeddings.*: words.*
      bert.embeddings.position_embeddings.*: places.*
      bert.embeddings.token_type_embeddings.*: types_of.*
      bert.embeddings.LayerNorm.*: norm.*
      bert.encoder.layer.*.attention.self.query.*: layer.*.q.*
      bert.encoder.layer.*.attention.self.key.*: layer.*.k.*
      bert.encoder.layer.*.attention.self.value.*: layer.*.v.*
      bert.encoder.layer.*.attention.output.dense.*: layer.*.proj.*
      bert.encoder.layer.*.attention.output.LayerNorm.*: layer.*.norm1.*
      bert.encoder.layer.*.intermediate.dense.*: layer.*.up.*
      bert.encoder.layer.*.output.dense.*: layer.*.down.*
      bert.encoder.layer.*.output.LayerNorm.*: layer.*.norm2.*
      bert.pooler.dense.*: pooler.*""", f"""
    - embedding: {{name: words, num: 41, dim: 16, from: x}}
    - positions: {{name: places}}
    - embedding: {{name: types_of, num: 2, dim: 16, from: types}}
    - add: {{from: [places, types_of]}}
    - layernorm: {{name: norm, eps: 1.0e-12}}
    - transformer: {{name: layer, {BERT}, norm: post, eps: 1.0e-12, from: [norm, lengths]}}
    - select: {{index: 0}}
    - linear: {{name: pooler, out: 16}}
    - tanh
    - linear: {{name: classifier, out: 3}}"""),
    "vit": ("{x: [3, 12, 12]}", """
    map:
      vit.embeddings.cls_token: cls.weight
      vit.embeddings.position_embeddings: places.weight
      vit.embeddings.patch_embeddings.projection.*: patches.*
      vit.encoder.layer.*.attention.attention.query.*: layer.*.q.*
      vit.encoder.layer.*.attention.attention.key.*: layer.*.k.*
      vit.encoder.layer.*.attention.attention.value.*: layer.*.v.*
      vit.encoder.layer.*.attention.output.dense.*: layer.*.proj.*
      vit.encoder.layer.*.intermediate.dense.*: layer.*.up.*
      vit.encoder.layer.*.output.dense.*: layer.*.down.*
      vit.encoder.layer.*.layernorm_before.*: layer.*.norm1.*
      vit.encoder.layer.*.layernorm_after.*: layer.*.norm2.*
      vit.layernorm.*: norm.*""", f"""
    - conv2d: {{name: patches, out: 16, kernel: 4, stride: 4}}
    - reshape: {{dims: [16, 9]}}
    - permute: {{dims: [2, 1]}}
    - class_token: {{name: cls}}
    - positions: {{name: places}}
    - transformer: {{name: layer, {BERT}, eps: 1.0e-12}}
    - layernorm: {{name: norm, eps: 1.0e-12}}
    - select: {{index: 0}}
    - linear: {{name: classifier, out: 3}}"""),
}
CONFIG = """
name: {name}
device: cpu
data: {{train: {{inputs: {files}, labels: y.npy}}, shuffle: false}}
model:
  inputs: {inputs}
  init_from:
    file: weights.safetensors{how}
  layers:{layers}
  loss: cross_entropy
train: {{steps: 1, batch: 5, log_every: 1, optimizer: {{sgd: {{lr: 0.1, momentum: 0}}}}, schedule: constant}}
"""


class Transformer(Case):
    def check(self, name):
        inputs, how, layers = MODELS[name]
        with h5py.File(SOURCE / "tests/golden/language.h5") as f:
            g = f[name]
            weights, after = ({k: v[()] for k, v in self.named(g[part]).items()} for part in ("weights", "after"))
            loss, logits = g["loss"][()], g["logits"][()]
            for key, value in g["inputs"].items():
                np.save(self.dir / f"{key}.npy", value[()])
            np.save(self.dir / "y.npy", g["y"][()])
            files = "{" + ", ".join(f"{key}: {key}.npy" for key in g["inputs"]) + "}"
        write_safetensors(self.dir / "weights.safetensors", weights)
        (self.dir / "run.yaml").write_text(CONFIG.format(name=name, inputs=inputs, how=how, layers=layers, files=files))
        self.run_trainer("import", "weights.safetensors", "w.h5", "--config", "run.yaml", ranks=0)
        if logits.ndim == 2:  # one answer a sample; of a language model the loss and its gradients tell
            self.run_trainer("predict", "w.h5", f"data.predict={{inputs: {files}}}", "-o", "z.npy", "--raw", "--quiet", ranks=0)
            np.testing.assert_allclose(np.load(self.dir / "z.npy"), logits, **FLOAT)
        # what the step makes of the weights: through the same map
        write_safetensors(self.dir / "weights.safetensors", after)
        self.run_trainer("import", "weights.safetensors", "after.h5", "--config", "run.yaml", ranks=0)
        write_safetensors(self.dir / "weights.safetensors", weights)
        want = self.arrays(self.dir / "after.h5")
        for ranks in (1, 2):
            self.run_trainer("run.yaml", f"output=run{ranks}", ranks=ranks)
            self.assertAlmostEqual(self.losses(f"run{ranks}")[0], loss, places=5)
            got = self.arrays(self.dir / f"run{ranks}/model.h5")
            for key in (k for k in want if k.startswith("model/params")):
                np.testing.assert_allclose(got[key], want[key], err_msg=key, **FLOAT)

    def named(self, group):
        found = {}
        group.visititems(lambda k, v: found.__setitem__(k, v) if isinstance(v, h5py.Dataset) else None)
        return found

    def test_gpt2(self):
        self.check("gpt2")

    def test_llama(self):
        self.check("llama")

    def test_bert(self):
        self.check("bert")

    def test_vit(self):
        self.check("vit")


if __name__ == "__main__":
    main()
