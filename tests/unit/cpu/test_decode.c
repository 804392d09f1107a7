/* links: trireme_cpu trireme_plan
 * Graphs that decode: what goes through row by row, or some rows at a time, is what the infer graph
 * makes of the whole sequence, for every layer that holds something of the rows before; sequences
 * of several lengths beside each other; and which models are refused. */
#include "tests/unit/graph/models.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "runtime/plan/internal.h"
#include "tests/unit/cpu/loop_levels.h"
#include "tests/unit/paths.h"

#define HEAD "  loss: cross_entropy\n"
typedef struct {
    const char *name, *model;
    int64_t rows, ids;
} decode_case;

static const decode_case cases[] = {
    {"gpt2",
     "  input: [12]\n  init: normal\n  layers:\n"
     "    - embedding: {num: 23, dim: 32, std: 0.5, name: wte}\n    - positions\n"
     "    - transformer: {layers: 2, heads: 4, activation: gelu_tanh, causal: true}\n"
     "    - layernorm\n    - linear: {out: 23, bias: false, weight_of: wte}\n" HEAD,
     12, 23},
    {"llama",
     "  input: [13]\n  layers:\n    - embedding: {num: 19, dim: 48, std: 0.5}\n"
     "    - transformer: {layers: 2, heads: 6, kv_heads: 2, causal: true, norm_type: rmsnorm,\n"
     "                    activation: swiglu, position: rotary, bias: false}\n"
     "    - rmsnorm\n    - linear: {out: 19, bias: false}\n" HEAD,
     13, 19},
    {"window, alibi",
     "  input: [20]\n  layers:\n    - embedding: {num: 9, dim: 40}\n    - linear: {out: 120}\n"
     "    - attention: {heads: 5, causal: true, window: 4, alibi: true}\n"
     "    - relu\n    - linear: {out: 9}\n" HEAD,
     20, 9},
    {"one head of 256",
     "  input: [9]\n  layers:\n    - embedding: {num: 7, dim: 24}\n    - linear: {out: 768}\n"
     "    - attention: {heads: 1, causal: true}\n    - linear: {out: 7}\n" HEAD,
     9, 7},
    {"many keys, multi-query",
     "  input: [300]\n  layers:\n    - embedding: {num: 6, dim: 20}\n    - linear: {out: 165}\n"
     "    - attention: {heads: 3, kv_heads: 1, causal: true, scale: 0.4}\n"
     "    - linear: {out: 6}\n" HEAD,
     300, 6},
    {"rotary, interleaved",
     "  input: [11]\n  layers:\n    - embedding: {num: 8, dim: 24, name: e}\n"
     "    - linear: {out: 64, name: q}\n    - rotary: {heads: 4, style: interleaved, name: qr}\n"
     "    - linear: {out: 32, name: k, from: e}\n"
     "    - rotary: {heads: 2, style: interleaved, dim: 6, name: kr}\n"
     "    - linear: {out: 32, name: v, from: e}\n"
     "    - attention: {heads: 4, kv_heads: 2, causal: true, from: [qr, kr, v]}\n"
     "    - linear: {out: 8}\n" HEAD,
     11, 8},
    {"lstm",
     "  input: [15]\n  layers:\n    - embedding: {num: 10, dim: 6}\n"
     "    - positions: {kind: sinusoidal}\n    - lstm: {hidden: 17, layers: 2}\n"
     "    - linear: {out: 10}\n" HEAD,
     15, 10},
    {"gru",
     "  input: [15]\n  layers:\n    - embedding: {num: 10, dim: 6}\n"
     "    - gru: {hidden: 9, layers: 2, bias: false}\n    - linear: {out: 10}\n" HEAD,
     15, 10},
    {"sketched",
     "  input: [10]\n  layers:\n    - embedding: {num: 7, dim: 12}\n"
     "    - sklinear: {out: 24, terms: 2, rank: 3}\n    - gelu\n"
     "    - attention: {heads: 2, causal: true}\n    - linear: {out: 7}\n" HEAD,
     10, 7},
    {"sums, products, pieces",
     "  input: [8]\n  layers:\n    - embedding: {num: 5, dim: 12, name: e}\n"
     "    - residual: {body: [{linear: {out: 12}}, tanh, dropout: {p: 0.5}]}\n    - prelu\n"
     "    - linear: {out: 12, name: a}\n    - mul: {from: [a, e], name: m}\n"
     "    - concat: {from: [m, e], axis: 2}\n    - leaky_relu\n    - elu\n    - softmax\n"
     "    - lstm_layer: {hidden: 4}\n    - linear: {out: 5}\n" HEAD,
     8, 5},
};
enum { BATCH = 3, CHUNK = 7 };

