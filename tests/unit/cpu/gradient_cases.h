/* Small models in which every op of the registry occurs: test_gradients.c checks their gradients,
 * test_registry.c (of both backends) has kernels prepared for all of their ops. */
#ifndef TR_TEST_GRADIENT_CASES_H
#define TR_TEST_GRADIENT_CASES_H

#include "runtime/base/base.h"

typedef struct {
    const char *name, *input, *layers, *loss;
    bool kinks, pooled;  /* pooled: a maximum over scaled inputs */
    int ranks;           /* 2: batchnorm merged with a rank that has the same share */
    bool steps;          /* the loss is a step of the parameters: only prepared and run */
    const char *distill; /* train.distill; NULL: none */
    bool ends;           /* lengths are all, 0 and 1; else some between */
} model_case;

#define IMAGE    "input: [2, 5, 6]"
#define CHANNEL  "input: [1, 5, 6]"
#define FEATURES "input: [6]"
#define CONV     "    - conv2d: {out: 3, kernel: 1}\n"
#define LINEAR   "    - linear: {out: 5}\n"
#define WORDS    "inputs: {x: [5, 4], n: [1]}" /* rows, and how many of them count */
#define FLAT     "    - flatten\n    - linear: {out: 3}\n"
#define HEAD     "    - linear: {out: 3}\n"
#define SMOOTH(n, i, l, f)                                                                         \
    {                                                                                              \
        .name = (n), .input = (i), .layers = (l), .loss = (f), .ranks = 1                          \
    }
#define ENDS(n, l)                                                                                 \
    {                                                                                              \
        .name = (n), .input = WORDS, .layers = (l), .loss = "mse", .ranks = 1, .ends = true        \
    }
#define KINKED(n, i, l, f)                                                                         \
    {                                                                                              \
        .name = (n), .input = (i), .layers = (l), .loss = (f), .ranks = 1, .kinks = true           \
    }
#define POOLED(n, l)                                                                               \
    {                                                                                              \
        .name = (n), .input = CHANNEL, .layers = (l), .loss = "mse", .ranks = 1, .kinks = true,    \
        .pooled = true                                                                             \
    }

