/* Random models: any graph of most layers over small images, features and ids, by a seed; weights
 * are tied and frozen here and there. */
#ifndef TR_TESTS_GRAPH_RANDOM_H
#define TR_TESTS_GRAPH_RANDOM_H

#include "tests/unit/graph/equal.h"

typedef struct {
    uint64_t seed, at;
    tr_maker *mk;
    int nvalues, nlinears;
    struct {
        char name[32];
        int64_t in, out;
    } linears[64]; /* those with a name: others may take their weight */
    char name[32]; /* of the last layer; "": the usual one */
    struct {
        int ndim;
        int64_t channels; /* of an image, or features */
        int64_t size;     /* of an image's sides */
        bool used, ids;
    } values[64];
} world;

static inline uint32_t any(world *w, uint32_t n)
{
    return tr_philox_at(w->seed, TR_RNG_TEST, 0, w->at++, 0).v[0] % n;
}

static inline int add(world *w, const char *type, int nin, const int *in, int ndim,
                      int64_t channels, int64_t size, const char *options)
{
    int value;
    snprintf(w->name, sizeof w->name, "%s-%u", type, any(w, 5) + 5 * (unsigned)w->nvalues);
    if (any(w, 2)) w->name[0] = '\0';
    tr_layer_given given = {.type = type, .nin = nin, .in = in, .name = *w->name ? w->name : NULL};
    ok(options ? tr_maker_layer_text(w->mk, &given, options, &value)
               : tr_maker_layer(w->mk, &given, &value));
    assert_int_equal(value, w->nvalues);
    for (int k = 0; k < nin; k++) w->values[in[k]].used = true;
    w->values[value].ndim = ndim;
    w->values[value].channels = channels;
    w->values[value].size = size;
    w->values[value].used = false;
    w->values[value].ids = false;
    w->nvalues++;
    return value;
}

/* Some value of this rank: the newest more often. -1: there is none. */
static inline int pick(world *w, int ndim)
{
    for (int tries = 0; tries < 20; tries++) {
        int v = any(w, 2) ? w->nvalues - 1 : (int)any(w, (uint32_t)w->nvalues);
        if (w->values[v].ndim == ndim && !w->values[v].ids) return v;
    }
    return -1;
}

static inline void add_image(world *w, int v)
{
    const int64_t c = w->values[v].channels, s = w->values[v].size, out = 1 + any(w, 6);
    char text[160];
    const int kernel = 1 + 2 * (int)any(w, 2);
    switch (any(w, 9)) {
    case 7:
        if (s >= 12) break;
        snprintf(text, sizeof text,
                 "{out: %lld, kernel: %d, stride: 2, output_padding: %d, bias: %s}", (long long)out,
                 kernel, 1, any(w, 2) ? "true" : "false");
        add(w, "conv_transpose2d", 1, &v, 3, out, 2 * (s - 1) + kernel + 1, text);
        break;
    case 8:
        if (any(w, 2))
            add(w, "pad", 1, &v, 3, c, s + 1, "{padding: [1, 0, 0, 1], mode: replicate}");
        else if (s < 12)
            add(w, "upsample", 1, &v, 3, c, 2 * s, "{scale: 2, mode: bilinear}");
        break;
    case 6:
        if (any(w, 2)) {
            add(w, "permute", 1, &v, 3, c, s, "{dims: [1, 3, 2]}");
            break;
        }
        snprintf(text, sizeof text, "{dims: [-1, %lld, 1]}", (long long)s);
        v = add(w, "reshape", 1, &v, 3, c * s, s, text);
        snprintf(text, sizeof text, "{dims: [%lld, %lld, %lld]}", (long long)c, (long long)s,
                 (long long)s);
        add(w, "reshape", 1, &v, 3, c, s, text);
        w->values[v].ndim = 0; /* not square: nobody else's */
        break;
    case 0:
        snprintf(text, sizeof text,
                 "{out: %lld, kernel: [%d, %d], padding: %d, bias: %s, init: %s}", (long long)out,
                 kernel, kernel, kernel / 2, any(w, 2) ? "true" : "false",
                 any(w, 2) ? "xavier" : "auto");
        add(w, "conv2d", 1, &v, 3, out, s, text);
        break;
    case 1:
        add(w, "batchnorm", 1, &v, 3, c, s,
            any(w, 2)   ? "{momentum: 0.123, eps: 1e-3}"
            : any(w, 2) ? "{affine: false}"
                        : "{statistics: running}");
        break;
    case 2:
        if (any(w, 4) == 0)
            add(w, any(w, 2) ? "global_maxpool" : "global_avgpool", 1, &v, 3, c, 1, NULL);
        else if (s >= 2 && any(w, 2))
            add(w, any(w, 2) ? "maxpool2d" : "avgpool2d", 1, &v, 3, c, (s + 1) / 2,
                "{kernel: 2, ceil_mode: true}");
        else if (s >= 2)
            add(w, any(w, 2) ? "maxpool2d" : "avgpool2d", 1, &v, 3, c, s / 2, "{kernel: 2}");
        break;
    case 3:
        add(w, "gelu", 1, &v, 3, c, s, any(w, 2) ? "{approximate: tanh}" : NULL);
        break;
    case 4:
        add(w, "prelu", 1, &v, 3, c, s, any(w, 2) ? "{per_channel: true, init: 0.1}" : NULL);
        break;
    default:
        add(w, any(w, 3) ? "relu" : any(w, 2) ? "layernorm" : "hardswish", 1, &v, 3, c, s, NULL);
    }
}