typedef struct {
    test_model t;
    float *weights, *states;
    tr_params params;
    tr_session *session;
    void *ctx;
    int64_t batch, rows, ids;
    tr_plan *whole, *one, *some, *fill;
} decoder;

static int32_t id_at(const decoder *d, int64_t sequence, int64_t row)
{
    return (int32_t)(tr_philox_at(3, TR_RNG_TEST, 1, (uint64_t)sequence, (uint32_t)row).v[0] %
                     (uint32_t)d->ids);
}

static float *floats(size_t n)
{
    float *v = tr_alloc(TR_MEM_OTHER, n ? n : 1, sizeof *v);
    assert_non_null(v);
    return v;
}

static decoder open_decoder(const decode_case *k, tr_precision precision, int64_t batch,
                            int threads)
{
    decoder d = {.t = test_model_open(k->model), .batch = batch, .rows = k->rows, .ids = k->ids};
    const tr_model *m = d.t.model;
    const tr_backend_options bo = {0};
    const tr_plan_key key = {.mode = TR_MODE_INFER, .batch = batch};
    const tr_decode decodes[] = {{.rows = 1, .cache = k->rows},
                                 {.rows = CHUNK, .cache = k->rows},
                                 {.rows = CHUNK, .cache = k->rows, .fill = true}};
    assert_int_equal(tr_cpu_backend.open(&bo, &d.ctx), TR_OK);
    d.weights = floats(m->flat_count);
    d.states = floats(m->state_count);
    tr_model_init_params(m, 5, d.weights, 0, m->flat_count);
    for (size_t i = 0; i < m->flat_count; i++) d.weights[i] *= 2; /* so that rows matter */
    d.params = (tr_params){.o.model = m, .weights = d.weights, .states = d.states};
    const tr_session_options o = {.model = m,
                                  .backend = &tr_cpu_backend,
                                  .backend_ctx = d.ctx,
                                  .params = &d.params,
                                  .threads = threads,
                                  .precision = precision,
                                  .ranks = 1,
                                  .keys = &key,
                                  .nkeys = 1,
                                  .decodes = decodes,
                                  .ndecodes = 3,
                                  .sequences = batch};
    if (tr_session_open(&o, &d.session) != TR_OK)
        fail_msg("%s: %s", k->name, tr_last_error()->text);
    d.whole = tr_session_plan(d.session, TR_MODE_INFER, batch);
    d.one = tr_session_decoder(d.session, &decodes[0]);
    d.some = tr_session_decoder(d.session, &decodes[1]);
    d.fill = tr_session_decoder(d.session, &decodes[2]);
    assert_true(d.whole && d.one && d.some && d.fill);
    return d;
}

static void close_decoder(decoder *d)
{
    tr_session_close(d->session);
    tr_free(d->weights);
    tr_free(d->states);
    test_model_close(&d->t);
    tr_cpu_backend.close(d->ctx);
}

static void run_plan(tr_plan *p)
{
    const tr_run run = {.params_changed = true};
    if (tr_plan_run(p, &run) != TR_OK) fail_msg("%s", tr_last_error()->text);
}

