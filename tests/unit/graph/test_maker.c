/* Models made by hand and from other models: what is written is read back as an equal model, by the
 * same graphs; copies with layers dropped and replaced; what is told when something is wrong. */
#include "tests/unit/graph/equal.h"

/* ---- Random models --------------------------------------------------------------------------- */

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

static uint32_t any(world *w, uint32_t n)
{
    return tr_philox_at(w->seed, TR_RNG_TEST, 0, w->at++, 0).v[0] % n;
}

static int add(world *w, const char *type, int nin, const int *in, int ndim, int64_t channels,
               int64_t size, const char *options)
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
static int pick(world *w, int ndim)
{
    for (int tries = 0; tries < 20; tries++) {
        int v = any(w, 2) ? w->nvalues - 1 : (int)any(w, (uint32_t)w->nvalues);
        if (w->values[v].ndim == ndim && !w->values[v].ids) return v;
    }
    return -1;
}

static void add_image(world *w, int v)
{
    const int64_t c = w->values[v].channels, s = w->values[v].size, out = 1 + any(w, 6);
    char text[160];
    const int kernel = 1 + 2 * (int)any(w, 2);
    switch (any(w, 5)) {
    case 0:
        snprintf(text, sizeof text,
                 "{out: %lld, kernel: [%d, %d], padding: %d, bias: %s, init: %s}", (long long)out,
                 kernel, kernel, kernel / 2, any(w, 2) ? "true" : "false",
                 any(w, 2) ? "xavier" : "auto");
        add(w, "conv2d", 1, &v, 3, out, s, text);
        break;
    case 1:
        add(w, "batchnorm", 1, &v, 3, c, s, any(w, 2) ? "{momentum: 0.123, eps: 1e-3}" : NULL);
        break;
    case 2:
        if (s >= 2)
            add(w, any(w, 2) ? "maxpool2d" : "avgpool2d", 1, &v, 3, c, s / 2, "{kernel: 2}");
        break;
    case 3:
        add(w, "gelu", 1, &v, 3, c, s, any(w, 2) ? "{approximate: tanh}" : NULL);
        break;
    default:
        add(w, "relu", 1, &v, 3, c, s, NULL);
    }
}

/* Its weight is its own, or another layer's that has the same shape. */
static void add_linear(world *w, int v)
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

static void add_features(world *w, int v)
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
        add(w, "dropout", 1, &v, ndim, f, s, "{p: 0.3}");
        break;
    default:
        add(w, any(w, 2) ? "silu" : "tanh", 1, &v, ndim, f, s, NULL);
    }
}

static void add_some(world *w)
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

static int64_t length(const world *w, int v)
{
    const int ndim = w->values[v].ndim;
    const int64_t s = w->values[v].size;
    return w->values[v].channels * (ndim == 3 ? s * s : ndim == 2 ? s : 1);
}

/* All loose ends, side by side. */
static void add_head(world *w)
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

static tr_model *random_model(uint64_t seed, size_t bucket_bytes)
{
    world w = {.seed = seed};
    tr_model *m = NULL;
    const double weights[] = {0.1, 1.0 / 3, 2e-7};
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
    ok(loss == 3 ? tr_maker_loss(w.mk, TR_LOSS_CROSS_ENTROPY, 0.1, weights, 3)
                 : tr_maker_loss(w.mk, (tr_loss_kind)loss, 0, NULL, 0));
    ok(tr_maker_finish(w.mk, bucket_bytes, &m));
    tr_maker_close(w.mk);
    return m;
}