/* Its weight is its own, or another layer's that has the same shape. */
static inline void add_linear(world *w, int v)
{
    static const char *const freeze[] = {"false", "true, stored: float16", "false",
                                         "true, stored: int8"};
    char text[160], more[96] = "";
    const int ndim = w->values[v].ndim;
    const int64_t in = w->values[v].channels, out = any(w, 2) ? in : 1 + any(w, 3);
    for (int i = 0; i < w->nlinears; i++)
        if (any(w, 2) && w->linears[i].in == in && w->linears[i].out == out)
            snprintf(more, sizeof more, ", weight_of: %s", w->linears[i].name);
    if (!*more && any(w, 2))
        snprintf(more, sizeof more, ", freeze: %s, lr_factor: 0.1, decay_factor: 3",
                 freeze[any(w, 4)]);
    snprintf(text, sizeof text, "{out: %lld, bias: %s%s}", (long long)out,
             any(w, 2) ? "true" : "false", more);
    add(w, "linear", 1, &v, ndim, out, w->values[v].size, text);
    if (!*w->name) return;
    snprintf(w->linears[w->nlinears].name, sizeof w->name, "%s", w->name);
    w->linears[w->nlinears].in = in;
    w->linears[w->nlinears++].out = out;
}

static inline void add_features(world *w, int v)
{
    const int ndim = w->values[v].ndim;
    const int64_t f = w->values[v].channels, s = w->values[v].size;
    switch (any(w, 5)) {
    case 0:
    case 1:
        add_linear(w, v);
        break;
    case 2:
        add(w, "layernorm", 1, &v, ndim, f, s, NULL);
        break;
    case 3:
        add(w, any(w, 2) ? "dropout" : "drop_path", 1, &v, ndim, f, s, "{p: 0.3}");
        break;
    default:
        add(w, any(w, 2) ? "silu" : "tanh", 1, &v, ndim, f, s, NULL);
    }
}

static inline void add_some(world *w)
{
    const int ndim = 1 + (int)any(w, 3), v = pick(w, ndim), u = pick(w, ndim);
    if (v < 0 || u < 0) return;
    const bool fits = w->values[v].size == w->values[u].size;
    if (any(w, 4) == 0 && fits && w->values[v].channels == w->values[u].channels)
        add(w, "add", 2, (int[]){v, u}, ndim, w->values[v].channels, w->values[v].size, NULL);
    else if (any(w, 4) == 0 && fits && ndim != 2)
        add(w, "concat", 2, (int[]){v, u}, ndim, w->values[v].channels + w->values[u].channels,
            w->values[v].size, NULL);
    else if (ndim == 3)
        add_image(w, v);
    else
        add_features(w, v);
}

static inline int64_t length(const world *w, int v)
{
    const int ndim = w->values[v].ndim;
    const int64_t s = w->values[v].size;
    return w->values[v].channels * (ndim == 3 ? s * s : ndim == 2 ? s : 1);
}

/* All loose ends, side by side. */
static inline void add_head(world *w)
{
    int flat[TR_MAX_IN], n = 0;
    int64_t sum = 0;
    for (int v = 0, end = w->nvalues; v < end; v++) {
        if (w->values[v].used) continue;
        flat[n] = add(w, "flatten", 1, &v, 1, length(w, v), 1, NULL);
        sum += w->values[flat[n++]].channels;
        if (n < TR_MAX_IN) continue;
        flat[0] = add(w, "concat", n, flat, 1, sum, 1, NULL);
        n = 1;
    }
    if (n > 1) flat[0] = add(w, "concat", n, flat, 1, sum, 1, NULL);
    add(w, "linear", 1, flat, 1, 3, 1, "{out: 3}");
}

static inline tr_model *random_model(uint64_t seed, size_t bucket_bytes)
{
    world w = {.seed = seed};
    tr_model *m = NULL;
    double weights[] = {0.1, 1.0 / 3, 2e-7};
    int v;
    ok(tr_maker_open(any(&w, 2) ? TR_INIT_KAIMING : TR_INIT_NORMAL, &w.mk));
    const uint32_t kinds = 1 + any(&w, 7);
    if (kinds & 1) {
        ok(tr_maker_input(w.mk, kinds == 1 ? "input" : "image", 3, (int64_t[]){2, 6, 6}, &v));
        w.values[w.nvalues].ndim = 3, w.values[w.nvalues].channels = 2;
        w.values[w.nvalues++].size = 6;
    }
    if (kinds & 2) {
        ok(tr_maker_input(w.mk, "facts", 1, (int64_t[]){4}, &v));
        w.values[w.nvalues].ndim = 1, w.values[w.nvalues].channels = 4;
        w.values[w.nvalues++].size = 1;
    }
    if (kinds & 4) {
        ok(tr_maker_input(w.mk, "words", 1, (int64_t[]){5}, &v));
        w.values[w.nvalues++].ids = true;
        add(&w, "embedding", 1, &v, 2, 3, 5, "{num: 9, dim: 3}");
    }
    for (uint32_t n = 1 + any(&w, 16); n > 0 && w.nvalues < 30; n--) {
        if (any(&w, 4) == 0) tr_maker_open_block(w.mk);
        add_some(&w);
        if (any(&w, 4) == 0) tr_maker_close_block(w.mk);
    }
    tr_maker_close_block(w.mk);
    add_head(&w);
    const uint32_t loss = any(&w, 4);
    tr_loss_config c = {.kind = {(int)loss}, .ignore_index = TR_NO_LABEL};
    if (loss == 3)
        c = (tr_loss_config){.kind = {TR_LOSS_CROSS_ENTROPY},
                             .label_smoothing = 0.1,
                             .class_weights = {3, weights},
                             .ignore_index = TR_NO_LABEL};
    ok(tr_maker_loss(w.mk, &c));
    ok(tr_maker_finish(w.mk, bucket_bytes, &m));
    tr_maker_close(w.mk);
    return m;
}

#endif