static float value_at(const tr_plan *p, size_t i)
{
    const tr_graph *g = tr_plan_graph(p);
    const void *at = tr_plan_tensor(p, g->logits);
    return g->tensors[g->logits].dtype == TR_F32 ? ((const float *)at)[i]
                                                 : tr_bf16_to_f32(((const tr_bf16 *)at)[i]);
}

/* (batch, rows, ids): what the infer graph makes of the whole sequences. */
static float *whole(const decoder *d)
{
    const size_t rows = (size_t)(d->batch * d->rows), n = rows * (size_t)d->ids;
    int32_t *ids = tr_alloc(TR_MEM_OTHER, rows, sizeof *ids);
    float *out = floats(n);
    for (size_t i = 0; i < rows; i++) ids[i] = id_at(d, (int64_t)i / d->rows, (int64_t)i % d->rows);
    assert_int_equal(tr_plan_set_input(d->whole, 0, ids), TR_OK);
    run_plan(d->whole);
    for (size_t i = 0; i < n; i++) out[i] = value_at(d->whole, i);
    tr_free(ids);
    return out;
}

/* Rows that sequence `s` gets in a run of `rows`, of which it has had `past`: none now and then,
 * and no more than it has. */
static int32_t count_of(const decoder *d, int run, int64_t s, int64_t rows, int64_t past)
{
    const int64_t length = s == 1 ? d->rows - 4 : s == 2 ? 5 : d->rows;
    const int64_t left = length - past, most = (run + s) % 3 == 0 ? rows : (rows + 1) / 2;
    if ((run + s) % 5 == 4) return 0;
    return (int32_t)(left < most ? left : most);
}

/* The sequences go through, `plan` by `plan`; got: like whole(), NaN where no row was asked for. */
static float *by_rows(const decoder *d, bool fill)
{
    const size_t n = (size_t)(d->batch * d->rows * d->ids);
    float *got = floats(n);
    int32_t past[BATCH] = {0}, count[BATCH], *ids = tr_alloc(TR_MEM_OTHER, BATCH * CHUNK, 4);
    assert_int_equal(tr_session_forget(d->session), TR_OK);
    for (size_t i = 0; i < n; i++) got[i] = NAN;
    bool more = true;
    for (int run = 0; more; run++) {
        const bool chunk = run % 3 != 1;
        tr_plan *p = !chunk ? d->one : fill ? d->fill : d->some;
        const int64_t rows = chunk ? CHUNK : 1;
        more = false;
        for (int64_t s = 0; s < d->batch; s++) {
            count[s] = count_of(d, run, s, rows, past[s]);
            for (int64_t r = 0; r < rows; r++)
                ids[s * rows + r] = r < count[s] ? id_at(d, s, past[s] + r) : 0;
        }
        assert_int_equal(tr_plan_set_input(p, 0, ids), TR_OK);
        assert_int_equal(tr_plan_set_input(p, TR_DECODE_PAST, past), TR_OK);
        assert_int_equal(tr_plan_set_input(p, TR_DECODE_COUNT, count), TR_OK);
        run_plan(p);
        for (int64_t s = 0; s < d->batch; s++) {
            for (int64_t e = 0; e < count[s] * d->ids && p != d->fill; e++)
                got[(s * d->rows + past[s]) * d->ids + e] =
                    value_at(p, (size_t)(s * rows * d->ids + e));
            past[s] += count[s];
            more |= past[s] < (s == 1 ? d->rows - 4 : s == 2 ? 5 : d->rows);
        }
    }
    tr_free(ids);
    return got;
}

/* Returns how many were compared. */
static size_t compare(const char *name, const float *got, const float *want, size_t n, double tol)
{
    size_t compared = 0;
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++) {
        if (isnan(got[i])) continue;
        compared++;
        if (!(fabs((double)got[i] - (double)want[i]) <= tol * fmax(most, 1)))
            fail_msg("%s: value %zu is %g row by row, %g of the whole sequence", name, i,
                     (double)got[i], (double)want[i]);
    }
    return compared;
}