static void test_random(void **state)
{
    (void)state;
    const size_t before = tr_mem_held(TR_MEM_OTHER);
    int tied = 0, frozen = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        const size_t bucket_bytes = seed % 3 ? 0 : 256;
        tr_model *m = random_model(seed, bucket_bytes), *b = again(m, bucket_bytes), *c = NULL;
        same_model(m, b);
        for (size_t i = 0; i < m->nparams; i++) tied += m->params[i].uses > 1;
        for (size_t i = 0; i < m->nparams; i++) frozen += m->params[i].frozen;
        ok(tr_model_copy(b, NULL, NULL, bucket_bytes, &c));
        tr_model_close(b);
        same_model(m, c);
        tr_model_close(c);
        tr_model_close(m);
    }
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
    assert_true(tied > 10 && frozen > 10);
}

/* Residuals, repeats and blocks of a config: as layers one after the other they are the same. */
static void test_structure(void **state)
{
    (void)state;
    static const char *const models[] = {
        TEST_RESNET20,
        "  input: [4]\n  layers:\n"
        "    - block: {name: b, layers: [{linear: {out: 4}}, relu, {residual: {body: [tanh]}}]}\n"
        "    - linear: {out: 4, name: linear9}\n    - linear: {out: 4}\n"
        "    - add: {from: [b, linear9, linear3, relu1]}\n    - add: {from: [add1, b]}\n"
        "    - repeat: {times: 2, layers: [{block: {layers: [silu]}}, tanh]}\n  loss: mse\n"};
    for (size_t i = 0; i < TR_COUNT(models); i++) {
        test_model t = test_model_open(models[i]);
        tr_config_close(t.config); /* the model does not need it */
        t.config = NULL;
        tr_model *b = again(t.model, 0), *c = NULL;
        same_model(t.model, b);
        ok(tr_model_copy(t.model, NULL, NULL, 0, &c));
        same_model(b, c);
        tr_model_close(b);
        tr_model_close(c);
        test_model_close(&t);
    }
}

/* ---- Changes --------------------------------------------------------------------------------- */

/* Drops every batchnorm, and makes a silu of every relu. */
static tr_status change(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    int *changed = ctx;
    if (strcmp(tr_op_def_name(l->def), "batchnorm") == 0) {
        *value = in[0];
        ++*changed;
    } else if (strcmp(tr_op_def_name(l->def), "relu") == 0) {
        ++*changed;
        return tr_maker_layer(mk, &(tr_layer_given){.type = "silu", .nin = 1, .in = in}, value);
    }
    return TR_OK;
}

static void test_changes(void **state)
{
    (void)state;
    test_model t = test_model_open(
        "  input: [2, 4, 4]\n  layers:\n    - conv2d: {out: 2, kernel: 1}\n    - batchnorm\n"
        "    - residual: {body: [relu, {conv2d: {out: 2, kernel: 1}}, batchnorm]}\n"
        "    - flatten\n    - linear: {out: 3}\n  loss: cross_entropy\n");
    tr_model *m = NULL;
    int changed = 0;
    ok(tr_model_copy(t.model, change, &changed, 0, &m));
    assert_int_equal(changed, 3);
    test_model_close(&t);
    test_model want =
        test_model_open("  input: [2, 4, 4]\n  layers:\n    - conv2d: {out: 2, kernel: 1}\n"
                        "    - residual: {body: [silu, {conv2d: {out: 2, kernel: 1}}]}\n"
                        "    - flatten\n    - linear: {out: 3}\n  loss: cross_entropy\n");
    same_model(m, want.model);
    tr_model *b = again(m, 0);
    same_model(m, b);
    tr_model_close(b);
    tr_model_close(m);
    test_model_close(&want);
}

