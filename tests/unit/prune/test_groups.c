/* links: trireme_cpu trireme_plan */
/* Groups of channels: against a finder that knows nothing of ops but runs each layer by itself and
 * looks which channels change; and that channels whose weights are all 0 can go without changing an
 * output. */
#include "optimize/prune/prune.h"
#include "runtime/graph/facts.h"
#include "tests/unit/networks.h"

/* ---- A layer by itself ----------------------------------------------------------------------- */

enum {
    PROBES = 24
}; /* samples: a relu that is 0 for all of them, with other values too, is none */

typedef struct {
    tr_network *n;
    tr_session *s;
    tr_plan *plan;
    float *in[TR_MAX_IN];
} probe;

static probe open_probe(const tr_model *m, const tr_layer *l)
{
    probe p = {0};
    tr_maker *mk = NULL;
    tr_model *one = NULL;
    int in[TR_MAX_IN], value;
    ok(tr_maker_open(TR_INIT_KAIMING, &mk));
    for (int k = 0; k < l->nin; k++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", k);
        ok(tr_maker_input(mk, name, l->inputs[k].ndim, l->inputs[k].dims, &in[k]));
    }
    const char *own = "weight_of=";
    const bool tied = l->nparams && strcmp(m->params[l->params[0]].layer, l->name) != 0;
    ok(tr_maker_copy(mk, l, tied ? &(tr_layer_changes){.options = &own, .noptions = 1} : NULL,
                     l->nin, in, &value));
    ok(tr_maker_loss(mk, &(tr_loss_config){.kind = {TR_LOSS_MSE}}));
    ok(tr_maker_finish(mk, 0, &one));
    tr_maker_close(mk);
    ok(tr_network_open(one, &p.n));
    scatter(p.n, 3);
    const tr_params params = {.o.model = one, .weights = p.n->params, .states = p.n->states};
    const tr_plan_key key = {.mode = TR_MODE_INFER, .batch = PROBES};
    ok(tr_session_open(&(tr_session_options){.model = one,
                                             .backend = &tr_cpu_backend,
                                             .backend_ctx = cpu,
                                             .params = &params,
                                             .threads = 1,
                                             .ranks = 1,
                                             .keys = &key,
                                             .nkeys = 1},
                       &p.s));
    p.plan = tr_session_plan(p.s, TR_MODE_INFER, PROBES);
    const tr_graph *g = tr_plan_graph(p.plan);
    for (int k = 0; k < l->nin; k++) {
        const size_t count = g->tensors[g->inputs[k]].count;
        p.in[k] = tr_alloc(TR_MEM_OTHER, count, sizeof(float));
    }
    return p;
}

static void close_probe(probe *p)
{
    tr_session_close(p->s);
    for (int k = 0; k < TR_MAX_IN; k++) tr_free(p->in[k]);
    tr_network_close(p->n);
}

/* Runs with channel c of input k other than the rest would have it (k < 0: none); [channels] of its
 * output, of malloc. Channels are innermost in memory. */
static float *run_probe(probe *p, const tr_layer *l, int input, int64_t channel)
{
    const tr_graph *g = tr_plan_graph(p->plan);
    for (int k = 0; k < l->nin; k++) {
        const int64_t n = tr_shape_channels(&l->inputs[k]);
        for (size_t e = 0; e < g->tensors[g->inputs[k]].count; e++) {
            const bool other = k == input && (int64_t)e % n == channel;
            p->in[k][e] = between(other ? 7 : 8, (uint32_t)k, e, -2, 2);
        }
        ok(tr_plan_set_input(p->plan, (size_t)k, p->in[k]));
    }
    ok(tr_plan_run(p->plan, &(tr_run){.params_changed = true}));
    const tr_tensor *y = &g->tensors[g->outputs[0]];
    float *out = malloc(y->nbytes);
    memcpy(out, tr_plan_tensor(p->plan, y->id), y->nbytes);
    return out;
}

/* depends[c_in * outputs + c_out] of one input. */
static bool *dependence(probe *p, const tr_layer *l, int input)
{
    const int64_t in = tr_shape_channels(&l->inputs[input]), out = tr_shape_channels(&l->output);
    const size_t count = (size_t)(PROBES * out * tr_shape_places(&l->output));
    bool *depends = calloc((size_t)(in * out), sizeof *depends);
    float *base = run_probe(p, l, -1, 0);
    for (int64_t c = 0; c < in; c++) {
        float *y = run_probe(p, l, input, c);
        for (size_t e = 0; e < count; e++)
            if (y[e] != base[e]) depends[c * out + (int64_t)e % out] = true;
        free(y);
    }
    free(base);
    return depends;
}