static const model_case cases[] = {
    SMOOTH("linear", FEATURES, LINEAR HEAD, "mse"),
    SMOOTH("linear, no bias", FEATURES, LINEAR "    - linear: {out: 4, bias: false}\n" HEAD, "mse"),
    SMOOTH("linear, rows", "input: [2, 4]", LINEAR HEAD, "mse"),
    SMOOTH("linear, tied twice", FEATURES,
           LINEAR
           "    - linear: {out: 5, name: t}\n    - tanh\n    - linear: {out: 5, weight_of: t}\n"
           "    - sigmoid\n    - linear: {out: 5, weight_of: t, bias: false}\n" HEAD,
           "mse"),
    SMOOTH("sklinear", FEATURES,
           LINEAR "    - sklinear: {out: 7, terms: 2, rank: 3, seed: 3}\n" HEAD, "mse"),
    SMOOTH("sklinear, rows, no bias", "input: [2, 4]",
           LINEAR "    - sklinear: {out: 4, terms: 1, rank: 2, bias: false}\n    - tanh\n" HEAD,
           "mse"),
    SMOOTH("sklinear, frozen", FEATURES,
           LINEAR "    - sklinear: {out: 4, terms: 1, rank: 2, freeze: true}\n" HEAD, "mse"),
    SMOOTH("skconv2d", IMAGE,
           CONV
           "    - skconv2d: {out: 4, kernel: 3, terms: 1, rank: 2, padding: 1}\n    - tanh\n"
           "    - skconv2d: {out: 3, kernel: 2, terms: 2, rank: 1, stride: 2, bias: false}\n" FLAT,
           "mse"),
    SMOOTH("conv2d, tied", IMAGE,
           CONV "    - conv2d: {out: 3, kernel: 3, padding: 1, name: t}\n    - tanh\n"
                "    - conv2d: {out: 3, kernel: 3, padding: 1, weight_of: t}\n" FLAT,
           "mse"),
    SMOOTH("embedding and linear, tied", "input: [4]",
           "    - embedding: {num: 5, dim: 3, name: t}\n    - tanh\n"
           "    - linear: {out: 5, weight_of: t}\n    - sigmoid\n" FLAT,
           "mse"),
    SMOOTH("conv2d", IMAGE, CONV "    - conv2d: {out: 4, kernel: 3, padding: 1}\n" FLAT, "mse"),
    SMOOTH("conv2d, stride", IMAGE,
           CONV "    - conv2d: {out: 2, kernel: [3, 2], stride: [2, 1], padding: [1, 0]}\n" FLAT,
           "mse"),
    SMOOTH("conv2d, dilation", IMAGE,
           CONV "    - conv2d: {out: 2, kernel: 2, dilation: 2, padding: 1, bias: false}\n" FLAT,
           "mse"),
    SMOOTH("conv2d, groups", IMAGE,
           "    - conv2d: {out: 4, kernel: 1}\n"
           "    - conv2d: {out: 6, kernel: 3, padding: 1, groups: 2}\n" FLAT,
           "mse"),
    SMOOTH("conv2d, depthwise", IMAGE, CONV "    - conv2d: {out: 3, kernel: 3, groups: 3}\n" FLAT,
           "mse"),
    SMOOTH("conv_transpose2d", IMAGE,
           CONV "    - conv_transpose2d: {out: 2, kernel: 2, stride: 2}\n    - tanh\n"
                "    - conv_transpose2d: {out: 2, kernel: [3, 2], stride: [1, 2], padding: 1, "
                "output_padding: [0, 1], bias: false}\n" FLAT,
           "mse"),
    SMOOTH("conv_transpose2d, groups", IMAGE,
           "    - conv2d: {out: 4, kernel: 1}\n"
           "    - conv_transpose2d: {out: 6, kernel: 2, dilation: [1, 2], groups: 2}\n" FLAT,
           "mse"),
    SMOOTH("batchnorm, image", IMAGE, CONV "    - batchnorm\n" FLAT, "mse"),
    SMOOTH("batchnorm, features", FEATURES, LINEAR "    - batchnorm: {eps: 0.1}\n" HEAD, "mse"),
    SMOOTH("batchnorm, gelu", IMAGE, CONV "    - batchnorm\n    - gelu\n" FLAT, "mse"),
    {.name = "batchnorm, two ranks",
     .input = IMAGE,
     .layers = CONV "    - batchnorm\n    - tanh\n" FLAT,
     .loss = "mse",
     .ranks = 2},
    SMOOTH("batchnorm, not affine", IMAGE,
           CONV "    - batchnorm: {affine: false}\n    - tanh\n" FLAT, "mse"),
    {.name = "batchnorm, not affine, two ranks",
     .input = IMAGE,
     .layers = CONV "    - batchnorm: {affine: false}\n    - tanh\n" FLAT,
     .loss = "mse",
     .ranks = 2},
    SMOOTH("batchnorm, running", IMAGE,
           CONV "    - batchnorm: {statistics: running}\n    - tanh\n" FLAT, "mse"),
    {.name = "batchnorm, running, two ranks",
     .input = IMAGE,
     .layers = CONV "    - batchnorm: {statistics: running}\n" FLAT,
     .loss = "mse",
     .ranks = 2},
    SMOOTH("batchnorm, running, not affine", FEATURES,
           LINEAR "    - batchnorm: {statistics: running, affine: false}\n" HEAD, "mse"),
    SMOOTH("batchnorm, running, residual", IMAGE,
           CONV "    - residual: {body: [{conv2d: {out: 3, kernel: 1}}, {batchnorm: {statistics: "
                "running}}]}\n    - silu\n" FLAT,
           "mse"),
    KINKED("batchnorm, relu", IMAGE, CONV "    - batchnorm\n    - relu\n" FLAT, "mse"),
    SMOOTH("layernorm", FEATURES, LINEAR "    - layernorm: {eps: 0.1}\n" HEAD, "mse"),
    SMOOTH("layernorm, rows", "input: [2, 4]", LINEAR "    - layernorm: {eps: 0.1}\n" HEAD, "mse"),
    SMOOTH("layernorm, image", IMAGE, CONV "    - layernorm: {eps: 0.1}\n    - tanh\n" FLAT, "mse"),
    SMOOTH("layernorm, whole image", IMAGE,
           CONV "    - layernorm: {eps: 0.1, normalized_shape: [3, 5, 6]}\n    - tanh\n" FLAT,
           "mse"),
    SMOOTH("rmsnorm", FEATURES, LINEAR "    - rmsnorm: {eps: 0.1}\n" HEAD, "mse"),
    SMOOTH("rmsnorm, image", IMAGE, CONV "    - rmsnorm: {eps: 0.1}\n    - tanh\n" FLAT, "mse"),
    SMOOTH("groupnorm, image", IMAGE,
           "    - conv2d: {out: 4, kernel: 1}\n    - groupnorm: {groups: 2, eps: 0.1}\n    - "
           "tanh\n" FLAT,
           "mse"),
    SMOOTH("groupnorm, features", FEATURES,
           "    - linear: {out: 6}\n    - groupnorm: {groups: 3, eps: 0.1, affine: false}\n" HEAD,
           "mse"),
    SMOOTH(
        "conv1d", "input: [2, 7]",
        "    - conv1d: {out: 4, kernel: 3, padding: same}\n    - groupnorm: {groups: 2, eps: "
        "0.1}\n    - gelu\n"
        "    - conv1d: {out: 4, kernel: 2, stride: 2, dilation: 2, groups: 2, bias: false}\n" FLAT,
        "mse"),
    SMOOTH("conv1d, batchnorm, rows", "input: [2, 7]",
           "    - conv1d: {out: 4, kernel: 3}\n    - batchnorm: {eps: 0.1}\n    - tanh\n    - "
           "avgpool1d: {kernel: 2}\n"
           "    - linear: {out: 3}\n    - conv1d: {out: 2, kernel: 2}\n    - tanh\n    - "
           "global_avgpool\n" FLAT,
           "mse"),
    {.name = "maxpool1d",
     .input = "input: [1, 17]",
     .layers = "    - conv1d: {out: 3, kernel: 1}\n"
               "    - maxpool1d: {kernel: 3, stride: 2, padding: 1}\n" FLAT,
     .loss = "mse",
     .ranks = 1,
     .kinks = true,
     .pooled = true},
    KINKED("leaky_relu", IMAGE, CONV "    - leaky_relu: {negative_slope: 0.3}\n" FLAT, "mse"),
    KINKED("leaky_relu, default", FEATURES, LINEAR "    - leaky_relu\n" HEAD, "mse"),
    KINKED("leaky_relu, negative", FEATURES,
           LINEAR "    - leaky_relu: {negative_slope: -0.5}\n" HEAD, "mse"),
    /* Steps have no derivative but where all is clipped: it is 0. */
    KINKED("fake_quantize, clipped", FEATURES, LINEAR "    - fake_quantize: {scale: 1e-4}\n" HEAD,
           "mse"),
    /* Nothing that is learned stands before a step. */
    SMOOTH("8 bits", IMAGE,
           "    - fake_quantize: {scale: 0.01}\n"
           "    - conv2d: {out: 3, kernel: 3, padding: 1, stored: int8, freeze: true, name: c}\n"
           "    - relu: {name: r}\n    - fake_quantize: {scale: 0.01, signed: false, name: q}\n"
           "    - conv2d: {out: 3, kernel: 1, groups: 3, stored: int8, freeze: true, name: d}\n"
           "    - add: {from: [d, q]}\n    - mul: {from: [add1, q]}\n"
           "    - flatten\n    - fake_quantize: {scale: 0.01}\n"
           "    - linear: {out: 4, stored: int8, freeze: true}\n" HEAD,
           "mse"),
    SMOOTH("8 bits, read as values, too", IMAGE,
           "    - fake_quantize: {scale: 0.01, name: q}\n"
           "    - conv2d: {out: 2, kernel: 1, stored: int8, freeze: true, name: c}\n"
           "    - mul: {from: [c, q]}\n" FLAT,
           "mse"),
    SMOOTH("8 bits through averages and side by side", IMAGE,
           "    - fake_quantize: {scale: 0.01, name: q}\n"
           "    - fake_quantize: {scale: 0.02, from: q, name: r}\n    - concat: {from: [q, r]}\n"
           "    - fake_quantize: {scale: 0.01}\n    - avgpool2d: {kernel: 2, stride: 1}\n"
           "    - fake_quantize: {scale: 0.01}\n    - global_avgpool\n"
           "    - fake_quantize: {scale: 0.01}\n"
           "    - conv2d: {out: 3, kernel: 1, stored: int8, freeze: true, name: c}\n" FLAT,
           "mse"),
    SMOOTH("8 bits by ranges of each call", IMAGE,
           "    - dynamic_quantize\n"
           "    - conv2d: {out: 3, kernel: 3, padding: 1, stored: int8, freeze: true, name: c}\n"
           "    - relu\n    - dynamic_quantize: {signed: false, name: q}\n"
           "    - conv2d: {out: 3, kernel: 1, groups: 3, stored: int8, freeze: true, name: d}\n"
           "    - add: {from: [d, relu1]}\n    - flatten\n    - dynamic_quantize\n"
           "    - linear: {out: 4, stored: int8, freeze: true}\n" HEAD,
           "mse"),
    {.name = "weights of 8 bits",
     .input = IMAGE,
     .layers = "    - conv2d: {out: 3, kernel: 3, padding: 1, stored: int8}\n    - flatten\n"
               "    - linear: {out: 4, stored: int8_tensor}\n" HEAD,
     .loss = "mse",
     .ranks = 1,
     .steps = true},
    {.name = "learned scales",
     .input = IMAGE,
     .layers = "    - fake_quantize: {scale: 0.01, learn_scale: true}\n"
               "    - conv2d: {out: 3, kernel: 3, padding: 1, stored: int8, learn_scale: true}\n"
               "    - flatten\n" HEAD,
     .loss = "mse",
     .ranks = 1,
     .steps = true},
    KINKED("relu6", FEATURES, LINEAR "    - relu6\n" HEAD, "mse"),
    KINKED("relu6, image", IMAGE, CONV "    - relu6\n" FLAT, "mse"),
    SMOOTH("elu", FEATURES, LINEAR "    - elu\n" HEAD, "mse"), /* of alpha 1: smooth */
    KINKED("elu, alpha", IMAGE, CONV "    - elu: {alpha: 0.4}\n" FLAT, "mse"),
    KINKED("hardswish", FEATURES, LINEAR "    - hardswish\n" HEAD, "mse"),
    KINKED("hardswish, image", IMAGE, CONV "    - hardswish\n" FLAT, "mse"),
    KINKED("hardsigmoid", FEATURES, LINEAR "    - hardsigmoid\n" HEAD, "mse"),
    SMOOTH("softplus", FEATURES, LINEAR "    - softplus\n" HEAD, "mse"),
    SMOOTH("softplus, beta", IMAGE, CONV "    - softplus: {beta: 2.5}\n" FLAT, "mse"),
    KINKED("prelu", FEATURES, LINEAR "    - prelu\n" HEAD, "mse"),
    KINKED("prelu, channels", IMAGE, CONV "    - prelu: {per_channel: true, init: -0.3}\n" FLAT,
           "mse"),
    KINKED("prelu, of the input", IMAGE, "    - prelu: {per_channel: true}\n" FLAT, "mse"),
    KINKED("prelu, features", FEATURES, LINEAR "    - prelu: {per_channel: true}\n" HEAD, "mse"),
    KINKED("relu after linear", FEATURES, LINEAR "    - relu\n" HEAD, "mse"),
    KINKED("relu after conv2d", IMAGE, CONV "    - relu\n" FLAT, "mse"),
    POOLED("relu by itself", CONV "    - avgpool2d: {kernel: 1}\n    - relu\n" FLAT),
    SMOOTH("gelu after linear", FEATURES, LINEAR "    - gelu\n" HEAD, "mse"),
    SMOOTH("gelu by itself", IMAGE, CONV "    - avgpool2d: {kernel: 2}\n    - gelu\n" FLAT, "mse"),
    SMOOTH("gelu, tanh", FEATURES, LINEAR "    - gelu: {approximate: tanh}\n" HEAD, "mse"),
    SMOOTH("silu after linear", FEATURES, LINEAR "    - silu\n" HEAD, "mse"),
    SMOOTH("silu by itself", IMAGE, CONV "    - avgpool2d: {kernel: 2}\n    - silu\n" FLAT, "mse"),
    SMOOTH("sigmoid after conv2d", IMAGE, CONV "    - sigmoid\n" FLAT, "mse"),
    SMOOTH("sigmoid by itself", IMAGE, CONV "    - avgpool2d: {kernel: 2}\n    - sigmoid\n" FLAT,
           "mse"),
    SMOOTH("tanh after linear", FEATURES, LINEAR "    - tanh\n" HEAD, "mse"),
    SMOOTH("tanh by itself", IMAGE, CONV "    - avgpool2d: {kernel: 2}\n    - tanh\n" FLAT, "mse"),
    SMOOTH("softmax, features", FEATURES, LINEAR "    - softmax\n" HEAD, "mse"),
    SMOOTH("softmax, image", IMAGE, CONV "    - softmax\n" FLAT, "mse"),
    POOLED("maxpool2d", CONV "    - maxpool2d: {kernel: 2}\n" FLAT),
    POOLED("maxpool2d, overlapping",
           CONV "    - maxpool2d: {kernel: 3, stride: 2, padding: 1}\n" FLAT),
    POOLED("maxpool2d, last windows cut",
           CONV "    - maxpool2d: {kernel: 2, stride: 3, ceil_mode: true}\n" FLAT),
    POOLED("maxpool2d, last windows cut, side by side",
           CONV "    - maxpool2d: {kernel: [3, 4], ceil_mode: true}\n" FLAT),
    POOLED("maxpool2d, same", CONV "    - maxpool2d: {kernel: 2, stride: 1, padding: same}\n" FLAT),
    POOLED("global_maxpool", CONV "    - global_maxpool\n" FLAT),
    SMOOTH("conv2d, same", IMAGE,
           CONV "    - conv2d: {out: 3, kernel: [2, 3], padding: same}\n" FLAT, "mse"),
    SMOOTH("avgpool2d, last windows cut", IMAGE,
           CONV "    - avgpool2d: {kernel: [3, 4], ceil_mode: true}\n"
                "    - avgpool2d: {kernel: 2, padding: 1, ceil_mode: true}\n" FLAT,
           "mse"),
    SMOOTH("avgpool2d, same", IMAGE,
           CONV "    - avgpool2d: {kernel: [4, 3], stride: 1, padding: same, count_include_pad: "
                "false}\n" FLAT,
           "mse"),
    SMOOTH("avgpool2d", IMAGE, CONV "    - avgpool2d: {kernel: 2}\n" FLAT, "mse"),
    SMOOTH("avgpool2d, overlapping", IMAGE,
           CONV "    - avgpool2d: {kernel: 3, stride: 2, padding: 1}\n" FLAT, "mse"),
    SMOOTH("avgpool2d, no padding counted", IMAGE,
           CONV
           "    - avgpool2d: {kernel: 3, stride: 2, padding: 1, count_include_pad: false}\n" FLAT,
           "mse"),
    SMOOTH("global_avgpool", IMAGE, CONV "    - tanh\n    - global_avgpool\n" FLAT, "mse"),
    SMOOTH(
        "adaptive_avgpool2d", IMAGE,
        CONV
        "    - adaptive_avgpool2d: {out: [3, 4]}\n    - adaptive_avgpool2d: {out: [7, 2]}\n" FLAT,
        "mse"),
    SMOOTH("pad", IMAGE,
           CONV "    - pad: {padding: [1, -2, 0, 3], value: 0.5}\n    - tanh\n"
                "    - pad: {padding: 2, mode: reflect}\n"
                "    - pad: {padding: [0, 1, 7, 0], mode: replicate}\n" FLAT,
           "mse"),
    SMOOTH("upsample", IMAGE,
           CONV "    - upsample: {scale: [2, 1]}\n    - upsample: {size: 7, mode: bilinear}\n"
                "    - upsample: {size: [4, 9], mode: bilinear, align_corners: true}\n" FLAT,
           "mse"),
    SMOOTH("reshape", IMAGE,
           "    - conv2d: {out: 4, kernel: 1}\n    - reshape: {dims: [3, -1, 8]}\n    - tanh\n"
           "    - reshape: {dims: [10, 12]}\n    - linear: {out: 4}\n"
           "    - reshape: {dims: [5, 4, 2]}\n" FLAT,
           "mse"),
    SMOOTH("permute", IMAGE,
           CONV "    - permute: {dims: [3, 1, 2]}\n    - tanh\n    - reshape: {dims: [9, 10]}\n"
                "    - permute: {dims: [2, 1]}\n    - linear: {out: 2}\n" FLAT,
           "mse"),
    SMOOTH("flatten", IMAGE, CONV FLAT, "mse"),
    SMOOTH("class_token, select", "input: [6, 5]",
           "    - linear: {out: 4}\n    - class_token\n    - tanh\n    - linear: {out: 3}\n"
           "    - select: {index: -1}\n" HEAD,
           "mse"),
    SMOOTH("mean", "input: [6, 5]", "    - linear: {out: 4}\n    - tanh\n    - mean_rows\n" HEAD,
           "mse"),
    SMOOTH(
        "select, lengths", WORDS,
        "    - linear: {out: 4, from: x, name: a}\n    - select: {index: -2, from: [a, n]}\n" HEAD,
        "mse"),
    SMOOTH("mean, lengths", WORDS,
           "    - linear: {out: 4, from: x, name: a}\n    - mean_rows: {from: [a, n]}\n" HEAD,
           "mse"),
    ENDS(
        "select, lengths 5, 0 and 1",
        "    - linear: {out: 4, from: x, name: a}\n    - select: {index: -1, from: [a, n]}\n" HEAD),
    ENDS("mean, lengths 5, 0 and 1",
         "    - linear: {out: 4, from: x, name: a}\n    - mean_rows: {from: [a, n]}\n" HEAD),
    SMOOTH("class_token alone is learned", "input: [3, 8]",
           "    - class_token\n    - linear: {out: 5}\n    - select: {index: 0}\n", "mse"),
    SMOOTH("flatten, a view of the input", FEATURES, FLAT, "mse"),
    SMOOTH("dropout, features", FEATURES, LINEAR "    - dropout: {p: 0.3}\n" HEAD, "mse"),
    SMOOTH("dropout, image", IMAGE, CONV "    - dropout: {p: 0.5}\n    - tanh\n" FLAT, "mse"),
    SMOOTH("drop_path", IMAGE,
           CONV "    - residual: {body: [{conv2d: {out: 3, kernel: 1}}, {drop_path: {p: 0.4}}]}\n"
                "    - tanh\n" FLAT,
           "mse"),
    SMOOTH("drop_path, features", FEATURES, LINEAR "    - drop_path: {p: 0.5}\n" HEAD, "mse"),
    SMOOTH("positions", "input: [4]",
           "    - embedding: {num: 7, dim: 5}\n    - positions\n    - tanh\n" FLAT, "mse"),
    SMOOTH("positions, sines", "input: [4, 5]",
           "    - linear: {out: 3}\n    - positions: {kind: sinusoidal}\n    - tanh\n" FLAT, "mse"),
    SMOOTH(
        "cross entropy, rows", "input: [4]",
        "    - embedding: {num: 7, dim: 5}\n    - positions\n    - tanh\n    - linear: {out: 3}\n",
        "{cross_entropy: {label_smoothing: 0.1}}"),
    SMOOTH("embedding", "input: [5]", "    - embedding: {num: 4, dim: 3}\n" FLAT, "mse"),
    SMOOTH("embedding, rows", "input: [4]",
           "    - embedding: {num: 7, dim: 5}\n    - linear: {out: 2}\n    - tanh\n" FLAT, "mse"),
    SMOOTH("attention", "input: [5, 4]",
           "    - linear: {out: 12}\n    - attention: {heads: 2}\n" FLAT, "mse"),
    SMOOTH("attention, causal, grouped, dropout", "input: [5, 4]",
           "    - linear: {out: 16}\n"
           "    - attention: {heads: 4, kv_heads: 2, causal: true, dropout: 0.25}\n" FLAT,
           "mse"),
    SMOOTH("attention, window, alibi, scale", "input: [5, 4]",
           "    - linear: {out: 9}\n"
           "    - attention: {heads: 3, window: 2, alibi: true, scale: 0.8}\n" FLAT,
           "mse"),
    SMOOTH("attention, lengths", WORDS,
           "    - linear: {out: 12, from: x, name: a}\n"
           "    - attention: {heads: 2, from: [a, n]}\n" FLAT,
           "mse"),
    SMOOTH("attention, apart", WORDS,
           "    - linear: {out: 6, from: x, name: k}\n    - linear: {out: 6, from: x, name: v}\n"
           "    - reshape: {dims: [4, 5], from: x}\n    - linear: {out: 12, name: q}\n"
           "    - attention: {heads: 4, kv_heads: 2, from: [q, k, v, n]}\n" FLAT,
           "mse"),
    ENDS("attention, lengths 5, 0 and 1", "    - linear: {out: 12, from: x, name: a}\n"
                                          "    - attention: {heads: 2, from: [a, n]}\n" FLAT),
    ENDS("attention, apart, causal, lengths 5, 0 and 1",
         "    - linear: {out: 6, from: x, name: k}\n    - linear: {out: 6, from: x, name: v}\n"
         "    - reshape: {dims: [4, 5], from: x}\n    - linear: {out: 12, name: q}\n"
         "    - attention: {heads: 4, kv_heads: 2, causal: true, from: [q, k, v, n]}\n" FLAT),
    SMOOTH("attention, of itself", "input: [5, 4]",
           "    - linear: {out: 6, name: a}\n"
           "    - attention: {heads: 2, causal: true, from: [a, a, a]}\n" FLAT,
           "mse"),
    SMOOTH("rotary", "input: [5, 4]",
           "    - linear: {out: 12}\n    - rotary: {heads: 2}\n    - tanh\n"
           "    - rotary: {heads: 3, style: interleaved, dim: 2, base: 100}\n" FLAT,
           "mse"),
    SMOOTH(
        "add", FEATURES,
        "    - linear: {out: 4, name: a}\n    - linear: {out: 4, from: input, name: b}\n"
        "    - linear: {out: 4, from: a, name: c}\n    - add: {from: [a, b, c]}\n    - tanh\n" HEAD,
        "mse"),
    SMOOTH("mul, squeeze and excite", IMAGE,
           "    - conv2d: {out: 3, kernel: 1, name: a}\n    - global_avgpool\n"
           "    - conv2d: {out: 2, kernel: 1}\n    - silu\n    - conv2d: {out: 3, kernel: 1}\n"
           "    - sigmoid: {name: s}\n    - mul: {from: [a, s]}\n" FLAT,
           "mse"),
    SMOOTH("mul, images", IMAGE,
           "    - conv2d: {out: 2, kernel: 1, name: a}\n"
           "    - conv2d: {out: 2, kernel: 3, padding: 1, from: a, name: b}\n"
           "    - mul: {from: [b, a]}\n" FLAT,
           "mse"),
    SMOOTH(
        "mul, features", FEATURES,
        "    - linear: {out: 4, name: a}\n    - tanh: {name: b}\n    - mul: {from: [a, b]}\n" HEAD,
        "mse"),
    SMOOTH("mul, squared", FEATURES,
           "    - linear: {out: 4, name: a}\n    - mul: {from: [a, a]}\n" HEAD, "mse"),
    SMOOTH("concat, image", IMAGE,
           "    - conv2d: {out: 2, kernel: 1, name: a}\n"
           "    - conv2d: {out: 3, kernel: 3, padding: 1, from: a, name: b}\n"
           "    - concat: {from: [b, a, b]}\n" FLAT,
           "mse"),
    SMOOTH("concat, features", FEATURES,
           "    - linear: {out: 3, name: a}\n    - linear: {out: 2, from: a, name: b}\n"
           "    - concat: {from: [a, b]}\n    - tanh\n" HEAD,
           "mse"),
    SMOOTH("concat, features of rows", "input: [3, 4]",
           "    - linear: {out: 3, name: a}\n    - linear: {out: 2, from: a, name: b}\n"
           "    - concat: {from: [a, b, a], axis: -1}\n    - tanh\n" FLAT,
           "mse"),
    SMOOTH("concat, height", IMAGE,
           "    - conv2d: {out: 2, kernel: 1, name: a}\n"
           "    - conv2d: {out: 2, kernel: [2, 1], from: a, name: b}\n"
           "    - concat: {from: [b, a], axis: 2}\n    - tanh\n" FLAT,
           "mse"),
    SMOOTH("concat, width", IMAGE,
           "    - conv2d: {out: 2, kernel: 1, name: a}\n"
           "    - conv2d: {out: 2, kernel: [1, 2], from: a, name: b}\n"
           "    - concat: {from: [a, b, a], axis: 3}\n" FLAT,
           "mse"),
    SMOOTH("lstm", "input: [4, 3]",
           "    - linear: {out: 3}\n    - lstm: {hidden: 3, layers: 2, bidirectional: true}\n" FLAT,
           "mse"),
    SMOOTH("lstm, last, no bias", "input: [3, 4]",
           "    - lstm: {hidden: 4, bidirectional: true, bias: false, output: last}\n" HEAD, "mse"),
    SMOOTH("gru", "input: [4, 3]",
           "    - linear: {out: 3}\n    - gru: {hidden: 3, layers: 2, bidirectional: true}\n" FLAT,
           "mse"),
    SMOOTH("gru, last, no bias", "input: [3, 4]",
           "    - gru: {hidden: 4, bias: false, output: last}\n" HEAD, "mse"),
    SMOOTH("lstm, lengths", WORDS,
           "    - linear: {out: 3, from: x, name: a}\n"
           "    - lstm: {hidden: 3, layers: 2, bidirectional: true, from: [a, n]}\n" FLAT,
           "mse"),
    SMOOTH("lstm, lengths, last", WORDS,
           "    - linear: {out: 3, from: x, name: a}\n"
           "    - lstm: {hidden: 3, bidirectional: true, output: last, from: [a, n]}\n" HEAD,
           "mse"),
    SMOOTH(
        "gru, lengths, last", WORDS,
        "    - linear: {out: 3, from: x, name: a}\n"
        "    - gru: {hidden: 3, layers: 2, bidirectional: true, output: last, from: [a, n]}\n" HEAD,
        "mse"),
    ENDS("lstm, lengths 5, 0 and 1",
         "    - linear: {out: 3, from: x, name: a}\n"
         "    - lstm: {hidden: 3, layers: 2, bidirectional: true, from: [a, n]}\n" FLAT),
    ENDS("lstm, lengths 5, 0 and 1, last",
         "    - linear: {out: 3, from: x, name: a}\n"
         "    - lstm: {hidden: 3, bidirectional: true, output: last, from: [a, n]}\n" HEAD),
    ENDS("gru, lengths 5, 0 and 1",
         "    - linear: {out: 3, from: x, name: a}\n"
         "    - gru: {hidden: 3, layers: 2, bidirectional: true, from: [a, n]}\n" FLAT),
    ENDS("gru, lengths 5, 0 and 1, last",
         "    - linear: {out: 3, from: x, name: a}\n"
         "    - gru: {hidden: 3, bidirectional: true, output: last, from: [a, n]}\n" HEAD),
    SMOOTH("residual, identity", IMAGE,
           CONV "    - residual: {body: [{conv2d: {out: 3, kernel: 3, padding: 1, bias: false}}, "
                "batchnorm]}\n    - silu\n" FLAT,
           "mse"),
    SMOOTH("residual, projection", IMAGE,
           CONV
           "    - residual: {body: [{conv2d: {out: 2, kernel: 3, stride: 2, padding: 1}}, gelu], "
           "shortcut: [{conv2d: {out: 2, kernel: 1, stride: 2, bias: false}}, batchnorm]}\n" FLAT,
           "mse"),
    KINKED("residual, relu", IMAGE,
           "    - conv2d: {out: 2, kernel: 1}\n"
           "    - residual: {body: [{conv2d: {out: 2, kernel: 1}}]}\n    - relu\n" FLAT,
           "mse"),
    SMOOTH("residual, nested", FEATURES,
           LINEAR "    - residual: {body: [{linear: {out: 5}}, tanh, "
                  "{residual: {body: [{linear: {out: 5}}, sigmoid]}}]}\n" HEAD,
           "mse"),
    SMOOTH("cross_entropy", FEATURES, LINEAR "    - tanh\n" HEAD, "cross_entropy"),
    SMOOTH("cross_entropy, smoothing and weights", FEATURES, LINEAR "    - tanh\n" HEAD,
           "{cross_entropy: {label_smoothing: 0.2, class_weights: [0.5, 2.0, 1.25]}}"),
    SMOOTH("cross_entropy, gamma and ignore_index", FEATURES, LINEAR "    - tanh\n" HEAD,
           "{cross_entropy: {gamma: 2, ignore_index: 1, class_weights: [0.5, 2.0, 1.25]}}"),
    SMOOTH("cross_entropy, probabilities", FEATURES, LINEAR "    - tanh\n" HEAD,
           "{cross_entropy: {targets: probabilities, label_smoothing: 0.2, class_weights: [0.5, "
           "2.0, 1.25]}}"),
    SMOOTH("bce", FEATURES, LINEAR "    - tanh\n" HEAD, "bce"),
    SMOOTH("bce, pos_weight", FEATURES, LINEAR "    - tanh\n" HEAD,
           "{bce: {pos_weight: [0.5, 2.0, 1.25]}}"),
    SMOOTH("focal", FEATURES, LINEAR "    - tanh\n" HEAD, "{focal: {gamma: 1.5}}"),
    KINKED("l1", FEATURES, LINEAR "    - tanh\n" HEAD, "l1"),
    KINKED("huber", FEATURES, LINEAR "    - tanh\n" HEAD, "{huber: {delta: 3}}"),
    KINKED("smooth_l1", FEATURES, LINEAR "    - tanh\n" HEAD, "{smooth_l1: {beta: 0.125}}"),
    {.name = "distilled",
     .input = FEATURES,
     .layers = LINEAR "    - tanh: {name: t}\n" HEAD,
     .loss = "cross_entropy",
     .ranks = 1,
     .distill = "{teacher: t, temperature: 2, hard: 0.25, soft: 0.75}"},
    {.name = "distilled, with features and weights",
     .input = IMAGE,
     .layers = "    - conv2d: {out: 3, kernel: 1, name: c}\n    - tanh: {name: t}\n" FLAT,
     .loss = "{cross_entropy: {class_weights: [0.5, 2.0, 1.25]}}",
     .ranks = 1,
     .distill = "{teacher: t, temperature: 3, features: [{student: t, teacher: t, weight: 2}, "
                "{student: c, teacher: c}]}"},
};

/* The case as a config; the caller frees it. */
static inline char *case_text(const model_case *k)
{
    return tr_sprintf("name: gradients\n"
                      "data: {train: {format: synthetic, samples: 3}}\n"
                      "model:\n  %s\n  layers:\n%s  loss: %s\n"
                      "train: {batch: 3, steps: 1%s%s}\n",
                      k->input, k->layers, k->loss, k->distill ? ", distill: " : "",
                      k->distill ? k->distill : "");
}

#endif
