/* A model for each layer, with the options that change what it computes; and what runs a
 * network. */
#ifndef TR_TESTS_ONNX_CASES_H
#define TR_TESTS_ONNX_CASES_H

#include "kernels/cpu/cpu.h"
#include "optimize/network/network.h"
#include "runtime/plan/plan.h"
#include "tests/unit/graph/random.h"

typedef struct {
    const char *name, *model;
} onnx_case;

#define IMAGE(layers)    "  input: [4, 9, 7]\n  layers:\n" layers "  loss: mse\n"
#define FEATURES(layers) "  input: [6]\n  layers:\n" layers "  loss: mse\n"
#define SEQUENCE(layers) "  input: [3, 19]\n  layers:\n" layers "  loss: mse\n"
#define WORDS(layers)                                                                              \
    "  input: [5]\n  layers:\n    - embedding: {num: 11, dim: 6}\n" layers "  loss: mse\n"
#define LENGTHS(layer)                                                                             \
    "  inputs: {x: [5], n: [1]}\n  layers:\n    - embedding: {num: 11, dim: 6, name: e}\n"         \
    "    - " layer ", from: [e, n]}\n  loss: mse\n"

static const onnx_case onnx_cases[] = {
    {"linear", FEATURES("    - linear: {out: 5}\n    - linear: {out: 3, bias: false}\n")},
    {"linear-rows", WORDS("    - linear: {out: 4}\n    - linear: {out: 3, bias: false}\n")},
    {"sklinear", FEATURES("    - sklinear: {out: 9, terms: 2, rank: 2}\n    - relu\n"
                          "    - sklinear: {out: 3, terms: 1, rank: 3, bias: false}\n")},
    {"sklinear-rows", WORDS("    - sklinear: {out: 4, terms: 2, rank: 2}\n")},
    {"skconv2d",
     IMAGE("    - skconv2d: {out: 6, kernel: 3, terms: 1, rank: 2, padding: 1, stride: [2, 1]}\n"
           "    - skconv2d: {out: 4, kernel: [1, 2], terms: 2, rank: 1, bias: false, dilation: "
           "2}\n")},
    {"embedding-tied",
     WORDS(
         "    - linear: {out: 6}\n    - linear: {out: 11, weight_of: embedding1, bias: false}\n")},
    {"positions", WORDS("    - positions\n    - linear: {out: 4}\n")},
    {"positions-sines", WORDS("    - positions: {kind: sinusoidal}\n    - linear: {out: 4}\n")},
    {"lstm", WORDS("    - lstm: {hidden: 7}\n    - linear: {out: 3}\n")},
    {"lstm-both", WORDS("    - lstm: {hidden: 3, layers: 2, bidirectional: true, bias: false}\n")},
    {"lstm-last", WORDS("    - lstm: {hidden: 4, layers: 2, bidirectional: true, dropout: 0.3, "
                        "output: last}\n")},
    {"gru", WORDS("    - gru: {hidden: 7}\n    - linear: {out: 3}\n")},
    {"gru-both", WORDS("    - gru: {hidden: 3, layers: 2, bidirectional: true, output: last}\n"
                       "    - linear: {out: 3}\n")},
    {"gru-no-bias", WORDS("    - gru: {hidden: 5, bias: false}\n")},
    {"lstm-lengths", LENGTHS("lstm: {hidden: 7, layers: 2, bidirectional: true")},
    {"lstm-lengths-last",
     LENGTHS("lstm: {hidden: 4, bias: false, bidirectional: true, output: last")},
    {"gru-lengths", LENGTHS("gru: {hidden: 5")},
    {"gru-lengths-last", LENGTHS("gru: {hidden: 4, layers: 2, output: last")},
    {"conv2d", IMAGE("    - conv2d: {out: 6, kernel: 3, padding: 1, stride: [2, 1]}\n"
                     "    - conv2d: {out: 4, kernel: [1, 3], groups: 2, bias: false}\n"
                     "    - conv2d: {out: 4, kernel: [2, 1], dilation: [2, 1], groups: 4}\n")},
    {"conv_transpose2d",
     IMAGE("    - conv_transpose2d: {out: 6, kernel: 3, stride: 2, padding: 1, output_padding: [1, "
           "0]}\n"
           "    - conv_transpose2d: {out: 4, kernel: [1, 2], groups: 2, dilation: [1, 3], bias: "
           "false}\n")},
    {"batchnorm", IMAGE("    - batchnorm: {eps: 1e-3}\n")},
    {"batchnorm-features", FEATURES("    - batchnorm: {momentum: 0.3}\n")},
    {"batchnorm-not-affine", IMAGE("    - batchnorm: {affine: false, statistics: running}\n")},
    {"layernorm", FEATURES("    - layernorm: {eps: 1e-3}\n")},
    {"layernorm-rows", WORDS("    - layernorm\n")},
    {"layernorm-image", IMAGE("    - layernorm: {eps: 1e-3}\n    - tanh\n    - layernorm\n")},
    {"layernorm-shapes", IMAGE("    - layernorm: {normalized_shape: [4, 9, 7]}\n    - tanh\n"
                               "    - layernorm: {eps: 1e-3, normalized_shape: [7]}\n")},
    {"rmsnorm", FEATURES("    - rmsnorm: {eps: 1e-3}\n")},
    {"rmsnorm-rows", WORDS("    - rmsnorm\n    - rmsnorm: {normalized_shape: [5, 6]}\n")},
    {"rmsnorm-image",
     IMAGE("    - rmsnorm\n    - tanh\n    - rmsnorm: {normalized_shape: [9, 7]}\n")},
    {"groupnorm", IMAGE("    - groupnorm: {groups: 2, eps: 1e-3}\n    - tanh\n"
                        "    - groupnorm: {groups: 4, affine: false}\n")},
    {"groupnorm-features", FEATURES("    - groupnorm: {groups: 3}\n")},
    {"conv1d",
     SEQUENCE(
         "    - conv1d: {out: 6, kernel: 3, stride: 2, padding: 1}\n    - batchnorm\n    - relu\n"
         "    - groupnorm: {groups: 3}\n"
         "    - conv1d: {out: 4, kernel: 2, dilation: 2, groups: 2, bias: false}\n"
         "    - conv1d: {out: 4, kernel: 4, padding: same}\n")},
    {"pools-1d",
     SEQUENCE("    - maxpool1d: {kernel: 3, stride: 2, padding: 1}\n"
              "    - avgpool1d: {kernel: 2, stride: 1, padding: 1}\n"
              "    - avgpool1d: {kernel: 2, ceil_mode: true, count_include_pad: false}\n"
              "    - global_avgpool\n")},
    {"conv1d-rows",
     SEQUENCE(
         "    - conv1d: {out: 6, kernel: 3}\n    - linear: {out: 5}\n"
         "    - permute: {dims: [2, 1]}\n    - layernorm\n    - global_maxpool\n    - flatten\n")},
    {"pooled-tokens", WORDS("    - linear: {out: 4}\n    - permute: {dims: [2, 1]}\n"
                            "    - global_avgpool\n    - flatten\n    - linear: {out: 3}\n")},
    {"relu", IMAGE("    - relu\n")},
    {"gelu", IMAGE("    - gelu\n")},
    {"gelu-tanh", FEATURES("    - gelu: {approximate: tanh}\n")},
    {"silu", IMAGE("    - silu\n")},
    {"sigmoid", FEATURES("    - sigmoid\n")},
    {"tanh", FEATURES("    - tanh\n")},
    {"leaky_relu", IMAGE("    - leaky_relu: {negative_slope: 0.2}\n")},
    {"fake_quantize", IMAGE("    - fake_quantize: {scale: 0.0317}\n")},
    {"dynamic_quantize", IMAGE("    - dynamic_quantize\n    - conv2d: {out: 3, kernel: 1}\n"
                               "    - relu\n    - dynamic_quantize: {signed: false}\n")},
    {"dynamic_quantize-features", FEATURES("    - dynamic_quantize\n")},
    {"dynamic_quantize-rows", WORDS("    - dynamic_quantize\n")},
    {"fake_quantize-unsigned",
     FEATURES("    - fake_quantize: {scale: 0.03, zero_point: 99, signed: false}\n")},
    {"int8", IMAGE("    - conv2d: {out: 6, kernel: 3, stored: int8, freeze: true}\n    - flatten\n"
                   "    - linear: {out: 5, stored: int8, freeze: true, bias: false}\n"
                   "    - linear: {out: 3, stored: float16, freeze: true}\n")},
    {"int8-rows", WORDS("    - linear: {out: 4, stored: int8, freeze: true}\n")},
    {"elu", IMAGE("    - elu: {alpha: 0.7}\n")},
    {"hardswish", IMAGE("    - hardswish\n")},
    {"hardsigmoid", FEATURES("    - hardsigmoid\n")},
    {"softplus", FEATURES("    - softplus\n")},
    {"softplus-beta", IMAGE("    - softplus: {beta: 2.5}\n")},
    {"softplus-threshold", IMAGE("    - softplus: {beta: 0.5, threshold: 0.25}\n")},
    {"prelu", IMAGE("    - prelu\n")},
    {"prelu-channels", IMAGE("    - prelu: {per_channel: true}\n")},
    {"prelu-sequence",
     SEQUENCE("    - conv1d: {out: 4, kernel: 3}\n    - prelu: {per_channel: true}\n")},
    {"prelu-features", FEATURES("    - prelu: {per_channel: true}\n    - prelu\n")},
    {"relu6", IMAGE("    - relu6\n")},
    {"maxpool2d-ceil",
     IMAGE("    - maxpool2d: {kernel: 2, stride: 2, ceil_mode: true}\n"
           "    - maxpool2d: {kernel: 3, stride: 2, padding: 1, ceil_mode: true}\n")},
    {"conv2d-same",
     IMAGE("    - conv2d: {out: 6, kernel: [4, 2], padding: same, dilation: [1, 3]}\n"
           "    - conv2d: {out: 4, kernel: 3, padding: same}\n")},
    {"pools-same",
     IMAGE("    - maxpool2d: {kernel: [2, 3], stride: 1, padding: same}\n"
           "    - avgpool2d: {kernel: 4, stride: 1, padding: same}\n"
           "    - avgpool2d: {kernel: 2, stride: 1, padding: same, count_include_pad: "
           "false}\n")},
    {"avgpool2d-ceil", IMAGE("    - avgpool2d: {kernel: 2, ceil_mode: true, count_include_pad: "
                             "false}\n")},
    {"global_maxpool", IMAGE("    - global_maxpool\n")},
    {"adaptive_avgpool2d", IMAGE("    - adaptive_avgpool2d: {out: [4, 5]}\n"
                                 "    - adaptive_avgpool2d: {out: 1}\n")},
    {"pad", IMAGE("    - pad: {padding: [1, 0, 2, 3]}\n    - tanh\n"
                  "    - pad: {padding: 1, mode: reflect}\n"
                  "    - pad: {padding: [0, 2, -1, 0], value: 0.3}\n"
                  "    - pad: {padding: [2, 1, 0, 9], mode: replicate}\n")},
    {"pad-conv2d", IMAGE("    - pad: {padding: [1, 0, 2, 3]}\n"
                         "    - conv2d: {out: 4, kernel: 3, stride: 2, padding: 1}\n"
                         "    - pad: {padding: [1, 0, 0, 1]}\n    - avgpool2d: {kernel: 2}\n")},
    {"upsample", IMAGE("    - upsample: {scale: 2}\n    - upsample: {size: [7, 31]}\n"
                       "    - upsample: {size: [16, 9], mode: bilinear}\n"
                       "    - upsample: {scale: [1, 3], mode: bilinear, align_corners: true}\n")},
    {"reshape",
     IMAGE("    - reshape: {dims: [6, -1, 6]}\n    - tanh\n    - reshape: {dims: [4, 63]}\n"
           "    - linear: {out: 5}\n")},
    {"permute", IMAGE("    - permute: {dims: [2, 3, 1]}\n    - conv2d: {out: 2, kernel: 1}\n"
                      "    - reshape: {dims: [8, 7]}\n    - permute: {dims: [2, 1]}\n")},
    {"patch_embedding", "  input: [3, 8, 12]\n  layers:\n"
                        "    - patch_embedding: {size: [4, 3], dim: 6}\n    - class_token\n"
                        "    - linear: {out: 4}\n  loss: mse\n"},
    {"class_token", WORDS("    - class_token\n    - linear: {out: 4}\n    - select: {index: 0}\n")},
    {"select", WORDS("    - select: {index: -1}\n")},
    {"select-lengths", LENGTHS("select: {index: -2")},
    {"mean", WORDS("    - linear: {out: 4}\n    - mean_rows\n    - linear: {out: 3}\n")},
    {"mean-lengths",
     "  inputs: {x: [5], n: [1]}\n  layers:\n    - embedding: {num: 11, dim: 6, name: e, from: x}\n"
     "    - mean_rows: {from: [e, n]}\n    - linear: {out: 3}\n  loss: mse\n"},
    {"softmax", IMAGE("    - softmax\n")},
    {"softmax-rows", WORDS("    - softmax\n")},
    {"maxpool2d", IMAGE("    - maxpool2d: {kernel: 3, stride: 2, padding: 1}\n"
                        "    - maxpool2d: {kernel: [2, 1]}\n")},
    {"avgpool2d", IMAGE("    - avgpool2d: {kernel: 3, stride: 2, padding: 1}\n")},
    {"avgpool2d-inside",
     IMAGE("    - avgpool2d: {kernel: 3, stride: 2, padding: 1, count_include_pad: false}\n")},
    {"global_avgpool", IMAGE("    - global_avgpool\n")},
    {"flatten", IMAGE("    - flatten\n    - linear: {out: 3}\n")},
    {"flatten-features", FEATURES("    - flatten\n    - tanh\n    - flatten\n")},
    {"flatten-rows", WORDS("    - flatten\n")},
    {"dropout", FEATURES("    - dropout: {p: 0.4}\n    - linear: {out: 3}\n    - dropout\n")},
    {"drop_path", IMAGE("    - tanh\n    - drop_path: {p: 0.4}\n    - relu\n")},
    {"add", IMAGE("    - relu\n    - tanh\n    - sigmoid\n    - add: {from: [relu1, tanh1, "
                  "sigmoid1, relu1]}\n")},
    {"mul", IMAGE("    - global_avgpool\n    - mul: {from: [input, global_avgpool1]}\n    - tanh\n"
                  "    - mul: {from: [mul1, tanh1]}\n")},
    {"concat", IMAGE("    - tanh\n    - concat: {from: [input, tanh1, input]}\n"
                     "    - concat: {from: [concat1, concat1], axis: -1}\n")},
    {"attention", WORDS("    - linear: {out: 24}\n    - attention: {heads: 2}\n")},
    {"attention-causal",
     WORDS("    - linear: {out: 32}\n"
           "    - attention: {heads: 4, kv_heads: 2, causal: true, window: 3, scale: 0.5}\n")},
    {"attention-alibi",
     WORDS("    - linear: {out: 36}\n    - attention: {heads: 3, alibi: true, window: 4}\n")},
    {"attention-lengths",
     "  inputs: {x: [5, 6], n: [1]}\n  layers:\n    - linear: {out: 24, from: x, name: a}\n"
     "    - attention: {heads: 4, kv_heads: 1, from: [a, n], causal: true}\n  loss: mse\n"},
    {"attention-apart",
     "  inputs: {x: [5, 6], y: [9, 4], n: [1]}\n  layers:\n"
     "    - linear: {out: 8, from: x, name: k}\n    - linear: {out: 8, from: x, name: v}\n"
     "    - linear: {out: 16, from: y, name: q}\n"
     "    - attention: {heads: 4, kv_heads: 2, from: [q, k, v, n]}\n  loss: mse\n"},
    {"attention-few-keys",
     "  inputs: {x: [2, 6], y: [9, 4]}\n  layers:\n    - linear: {out: 8, from: x, name: k}\n"
     "    - linear: {out: 8, from: y, name: q}\n"
     "    - attention: {heads: 2, window: 3, from: [q, k, k]}\n  loss: mse\n"},
    {"rotary", WORDS("    - linear: {out: 24}\n    - rotary: {heads: 2}\n"
                     "    - rotary: {heads: 3, dim: 6, base: 500}\n")},
    {"rotary-interleaved",
     WORDS("    - linear: {out: 24}\n    - rotary: {heads: 2, style: interleaved}\n"
           "    - rotary: {heads: 3, dim: 6, style: interleaved}\n")},
    {"gpt",
     "  input: [9]\n  layers:\n    - embedding: {num: 13, dim: 8, name: e}\n    - positions\n"
     "    - transformer: {layers: 2, heads: 2, causal: true}\n"
     "    - linear: {out: 13, bias: false, weight_of: e}\n  loss: mse\n"},
    {"llama",
     "  input: [9]\n  layers:\n    - embedding: {num: 13, dim: 16, name: e}\n"
     "    - transformer: {layers: 2, heads: 4, kv_heads: 2, causal: true, norm_type: rmsnorm, "
     "activation: swiglu, position: rotary, bias: false}\n"
     "    - linear: {out: 13, bias: false}\n  loss: mse\n"},
    {"bert",
     "  inputs: {x: [9], n: [1]}\n  layers:\n    - embedding: {num: 13, dim: 8, name: e, from: x}\n"
     "    - positions: {name: p}\n"
     "    - transformer: {layers: 2, heads: 2, causal: false, from: [p, n]}\n"
     "    - select: {index: 0}\n    - linear: {out: 3}\n  loss: mse\n"},
    /* As docs/recipes.md has them, whole. */
    {"gpt2",
     "  input: [9]\n  layers:\n    - embedding: {name: wte, num: 13, dim: 8}\n"
     "    - positions: {name: wpe}\n"
     "    - transformer: {name: h, layers: 2, heads: 2, activation: gelu_tanh, causal: true}\n"
     "    - layernorm: {name: ln_f}\n"
     "    - linear: {name: lm_head, out: 13, bias: false, weight_of: wte}\n  loss: mse\n"},
    {"bert-pooled",
     "  inputs: {x: [9], types: [9], lengths: [1]}\n  layers:\n"
     "    - embedding: {name: words, num: 13, dim: 8, from: x}\n    - positions: {name: places}\n"
     "    - embedding: {name: types_of, num: 2, dim: 8, from: types}\n"
     "    - add: {from: [places, types_of]}\n    - layernorm: {name: norm, eps: 1.0e-12}\n"
     "    - transformer: {name: layer, layers: 2, heads: 2, qkv: separate, causal: false, norm: "
     "post, eps: 1.0e-12, from: [norm, lengths]}\n"
     "    - select: {index: 0}\n    - linear: {name: pooler, out: 8}\n    - tanh\n"
     "    - linear: {name: classifier, out: 3}\n  loss: mse\n"},
    {"vit",
     "  input: [3, 8, 12]\n  layers:\n    - patch_embedding: {name: patches, size: 4, dim: 8}\n"
     "    - class_token: {name: cls}\n    - positions: {name: places}\n"
     "    - transformer: {name: layer, layers: 2, heads: 2, qkv: separate, causal: false, eps: "
     "1.0e-12}\n"
     "    - layernorm: {name: norm, eps: 1.0e-12}\n    - select: {index: 0}\n"
     "    - linear: {name: classifier, out: 5}\n  loss: mse\n"},
    {"encoder-decoder",
     "  inputs: {source: [9], target: [9]}\n  layers:\n"
     "    - embedding: {num: 11, dim: 8, name: e, from: source}\n    - positions: {name: p}\n"
     "    - transformer: {layers: 1, heads: 2, causal: false, name: encoder}\n"
     "    - linear: {out: 8, name: k}\n    - linear: {out: 8, name: v, from: encoder}\n"
     "    - embedding: {num: 13, dim: 8, name: f, from: target}\n"
     "    - positions: {kind: sinusoidal, name: t}\n"
     "    - transformer: {layers: 1, heads: 2, causal: true, name: decoder}\n"
     "    - linear: {out: 8, name: q}\n    - attention: {heads: 2, from: [q, k, v], name: cross}\n"
     "    - add: {from: [decoder, cross]}\n    - linear: {out: 13}\n  loss: mse\n"},
    {"windows-alibi-last",
     "  inputs: {x: [9, 6], n: [1]}\n  layers:\n    - linear: {out: 24, from: x, name: a}\n"
     "    - positions: {kind: sinusoidal, name: p}\n"
     "    - attention: {heads: 4, kv_heads: 1, from: [p, n], causal: true, window: 3, alibi: "
     "true}\n"
     "    - select: {index: -1}\n  loss: mse\n"},
    {"normal", IMAGE("    - conv2d: {out: 6, kernel: 3, padding: 1, bias: false}\n"
                     "    - batchnorm\n    - relu\n    - residual:\n        body:\n"
                     "          - conv2d: {out: 6, kernel: 3, padding: 1, bias: false}\n"
                     "          - batchnorm\n    - relu\n    - global_avgpool\n    - flatten\n"
                     "    - linear: {out: 10, name: head}\n")},
};