/* ---- The finder ------------------------------------------------------------------------------ */

typedef struct {
    size_t *first;
    size_t n;
    int *label; /* classes by flooding: no union-find */
    bool *locked;
} finder;

static void same(finder *f, size_t a, size_t b)
{
    const int from = f->label[a], to = f->label[b];
    for (size_t e = 0; e < f->n && from != to; e++)
        if (f->label[e] == from) f->label[e] = to;
}

static void hold(finder *f, size_t value)
{
    for (size_t e = f->first[value]; e < f->first[value + 1]; e++) f->locked[e] = true;
}

/* A product: inputs that reach the same outputs are a group of it. */
static void find_product(finder *f, const tr_layer *l, const bool *depends, size_t x, size_t y)
{
    const int64_t in = tr_shape_channels(&l->inputs[0]), out = tr_shape_channels(&l->output);
    int64_t each = 0, made = 0;
    for (int64_t i = 0; i < in; i++) each += memcmp(depends, depends + i * out, (size_t)out) == 0;
    for (int64_t o = 0; o < out; o++) made += depends[o];
    for (int64_t i = 0; i < in && each < in; i++)
        for (int64_t o = 0; o < out; o++) {
            if (each == 1 && depends[i * out + o]) same(f, x + (size_t)i, y + (size_t)o);
            if (each > 1) {
                same(f, x + (size_t)i, x + (size_t)(i % each));
                same(f, y + (size_t)o, y + (size_t)(o % made));
            }
        }
}

static void find_layer(finder *f, const tr_model *m, const tr_layer *l)
{
    probe p = open_probe(m, l);
    const size_t y = f->first[m->ninputs + (size_t)l->index];
    const int64_t out = tr_shape_channels(&l->output);
    /* layers of which no channel is removed: a reshape names dimensions that are those of all */
    const char *type = tr_op_def_name(l->def);
    const bool kept = strcmp(type, "reshape") == 0 || strcmp(type, "conv_transpose2d") == 0;
    const bool product = !kept && l->nparams && m->params[l->params[0]].ndim > 1;
    for (int k = 0; k < l->nin; k++) {
        const int64_t in = tr_shape_channels(&l->inputs[k]);
        const size_t x = f->first[l->in[k]];
        bool *depends = dependence(&p, l, k), mixed = kept;
        for (int64_t o = 0; o < out; o++) {
            int64_t reach = 0;
            for (int64_t i = 0; i < in; i++) reach += depends[i * out + o];
            mixed = mixed || reach > 1;
        }
        if (product)
            find_product(f, l, depends, x, y);
        else if (mixed) {
            hold(f, (size_t)l->in[k]);
            hold(f, m->ninputs + (size_t)l->index);
        }
        for (int64_t i = 0; i < in && !product && !mixed; i++)
            for (int64_t o = 0; o < out; o++)
                if (depends[i * out + o]) same(f, x + (size_t)i, y + (size_t)o);
        free(depends);
    }
    close_probe(&p);
}

static void find_tied(finder *f, const tr_model *m, const tr_layer *l)
{
    for (size_t o = 0; o < (size_t)l->index && l->nparams; o++) {
        const tr_layer *a = &m->layers[o];
        if (!a->nparams || a->params[0] != l->params[0]) continue;
        for (size_t c = 0; c < (size_t)tr_shape_channels(&l->output); c++)
            same(f, f->first[m->ninputs + o] + c, f->first[m->ninputs + (size_t)l->index] + c);
        for (size_t c = 0; c < (size_t)tr_shape_channels(&l->inputs[0]); c++)
            same(f, f->first[a->in[0]] + c, f->first[l->in[0]] + c);
    }
}