static void check(const decode_case *k, tr_precision precision, int threads)
{
    decoder d = open_decoder(k, precision, BATCH, threads);
    const size_t n = (size_t)(BATCH * k->rows * k->ids);
    float *want = whole(&d), *got = by_rows(&d, false), *filled = by_rows(&d, true);
    /* one rounding of bfloat16 is 2^-9; there are several, at other places in tiles than in rows */
    const double tol = precision == TR_PRECISION_BF16 ? 0x1p-5 : 1e-5;
    assert_true(compare(k->name, got, want, n, tol) == (size_t)((2 * k->rows + 1) * k->ids));
    const size_t some = compare(k->name, filled, got, n, 0);
    assert_true(some > 0 && some < n / 2);
    tr_free(want);
    tr_free(got);
    tr_free(filled);
    close_decoder(&d);
}

static void rows_are_those_of_whole_sequences(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(cases); i++)
        for (int threads = 1; threads <= 3; threads += 2)
            check(&cases[i], TR_PRECISION_FP32, threads);
}

static void in_bfloat16(void **state)
{
    (void)state;
    void *ctx = NULL;
    const tr_backend_options bo = {0};
    assert_int_equal(tr_cpu_backend.open(&bo, &ctx), TR_OK);
    const char *why = tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(0), TR_BF16);
    tr_cpu_backend.close(ctx);
    if (why) {
        print_message("skipped: %s\n", why);
        skip();
    }
    for (size_t i = 0; i < TR_COUNT(cases); i++) check(&cases[i], TR_PRECISION_BF16, 2);
}

/* The same bits once more behind forget; of any number of threads the same values but for oneDNN's
 * order of sums. */
static void bits_stay(void **state)
{
    (void)state;
    if (test_paths_alone()) return; /* the same plans as above */
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        decoder d = open_decoder(&cases[i], TR_PRECISION_FP32, BATCH, 1);
        decoder e = open_decoder(&cases[i], TR_PRECISION_FP32, BATCH, 3);
        const size_t nbytes = (size_t)(BATCH * d.rows * d.ids) * sizeof(float);
        float *one = by_rows(&d, false), *again = by_rows(&d, false), *three = by_rows(&e, false);
        assert_memory_equal(one, again, nbytes);
        compare(cases[i].name, three, one, nbytes / sizeof(float), 1e-6);
        tr_free(one);
        tr_free(again);
        tr_free(three);
        close_decoder(&d);
        close_decoder(&e);
    }
}

static void what_is_beside_does_not_matter(void **state)
{
    (void)state;
    if (test_paths_alone()) return; /* the same plans as above */
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        decoder d = open_decoder(&cases[i], TR_PRECISION_FP32, BATCH, 1);
        decoder alone = open_decoder(&cases[i], TR_PRECISION_FP32, 1, 1);
        float *all = by_rows(&d, false), *one = by_rows(&alone, false);
        assert_true(compare(cases[i].name, one, all, (size_t)(d.rows * d.ids), 1e-6) > 0);
        tr_free(all);
        tr_free(one);
        close_decoder(&d);
        close_decoder(&alone);
    }
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

static tr_graph *graph_of(const tr_model *m, const tr_decode *d)
{
    tr_graph *g = NULL;
    const tr_graph_options o = {
        .batch = 2, .mode = TR_MODE_INFER, .ranks = 1, .passes = TR_PASSES_ALL, .decode = *d};
    if (tr_graph_open(m, &o, &g) != TR_OK) fail_msg("%s", tr_last_error()->text);
    return g;
}

/* Filling needs neither the head nor what comes behind the last keys and values. */
static void fill_leaves_out_what_nobody_reads(void **state)
{
    (void)state;
    test_model t = test_model_open(cases[0].model);
    tr_graph *all = graph_of(t.model, &(tr_decode){.rows = 4, .cache = 12});
    tr_graph *fill = graph_of(t.model, &(tr_decode){.rows = 4, .cache = 12, .fill = true});
    assert_int_equal(fill->logits, -1);
    assert_int_equal(fill->held, all->held);
    /* two layers, keys and values, 2 sequences of 12 rows of 32 floats: multiples of 256 bytes */
    assert_int_equal(all->held, 2 * 2 * 2 * 12 * 32 * 4);
    assert_true(fill->nops + 7 <= all->nops);
    assert_int_equal(strcmp(fill->ops[fill->nops - 1].layer, "transformer1.1.attention"), 0);
    assert_int_equal(all->tensors[all->logits].dims[1], 4);
    tr_graph_close(all);
    tr_graph_close(fill);
    test_model_close(&t);
}