/* ---- Networks -------------------------------------------------------------------------------- */

static inline double net_any(uint64_t seed, uint32_t stream, size_t i) /* in [-1, 1) */
{
    return 2.0 * (double)tr_uniform(tr_philox_at(seed, TR_RNG_TEST, 900 + stream, i, 0).v[0]) - 1.0;
}

/* With values that make every row matter. Takes the model. */
static inline tr_network *net_random(tr_model *m, uint64_t seed)
{
    tr_network *n = NULL;
    ok(tr_network_open(m, &n));
    for (size_t r = 0; r < m->nparams; r++) {
        const tr_param *p = &m->params[r];
        const double size = p->fan_in > 0 ? 1.5 / sqrt(p->fan_in) : 0.5;
        const bool scale = p->fan_in == 0 && strcmp(p->name, "weight") == 0 && p->ndim == 1;
        for (size_t i = 0; i < p->count; i++)
            n->params[p->offset + i] =
                (float)((scale ? 1.0 : 0.0) + size * net_any(seed, (uint32_t)r, i));
    }
    for (size_t r = 0; r < m->nstates; r++)
        for (size_t i = 0; i < m->states[r].count; i++)
            if (strcmp(m->states[r].name, TR_SCALE_STATE) == 0)
                n->states[m->states[r].offset + i] =
                    0.01f + 0.005f * (float)net_any(seed, 500 + (uint32_t)r, i);
            else
                n->states[m->states[r].offset + i] =
                    m->states[r].initial + 0.5f * (float)net_any(seed, 500 + (uint32_t)r, i);
    for (size_t r = 0; r < m->nparams; r++) { /* values that the stored type holds */
        const tr_param *p = &m->params[r];
        float *v = n->params + p->offset;
        for (size_t i = 0; i < p->count && p->stored == TR_F16; i++)
            v[i] = tr_f16_to_f32(tr_f32_to_f16(v[i]));
        for (size_t i = 0; i < p->count && p->stored == TR_I8; i++) {
            const float s =
                n->states[m->states[p->scale].offset + i / (p->count / (size_t)p->dims[0])];
            v[i] = fmaxf(-127, fminf(127, rintf(v[i] / s))) * s + 0.0f;
        }
    }
    return n;
}