static size_t compare(const tr_network *n, const tr_groups *g, const char *text)
{
    const tr_model *m = n->model;
    finder f = {.first = g->first, .n = g->nchannels};
    size_t found = 0;
    f.label = calloc(f.n, sizeof *f.label);
    f.locked = calloc(f.n, sizeof *f.locked);
    for (size_t e = 0; e < f.n; e++) f.label[e] = (int)e;
    for (size_t v = 0; v < m->ninputs; v++) hold(&f, v);
    hold(&f, m->ninputs + m->nlayers - 1);
    for (size_t i = 0; i < m->nlayers; i++) {
        find_layer(&f, m, &m->layers[i]);
        find_tied(&f, m, &m->layers[i]);
    }
    for (size_t a = 0; a < f.n; a++) {
        bool locked = false;
        for (size_t b = 0; b < f.n; b++) {
            const bool one = f.label[a] == f.label[b];
            locked = locked || (one && f.locked[b]);
            if (g->unit[a] >= 0 && g->unit[b] >= 0 && one != (g->unit[a] == g->unit[b]))
                fail_msg("channels %zu and %zu: one unit: %d\n%s", a, b, one, text);
        }
        if (locked != (g->unit[a] < 0)) fail_msg("channel %zu must stay: %d\n%s", a, locked, text);
        found += !locked;
    }
    free(f.label);
    free(f.locked);
    return found;
}

static void test_finder(void **state)
{
    (void)state;
    size_t found = 0;
    for (uint64_t seed = 1; seed <= 16; seed++) {
        char *text = generated_model(seed);
        tr_network *n = network_of(text, seed);
        tr_groups g;
        ok(tr_groups_open(n->model, &g));
        found += compare(n, &g, text);
        tr_groups_close(&g);
        tr_network_close(n);
        free(text);
    }
    assert_true(found > 400);
}

/* ---- Channels of zeros ----------------------------------------------------------------------- */

/* All that makes or reads a marked channel is 0. */
static void zero_marked(tr_network *n, const tr_groups *g, const bool *marked)
{
    const tr_model *m = n->model;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        for (int k = 0; k < l->nparams; k++) {
            const tr_param *p = &m->params[l->params[k]];
            const size_t rows = (size_t)p->dims[0], columns = p->ndim > 1 ? (size_t)p->dims[1] : 1;
            const size_t window = p->count / rows / columns;
            tr_product how = {.groups = 1};
            tr_layer_product(l, &how);
            if (p->ndim == 1 && rows != (size_t)tr_shape_channels(&l->output)) continue;
            for (size_t e = 0; e < p->count && tr_layer_channels(l) != TR_CHANNELS_MIXED; e++) {
                const size_t o = e / window / columns, c = e / window % columns;
                const size_t group = o / (rows / (size_t)how.groups);
                const int made = g->unit[g->first[m->ninputs + i] + o];
                const int read =
                    p->ndim > 1 ? g->unit[g->first[l->in[0]] + group * columns + c] : -1;
                if ((made >= 0 && marked[made]) || (read >= 0 && marked[read]))
                    n->params[p->offset + e] = 0;
            }
        }
    }
}

/* About half of the units, of each group all but one at most. How many. */
static size_t mark_half(const tr_groups *g, uint64_t seed, bool *marked)
{
    size_t count = 0, *left = calloc(g->ngroups + 1, sizeof *left);
    for (size_t k = 0; k < g->ngroups; k++) left[k] = g->size[k];
    for (size_t u = 0; u < g->nunits; u++)
        if (left[g->group[u]] > 1 && between(seed, 77, u, 0, 1) < 0.5f) {
            marked[u] = true;
            left[g->group[u]]--;
            count++;
        }
    free(left);
    return count;
}

static void test_zeros(void **state)
{
    (void)state;
    size_t removed = 0, shrunk = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        char *text = generated_model(seed);
        tr_network *n = network_of(text, seed), *small = NULL;
        tr_groups g;
        ok(tr_groups_open(n->model, &g));
        bool *marked = calloc(g.nunits + 1, sizeof *marked);
        removed += mark_half(&g, seed, marked);
        zero_marked(n, &g, marked);
        if (tr_groups_remove(n, &g, marked, &small) != TR_OK)
            fail_msg("seed %d: %s\n%s", (int)seed, tr_last_error()->text, text);
        const double d = networks_apart(n, small, seed);
        if (!(d <= 1e-6)) fail_msg("seed %d: outputs differ by %g\n%s", (int)seed, d, text);
        shrunk += small->model->nparameters < n->model->nparameters;
        /* what comes out is what its own text makes */
        tr_network *again = rebuilt(small);
        assert_true(networks_apart(small, again, seed) == 0);
        tr_network_close(again);
        tr_network_close(small);
        tr_network_close(n);
        tr_groups_close(&g);
        free(marked);
        free(text);
    }
    assert_true(removed > 2000 && shrunk > 250);
}