#define IDS "  input: [6]\n  layers:\n    - embedding: {num: 5, dim: 8, name: e}\n"
#define END "    - linear: {out: 5}\n" HEAD

static void others_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *why;
    } bad[] = {
        {IDS "    - transformer: {layers: 1, heads: 2, causal: false}\n" END,
         "layer \"transformer1.0.attention\": its attention is not causal: such a "
         "model makes no sequence row by row"},
        {IDS "    - gru_layer: {hidden: 4, reverse: true}\n" END,
         "layer \"gru_layer1\": it goes from the last row to the first: such a model "
         "makes no sequence row by row"},
        {IDS "    - select: {index: 0}\n" END,
         "layer \"select1\": it makes a row of others than those before it: such a "
         "model makes no sequence row by row"},
        {IDS "    - layernorm: {normalized_shape: [6, 8]}\n" END,
         "layer \"layernorm1\": normalized_shape takes all rows of a sequence "
         "together: such a model makes no sequence row by row"},
        {IDS "    - concat: {from: [e, e], axis: 1}\n" END,
         "layer \"concat1\": its output is (12, 8), not a row for each of 6 ids: such "
         "a model makes no sequence row by row"},
        {"  input: [6]\n  layers:\n" END,
         "the model's input \"input\" is no sequence of ids: expected the first input to be one "
         "(positions), which an embedding reads"},
        {"  inputs: {n: [1], x: [6]}\n  layers:\n    - embedding: {num: 5, dim: 8, name: e, from: "
         "x}\n"
         "    - gru: {hidden: 4, from: [e, n]}\n" END,
         "the model's input \"n\" is no sequence of ids: expected the first input to be one"},
        {"  inputs: {x: [6], y: [6, 8]}\n  layers:\n    - embedding: {num: 5, dim: 8, name: e, "
         "from: x}\n"
         "    - add: {from: [e, y]}\n" END,
         "the model's input \"y\" is no length: expected none beside the sequence of ids, \"x\""},
    };
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        test_model t = test_model_open(bad[i].model);
        tr_graph *g = NULL;
        const tr_graph_options o = {
            .batch = 1, .mode = TR_MODE_INFER, .ranks = 1, .decode = {.rows = 1, .cache = 6}};
        assert_int_equal(tr_graph_open(t.model, &o, &g), TR_UNSUPPORTED);
        if (!strstr(tr_last_error()->text, bad[i].why)) fail_msg("%s", tr_last_error()->text);
        assert_true(strncmp(bad[i].why, "layer", 5) != 0 ||
                    strncmp(tr_last_error()->text, "m.yaml:7:7", 10) == 0);
        test_model_close(&t);
    }
}

static void learned_positions_end(void **state)
{
    (void)state;
    const char *layer = NULL;
    test_model gpt = test_model_open(cases[0].model), llama = test_model_open(cases[1].model);
    assert_int_equal(tr_graph_most_rows(gpt.model, &layer), 12);
    assert_string_equal(layer, "positions1");
    assert_int_equal(tr_graph_most_rows(llama.model, NULL), 0);
    test_model_close(&gpt);
    test_model_close(&llama);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_those_of_whole_sequences),
        cmocka_unit_test(in_bfloat16),
        cmocka_unit_test(bits_stay),
        cmocka_unit_test(what_is_beside_does_not_matter),
        cmocka_unit_test(fill_leaves_out_what_nobody_reads),
        cmocka_unit_test(others_are_refused),
        cmocka_unit_test(learned_positions_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