static inline tr_network *net_of(const onnx_case *c, uint64_t seed)
{
    test_model t = test_model_open(c->model);
    tr_model *m = t.model;
    t.model = NULL;
    test_model_close(&t);
    return net_random(m, seed);
}

static inline size_t net_count(int ndim, const int64_t *dims)
{
    size_t n = 1;
    for (int i = 0; i < ndim; i++) n *= (size_t)dims[i];
    return n;
}

/* Elements of all inputs of a sample; values for a batch of them, one input behind the other. */
static inline size_t net_input_count(const tr_model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->ninputs; i++) n += net_count(m->inputs[i].ndim, m->inputs[i].dims);
    return n;
}

static inline float *net_inputs(const tr_model *m, int64_t batch, uint64_t seed)
{
    float *v = tr_alloc(TR_MEM_OTHER, (size_t)batch * net_input_count(m), sizeof *v);
    size_t at = 0;
    assert_non_null(v);
    for (size_t k = 0; k < m->ninputs; k++) {
        const tr_input *in = &m->inputs[k];
        for (size_t i = 0; i < (size_t)batch * net_count(in->ndim, in->dims); i++, at++) {
            const double u = net_any(seed, 1000 + (uint32_t)k, i);
            v[at] = in->ids ? (float)(int64_t)((u + 1) / 2 * (double)in->ids) : (float)(2 * u);
        }
    }
    return v;
}