/* ---- Weights of 8 bits ----------------------------------------------------------------------- */

typedef struct {
    const tr_model *m;
    uint64_t seed;
} keeping;

/* Products keep their own weights as the seed says: a scale an output or one for all, learned ones
 * too. */
static tr_status as_int8(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    const keeping *k = ctx;
    const char *const options[] = {k->seed % 2 ? "stored=int8" : "stored=int8_tensor",
                                   "learn_scale=true"};
    const tr_layer_changes changes = {.options = options, .noptions = k->seed % 4 < 2 ? 1 : 2};
    if (!tr_layer_product(l, NULL) || strcmp(k->m->params[l->params[0]].layer, l->name) != 0)
        return TR_OK;
    return tr_maker_copy(mk, l, &changes, l->nin, in, value);
}

/* How many rows of 8 bits there are; each holds its values by the scales beside it, as its file
 * would. */
static size_t check_int8(const tr_network *n, const char *text)
{
    size_t rows = 0;
    for (size_t i = 0; i < n->model->nparams; i++) {
        const tr_param *p = &n->model->params[i];
        if (p->stored != TR_I8) continue;
        const float *w = n->params + p->offset,
                    *scale = n->states + n->model->states[p->scale].offset;
        const size_t each = p->count / (size_t)p->dims[0];
        for (size_t e = 0; e < p->count; e++)
            if (rintf(w[e] / scale[e / each]) * scale[e / each] != w[e])
                fail_msg("%s: element %zu is %g, by %g\n%s", p->layer, e, (double)w[e],
                         (double)scale[e / each], text);
        rows++;
    }
    return rows;
}

static void test_int8(void **state)
{
    (void)state;
    size_t rows = 0, removed = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        char *text = generated_model(seed);
        tr_network *dense = network_of(text, seed), *n = NULL, *small = NULL;
        keeping k = {dense->model, seed};
        tr_groups g;
        ok(tr_network_edit(dense, as_int8, &k, &n));
        tr_model_quantize(n->model, n->params, n->states);
        ok(tr_groups_open(n->model, &g));
        bool *marked = calloc(g.nunits + 1, sizeof *marked);
        removed += mark_half(&g, seed, marked);
        zero_marked(n, &g, marked);
        if (tr_groups_remove(n, &g, marked, &small) != TR_OK)
            fail_msg("seed %d: %s\n%s", (int)seed, tr_last_error()->text, text);
        rows += check_int8(small, text);
        const double d = networks_apart(n, small, seed);
        if (!(d <= 1e-6)) fail_msg("seed %d: outputs differ by %g\n%s", (int)seed, d, text);
        tr_network_close(small);
        tr_network_close(n);
        tr_network_close(dense);
        tr_groups_close(&g);
        free(marked);
        free(text);
    }
    assert_true(rows > 200 && removed > 500);
}

/* ---- Heads of attention ---------------------------------------------------------------------- */

/* One or two blocks of a transformer, of heads that share keys and values or do not. */
static char *generated_blocks(uint64_t seed)
{
    static const char *const positions[] = {"none", "none", "rotary", "alibi"};
    static const char *const norms[] = {"pre", "post"};
    static const char *const acts[] = {"relu", "gelu_tanh", "swiglu"};
    generator r = {.state = seed};
    char *text = NULL;
    size_t size;
    r.to = open_memstream(&text, &size);
    const int kv = 1 + dice(&r, 4), heads = kv * (1 + dice(&r, 3)), each = 2 + 2 * dice(&r, 2);
    const char *position = positions[dice(&r, 4)];
    const bool packed = strcmp(position, "rotary") != 0 && dice(&r, 2);
    const bool lengths = dice(&r, 3) == 0;
    fprintf(r.to,
            lengths ? "  inputs: {x: [%d, %d], n: [1]}\n  layers:\n"
                    : "  input: [%d, %d]\n  layers:\n",
            2 + dice(&r, 4), heads * each);
    say(&r, 4,
        "transformer: {layers: %d, heads: %d, kv_heads: %d, causal: %s, position: %s, qkv: %s, "
        "norm: %s, activation: %s, mlp: %d, bias: %s, from: [%s]}",
        1 + dice(&r, 2), heads, kv, dice(&r, 2) ? "true" : "false", position,
        packed ? "packed" : "separate", norms[dice(&r, 2)], acts[dice(&r, 3)], 3 + dice(&r, 9),
        dice(&r, 2) ? "true" : "false", lengths ? "x, n" : "input");
    say(&r, 4, "linear: {out: 3}");
    fprintf(r.to, "  loss: mse\n");
    fclose(r.to);
    return text;
}

