#!/usr/bin/env python3
"""Makes language.h5: small transformers of Hugging Face's with random weights. Needs torch, transformers, numpy and h5py; tests
do not. tests/e2e/test_transformer.py reads it.

    python3 language.py [FOLDER]

A group a model: `weights/NAME` by its own names, `inputs/NAME`, `y`, `logits` as it is evaluated, and after one step of SGD
(RATE) on cross entropy `loss` and `after/NAME`. Computed in float64."""
import os
import sys

import h5py
import numpy as np
import torch
import transformers
from torch import nn

RATE, WORDS, TOKENS, SAMPLES, CLASSES = 0.1, 41, 11, 5, 3
SMALL = dict(vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=TOKENS)
NO_DROPOUT = dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0)


def models():
    t = transformers
    yield "gpt2", t.GPT2LMHeadModel(t.GPT2Config(vocab_size=WORDS, n_positions=TOKENS, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0,
                                                 embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))
    yield "llama", t.LlamaForCausalLM(t.LlamaConfig(**SMALL, intermediate_size=40, num_key_value_heads=2, rms_norm_eps=1e-5,
                                                    tie_word_embeddings=False))
    yield "bert", t.BertForSequenceClassification(t.BertConfig(**SMALL, **NO_DROPOUT, intermediate_size=40, num_labels=CLASSES))
    yield "vit", t.ViTForImageClassification(t.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, image_size=12, patch_size=4,
        num_labels=CLASSES, **NO_DROPOUT))


def given(name):
    """What the model reads, by our names and by its own; labels."""
    ids = torch.randint(1, WORDS, (SAMPLES, TOKENS))  # not 0, BERT's padding, whose row has no gradient there
    if name == "vit":
        x = torch.randn(SAMPLES, 3, 12, 12)
        return {"x": x}, {"pixel_values": x.double()}, torch.arange(SAMPLES) % CLASSES
    if name == "bert":
        lengths = torch.tensor([TOKENS, 1, 4, 7, TOKENS])
        mask = (torch.arange(TOKENS)[None] < lengths[:, None]).long()
        types = torch.randint(0, 2, (SAMPLES, TOKENS))
        return ({"x": ids, "types": types, "lengths": lengths[:, None]},
                {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}, torch.arange(SAMPLES) % CLASSES)
    return {"x": ids}, {"input_ids": ids}, torch.randint(0, WORDS, (SAMPLES, TOKENS))


# Files on the hub have the names of before transformers 5.
OLD = {"vit.layers.": "vit.encoder.layer.", "attention.q_proj": "attention.attention.query", "attention.k_proj": "attention.attention.key",
       "attention.v_proj": "attention.attention.value", "attention.o_proj": "attention.output.dense",
       "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}


def published(name):
    for new, old in OLD.items():
        name = name.replace(new, old) if name.startswith("vit.") else name
    return name


def state(model):
    return {published(k): v for k, v in model.state_dict().items() if v.dtype.is_floating_point and not (
        "lm_head" in k and model.config.tie_word_embeddings)}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    torch.manual_seed(5)
    with h5py.File(os.path.join(folder, "language.h5"), "w", libver=("v108", "v108")) as f:
        f.attrs["made_by"] = f"torch {torch.__version__}, transformers {transformers.__version__}"
        for name, model in models():
            g = f.create_group(name)
            for p in model.parameters():
                p.data = torch.randn_like(p) * 0.2 + (1 if p.ndim == 1 and p.data.mean() > 0.5 else 0)
            for key, value in state(model).items():
                g[f"weights/{key}"] = value.numpy()
            inputs, own, y = given(name)
            model.double().eval()
            logits = model(**own).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
            loss.backward()
            torch.optim.SGD(model.parameters(), RATE).step()
            for key, value in inputs.items():
                g[f"inputs/{key}"] = value.numpy().astype(np.float32 if value.is_floating_point() else np.int32)
            g["y"], g["loss"], g["logits"] = y.numpy().astype(np.int32), loss.item(), logits.detach().numpy().astype(np.float32)
            for key, value in state(model).items():
                g[f"after/{key}"] = value.numpy().astype(np.float32)


main()