/* Where a logical index lies. */
static inline size_t net_stored(const tr_tensor *t, size_t i)
{
    if (t->layout == TR_LAYOUT_PLAIN) return i;
    const size_t c = (size_t)t->dims[1], h = (size_t)t->dims[2], w = (size_t)t->dims[3];
    return ((i / w / h / c * h + i / w % h) * w + i % w) * c + i / w / h % c;
}

/* The output of a batch, (batch, ...) channels first; to be freed. */
static inline float *net_run(const tr_network *n, int64_t batch, const float *in)
{
    const tr_backend_options bo = {.dry = false};
    const tr_plan_key key = {.mode = TR_MODE_INFER, .batch = batch};
    void *ctx = NULL, *data[TR_MAX_IN] = {NULL};
    tr_session *s = NULL;
    ok(tr_cpu_backend.open(&bo, &ctx));
    const tr_params params = {.o.model = n->model, .weights = n->params, .states = n->states};
    const tr_session_options so = {.model = n->model,
                                   .backend = &tr_cpu_backend,
                                   .backend_ctx = ctx,
                                   .params = &params,
                                   .threads = 1,
                                   .ranks = 1,
                                   .keys = &key,
                                   .nkeys = 1};
    ok(tr_session_open(&so, &s));
    tr_plan *p = tr_session_plan(s, TR_MODE_INFER, batch);
    const tr_graph *g = tr_plan_graph(p);
    for (size_t k = 0; k < n->model->ninputs; k++) {
        const tr_tensor *t = &g->tensors[g->inputs[k]];
        data[k] = tr_alloc(TR_MEM_OTHER, t->nbytes, 1);
        for (size_t i = 0; i < t->count; i++)
            if (t->dtype == TR_I32)
                ((int32_t *)data[k])[net_stored(t, i)] = (int32_t)in[i];
            else
                ((float *)data[k])[net_stored(t, i)] = in[i];
        in += t->count;
        ok(tr_plan_set_input(p, k, data[k]));
    }
    const tr_run run = {.loss_scale = 1, .params_changed = true};
    ok(tr_plan_run(p, &run));
    const tr_tensor *t = &g->tensors[g->logits];
    float *y = tr_alloc(TR_MEM_OTHER, t->count, sizeof *y);
    const float *from = tr_plan_tensor(p, g->logits);
    for (size_t i = 0; i < t->count; i++) y[i] = from[net_stored(t, i)];
    tr_session_close(s);
    for (size_t i = 0; i < TR_COUNT(data); i++) tr_free(data[i]);
    tr_cpu_backend.close(ctx);
    return y;
}

#endif