/* Units of the layer's output; every one of them is a head. */
static int heads_of(const tr_network *n, const tr_groups *g, const tr_layer *l)
{
    tr_heads h;
    const size_t y = g->first[n->model->ninputs + (size_t)l->index];
    int units = 0;
    if (!tr_layer_heads(l, &h)) {
        assert_true(strcmp(tr_op_def_name(l->def), "attention") != 0 || g->unit[y] < 0);
        return 0;
    }
    if (!h.kv_heads && g->unit[y] < 0) return 0; /* turned keys that all heads share */
    for (int64_t c = 0; c < h.heads * h.size; c++) {
        const int u = g->unit[y + (size_t)c], before = c ? g->unit[y + (size_t)c - 1] : -1;
        assert_true(u >= 0 && (c % h.size == 0 || u == before));
        units += u != before;
    }
    if (h.kv_heads) assert_int_equal(units, h.kv_heads > 1 ? h.kv_heads : h.heads);
    return units;
}

static void test_heads(void **state)
{
    (void)state;
    int gone = 0, shared = 0, single = 0, turned = 0;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        char *text = generated_blocks(seed);
        tr_network *n = network_of(text, seed), *small = NULL;
        tr_groups g;
        ok(tr_groups_open(n->model, &g));
        bool *marked = calloc(g.nunits + 1, sizeof *marked);
        mark_half(&g, seed, marked);
        zero_marked(n, &g, marked);
        if (tr_groups_remove(n, &g, marked, &small) != TR_OK)
            fail_msg("seed %d: %s\n%s", (int)seed, tr_last_error()->text, text);
        for (size_t i = 0; i < n->model->nlayers; i++) {
            const tr_layer *l = &n->model->layers[i];
            tr_heads before, after;
            if (heads_of(n, &g, l) == 0) continue;
            tr_layer_heads(l, &before);
            tr_layer_heads(&small->model->layers[i], &after);
            assert_int_equal(after.size, before.size);
            gone += after.heads < before.heads;
            if (after.heads == before.heads) continue;
            shared += before.kv_heads > 1 && before.kv_heads < before.heads;
            single += before.kv_heads == 1;
            turned += before.kv_heads == 0;
        }
        const double d = networks_apart(n, small, seed);
        if (!(d <= 1e-6)) fail_msg("seed %d: outputs differ by %g\n%s", (int)seed, d, text);
        tr_network *again = rebuilt(small);
        assert_true(networks_apart(small, again, seed) == 0);
        tr_network_close(again);
        tr_network_close(small);
        tr_network_close(n);
        tr_groups_close(&g);
        free(marked);
        free(text);
    }
    assert_true(gone > 60 && shared > 10 && single > 10 && turned > 10);
}

/* A group's last channel stays. */
static void test_last(void **state)
{
    (void)state;
    tr_network *n = network_of(
                   "  input: [3]\n  layers: [{linear: {out: 2}}, relu, {linear: {out: 2}}]\n"
                   "  loss: mse\n",
                   1),
               *out = NULL;
    tr_groups g;
    ok(tr_groups_open(n->model, &g));
    assert_int_equal(g.nunits, 2);
    assert_int_equal(g.ngroups, 1);
    assert_string_equal(g.name[0], "linear1");
    assert_int_equal(tr_groups_remove(n, &g, (bool[]){true, true}, &out), TR_INTERNAL);
    assert_string_equal(tr_last_error()->text, "the last channel of \"linear1\" cannot be removed");
    tr_groups_close(&g);
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finder), cmocka_unit_test(test_zeros), cmocka_unit_test(test_int8),
        cmocka_unit_test(test_heads),  cmocka_unit_test(test_last),
    };
    return cmocka_run_group_tests(tests, cpu_open, cpu_close);
}
