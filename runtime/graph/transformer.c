/* The structure `transformer`: blocks of attention and a network of two or three products, each
 * with its residual and norm (Vaswani et al. 2017; norms in front: Xiong et al. 2020; gates:
 * Shazeer 2020; drop_path: Huang et al. 2016), written out as the layers that a config would
 * name one by one, and read as those. */
#include "runtime/graph/parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/numbers.h"

typedef struct {
    int64_t layers, heads, kv_heads, width, mlp, window; /* -1: auto */
    double eps, rotary_base, dropout, attention_dropout, drop_path;
    int norm, norm_type, activation, position, qkv, init_residual;
    bool causal, bias;
} options;

enum { POSITION_NONE, POSITION_ROTARY, POSITION_ALIBI };
enum { ACT_SWIGLU = 4, ACT_GEGLU };
enum { INIT_PLAIN, INIT_SCALED };
enum { QKV_AUTO, QKV_PACKED, QKV_SEPARATE };

static const char *const orders[] = {"pre", "post", NULL};
static const char *const norms[] = {"layernorm", "rmsnorm", NULL};
static const char *const acts[] = {"gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu", NULL};
static const char *const act_layers[] = {
    "gelu", "gelu: {approximate: tanh}", "relu", "silu", "silu", "gelu"};
static const char *const positions[] = {"none", "rotary", "alibi", NULL};
static const char *const inits[] = {"plain", "scaled", NULL};
static const char *const products[] = {"auto", "packed", "separate", NULL};

#define AUTO_INT(name, lowest, text)                                                               \
    {                                                                                              \
        .key = #name, .kind = TR_FIELD_INT, .offset = offsetof(options, name), .dflt = "auto",     \
        .auto_text = "auto", .auto_value = -1, .min = (lowest), .max = INT32_MAX, .doc = text      \
    }
#define AT(name) offsetof(options, name)

static const tr_field fields[] = {
    TR_INT("layers", AT(layers), NULL, 1, TR_LAYERS_MAX / 16, NULL, "how many blocks"),
    TR_INT("heads", AT(heads), NULL, 1, INT32_MAX, NULL, "of queries; they divide the width"),
    TR_BOOL("causal", AT(causal), NULL,
            "true: a token attends to itself and to those before it, as a language model's; false: "
            "to all, as ViT's and BERT's"),
    AUTO_INT(width, 1, "features of a token: those of the input; another number is an error"),
    AUTO_INT(kv_heads, 1, "of keys and values, a divisor of `heads`; auto: as many as `heads`"),
    AUTO_INT(mlp, 1,
             "features within the second half; auto: 4 times the width, with a gate 8/3 "
             "times, rounded up to a multiple of 64"),
    TR_CHOICE("norm", AT(norm), orders, "pre",
              "pre: before each half, as GPT-2 and Llama (which end with one norm more: a layer of "
              "its own behind); post: behind each sum, as BERT"),
    TR_CHOICE("norm_type", AT(norm_type), norms, "layernorm", "what normalizes"),
    TR_REAL("eps", AT(eps), "1e-5", 1e-12, 1, NULL, "of the norms"),
    TR_CHOICE("activation", AT(activation), acts, "gelu",
              "of the second half; swiglu, geglu: a gate by silu, gelu, and three products"),
    TR_CHOICE("position", AT(position), positions, "none",
              "what attention knows of places; none: the layers before say it"),
    TR_REAL("rotary_base", AT(rotary_base), "10000", 1, 1e9, NULL,
            "with position: rotary; with others the default alone"),
    TR_INT("window", AT(window), "0", 0, INT32_MAX, "tokens",
           "attend to that many at most, 0: to all"),
    TR_BOOL("bias", AT(bias), "true", "products have a bias"),
    TR_CHOICE("qkv", AT(qkv), products, "auto",
              "queries, keys and values by one product, or by three; auto: three with rotary"),
    TR_CHOICE("init_residual", AT(init_residual), inits, "plain",
              "initial weights of `.proj` and `.down`, which end a half: plain: as the others; "
              "scaled: over the root of how many halves there are, 2 `layers`, so that their sum "
              "starts no larger in deeper models (GPT-2: Radford et al. 2019, section 2.3)"),
    TR_REAL("dropout", AT(dropout), "0", 0, 0.999, NULL, "of what either half adds"),
    TR_REAL("attention_dropout", AT(attention_dropout), "0", 0, 0.999, NULL,
            "of the attention's probabilities"),
    TR_REAL("drop_path", AT(drop_path), "0", 0, 0.999, NULL,
            "halves left out, of a sample: so often in the last block, from 0 in the first in even "
            "steps"),
    {0},
};