static tr_status refuse(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    (void)ctx, (void)in;
    return tr_maker_layer(mk, &(tr_layer_given){.type = l->index ? "rellu" : "relu"}, value);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void told(tr_status st, const char *text)
{
    assert_int_equal(st, TR_CONFIG);
    assert_string_equal(tr_last_error()->text, text);
}

static void test_errors(void **state)
{
    (void)state;
    const size_t before = tr_mem_held(TR_MEM_OTHER);
    tr_maker *mk = NULL;
    tr_model *m = NULL;
    int x, y;
    for (int wrong = 0; wrong < 12; wrong++) {
        ok(tr_maker_open(TR_INIT_KAIMING, &mk));
        if (wrong == 0) told(tr_maker_finish(mk, 0, &m), "a model without layers");
        if (wrong == 1)
            told(tr_maker_input(mk, "x", 0, NULL, &x),
                 "input \"x\" has 0 dimensions; 1 to 4 are possible");
        if (wrong == 2)
            told(tr_maker_input(mk, "x", 1, (int64_t[]){0}, &x), "input \"x\" is too small");
        if (wrong == 3)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "relu"}, &y),
                 "layer \"relu1\": there is no value 0 to read");
        ok(wrong < 4 ? TR_OK : tr_maker_input(mk, "x", 1, (int64_t[]){4}, &x));
        if (wrong == 4)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "repeat"}, &y),
                 "there is no layer \"repeat\"");
        if (wrong == 5)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "relu", .name = "a/b"}, &y),
                 "a layer's name has letters, digits and _.- only, not \"a/b\"");
        if (wrong == 6)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "relu", .nin = 1, .in = (int[]){7}},
                                &y),
                 "layer \"relu1\": there is no value 7 to read");
        if (wrong == 7)
            told(tr_maker_layer_text(mk, &(tr_layer_given){.type = "linear"}, "{outs: 3}", &y),
                 "linear:1:2: layer \"linear1\": unknown key \"outs\"; did you mean \"out\"?");
        ok(wrong < 8 ? TR_OK : tr_maker_layer(mk, &(tr_layer_given){.type = "relu"}, &y));
        if (wrong == 8)
            told(tr_maker_input(mk, "z", 1, (int64_t[]){4}, &x), "input \"z\" comes after a layer");
        if (wrong == 9) told(tr_maker_finish(mk, 0, &m), "a model without a loss");
        if (wrong == 10)
            told(tr_maker_layer(mk, &(tr_layer_given){.type = "tanh", .name = "relu1"}, &y),
                 "two layers are named \"relu1\"");
        if (wrong == 11) {
            ok(tr_maker_layer(mk, &(tr_layer_given){.type = "tanh", .nin = 1, .in = &x}, &y));
            ok(tr_maker_loss(mk, TR_LOSS_MSE, 0, NULL, 0));
            told(tr_maker_finish(mk, 0, &m), "layer \"relu1\": its output is not used");
        }
        tr_maker_close(mk);
    }
    assert_null(m);
    test_model t = test_model_open("  input: [4]\n  layers: [tanh, tanh]\n  loss: mse\n");
    told(tr_model_copy(t.model, refuse, NULL, 0, &m), "there is no layer \"rellu\"");
    test_model_close(&t);
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
}

/* An allocation that fails anywhere fails the call and leaves nothing behind. */
static void test_memory(void **state)
{
    (void)state;
    tr_model *m = random_model(11, 0);
    tr_config *base = config_of(BASE);
    const size_t before = tr_mem_held(TR_MEM_OTHER);
    for (int what = 0; what < 2; what++) {
        int failed = 0;
        for (uint64_t n = 1;; n++) {
            tr_model *copy = NULL;
            char *text = NULL;
            size_t nbytes;
            FILE *f = open_memstream(&text, &nbytes);
            tr_mem_fail_at(n);
            const tr_status st =
                what ? tr_model_write_config(m, base, f) : tr_model_copy(m, NULL, NULL, 0, &copy);
            tr_mem_fail_at(0);
            fclose(f);
            free(text);
            tr_model_close(copy);
            assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
            if (st == TR_OK) break;
            assert_int_equal(st, TR_MEMORY);
            failed++;
        }
        assert_true(failed > 10);
    }
    tr_config_close(base);
    tr_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),  cmocka_unit_test(test_structure),
        cmocka_unit_test(test_changes), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