const tr_op_def tr_type_transformer = {
    .name = "transformer",
    .example = "transformer: {layers: 2, heads: 2, causal: true}",
    .doc = "(tokens, features) to the same: `layers` blocks, each attention and a network of two "
           "products (with a gate three), with residuals and norms. It stands for plain layers, "
           "which `trainer check` prints, named `NAME.0.norm1`, `.qkv` (or `.q`, `.k`, `.v`), "
           "`.attention`, `.proj`, `.add1`, `.norm2`, `.up` (`.gate`), `.act`, `.down`, `.add2`, "
           "then `NAME.1...`. A second input in `from` holds the samples' lengths. "
           "GPT-2: `activation: gelu_tanh, init_residual: scaled`; Llama: `norm_type: rmsnorm, "
           "activation: swiglu, "
           "position: rotary, bias: false`; BERT: `norm: post, causal: false`.",
    .fields = fields,
    .attrs_size = sizeof(options),
    .min_in = 1,
    .max_in = 2,
};

static tr_status check(const tr_layer *l, options *a)
{
    const tr_shape *x = &l->inputs[0];
    char text[TR_SHAPE_TEXT];
    if (x->ndim != 2)
        return tr_layer_fail(l, TR_SHAPE, "it takes (tokens, features), not %s",
                             tr_shape_text(x, text));
    if (a->width >= 0 && a->width != x->dims[1])
        return tr_layer_fail(l, TR_SHAPE, "width: %lld, but its input has %lld features",
                             (long long)a->width, (long long)x->dims[1]);
    a->width = x->dims[1];
    if (a->kv_heads < 0) a->kv_heads = a->heads;
    if (a->width % a->heads)
        return tr_layer_fail(l, TR_CONFIG, "heads: %lld do not divide the width, %lld",
                             (long long)a->heads, (long long)a->width);
    if (a->heads % a->kv_heads)
        return tr_layer_fail(l, TR_CONFIG, "kv_heads: %lld do not divide the heads, %lld",
                             (long long)a->kv_heads, (long long)a->heads);
    const bool rotary = a->position == POSITION_ROTARY;
    if (!rotary && a->rotary_base != 10000) /* written out, the default is none to refuse */
        return tr_layer_fail(l, TR_CONFIG, "rotary_base: %g means nothing with position: %s",
                             a->rotary_base, positions[a->position]);
    if (rotary && a->qkv == QKV_PACKED)
        return tr_layer_fail(l, TR_CONFIG,
                             "position: rotary turns queries and keys by themselves: qkv: "
                             "separate");
    if (rotary && a->width / a->heads % 2)
        return tr_layer_fail(l, TR_CONFIG,
                             "position: rotary turns pairs: a head's %lld features are odd",
                             (long long)(a->width / a->heads));
    if (a->qkv == QKV_AUTO) a->qkv = rotary ? QKV_SEPARATE : QKV_PACKED;
    const bool gated = a->activation >= ACT_SWIGLU;
    if (a->mlp < 0) a->mlp = gated ? (a->width * 8 / 3 + 63) / 64 * 64 : 4 * a->width;
    return TR_OK;
}

/* ---- One block, as text ---------------------------------------------------------------------- */

static void norm(FILE *f, const options *a, int which, const char *of)
{
    char eps[32];
    fprintf(f, "- %s: {name: norm%d, eps: %s, from: %s}\n", norms[a->norm_type], which,
            tr_format_real(a->eps, eps), of);
}

/* `init`: factor of its initial weights. */
static void product(FILE *f, const options *a, const char *name, int64_t out, double init,
                    const char *of)
{
    char factor[32];
    fprintf(f, "- linear: {name: %s, out: %lld, bias: %s, init_factor: %s, from: %s}\n", name,
            (long long)out, a->bias ? "true" : "false", tr_format_real(init, factor), of);
}

/* Of a product that ends a half. */
static double last_init(const options *a)
{
    return a->init_residual == INIT_SCALED ? 1 / sqrt(2 * (double)a->layers) : 1;
}

/* What a half has made, thinned out; then the sum. */
static void add(FILE *f, const options *a, int which, double path, const char *made, const char *to)
{
    const char *last = made;
    char names[2][16], p[32];
    if (a->dropout > 0) {
        snprintf(names[0], sizeof names[0], "drop%d", which);
        fprintf(f, "- dropout: {name: %s, p: %s, from: %s}\n", names[0],
                tr_format_real(a->dropout, p), last);
        last = names[0];
    }
    if (path > 0) {
        snprintf(names[1], sizeof names[1], "path%d", which);
        fprintf(f, "- drop_path: {name: %s, p: %s, from: %s}\n", names[1], tr_format_real(path, p),
                last);
        last = names[1];
    }
    fprintf(f, "- add: {name: add%d, from: [%s, %s]}\n", which, last, to);
}

static void attention(FILE *f, const options *a, const char *x, bool lengths)
{
    const int64_t width = a->width, kv = width / a->heads * a->kv_heads;
    const char *q = "q", *k = "k";
    char base[32], p[32];
    if (a->qkv == QKV_PACKED) {
        product(f, a, "qkv", width + 2 * kv, 1, x);
    } else {
        product(f, a, "q", width, 1, x);
        product(f, a, "k", kv, 1, x);
        product(f, a, "v", kv, 1, x);
    }
    if (a->position == POSITION_ROTARY) {
        fprintf(f, "- rotary: {name: q_rotary, heads: %lld, base: %s, from: q}\n",
                (long long)a->heads, tr_format_real(a->rotary_base, base));
        fprintf(f, "- rotary: {name: k_rotary, heads: %lld, base: %s, from: k}\n",
                (long long)a->kv_heads, base);
        q = "q_rotary", k = "k_rotary";
    }
    fprintf(f,
            "- attention: {name: attention, heads: %lld, kv_heads: %lld, causal: %s, window: %lld, "
            "dropout: %s, alibi: %s, from: [",
            (long long)a->heads, (long long)a->kv_heads, a->causal ? "true" : "false",
            (long long)a->window, tr_format_real(a->attention_dropout, p),
            a->position == POSITION_ALIBI ? "true" : "false");
    if (a->qkv == QKV_PACKED)
        fprintf(f, "qkv");
    else
        fprintf(f, "%s, %s, v", q, k);
    fprintf(f, "%s]}\n", lengths ? ", " TR_NAME_LENGTHS : "");
    product(f, a, "proj", a->width, last_init(a), "attention");
}

static void network(FILE *f, const options *a, const char *x)
{
    const bool gated = a->activation >= ACT_SWIGLU;
    const char *act = act_layers[a->activation];
    const int n = (int)strcspn(act, ":");
    if (gated) product(f, a, "gate", a->mlp, 1, x);
    product(f, a, "up", a->mlp, 1, x);
    fprintf(f, "- %.*s: {name: act, from: %s%s}\n", n, act, gated ? "gate" : "up",
            act[n] ? ", approximate: tanh" : "");
    if (gated) fprintf(f, "- mul: {name: gated, from: [act, up]}\n");
    product(f, a, "down", a->width, last_init(a), gated ? "gated" : "act");
}

/* Of block `i`; what it reads is named `input`. NULL: no memory. */
static char *block_text(const options *a, int64_t i, bool lengths)
{
    const bool pre = a->norm == 0;
    const double path = a->layers > 1 ? a->drop_path * (double)i / (double)(a->layers - 1) : 0;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    if (pre) norm(f, a, 1, "input");
    attention(f, a, pre ? "norm1" : "input", lengths);
    add(f, a, 1, path, "proj", "input");
    norm(f, a, pre ? 2 : 1, "add1");
    network(f, a, pre ? "norm2" : "norm1");
    add(f, a, 2, path, "down", pre ? "add1" : "norm1");
    if (!pre) norm(f, a, 2, "add2");
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

tr_status tr_parse_transformer(tr_parser *p, const tr_layer *l, int *output)
{
    options *a = l->attrs;
    char path[TR_NAME + 24];
    tr_status st = TR_OK;
    TR_TRY(check(l, a));
    *output = l->in[0];
    for (int64_t i = 0; i < a->layers; i++) {
        snprintf(path, sizeof path, "%s.%lld", l->name, (long long)i);
        TR_TRY(tr_parse_written(p, l, path, block_text(a, i, l->nin > 1), *output, output));
    }
    st = tr_name_add(p->mk, l->where, l->name, *output);
out:
    return st;
}
