#include "trainer/pipeline/latency.h"

#include "optimize/benchmark/benchmark.h"
#include "optimize/inference/inference.h"

/* Of a network: 0.2 s, in turns of 20 ms, and longer where they do not agree. */
static const tr_bench_pace pace = {.warm_up = 0.25, .turn = 0.02, .calls = 3, .quiet = 3};
static const tr_bench_options calls = {.seconds = 0.2, .runs = 12, .pace = &pace};

typedef struct {
    tr_inference *engine;
    void *inputs[TR_MAX_IN];
    float *output;
    tr_timing timing;
} subject;

/* Normal values; ids are 0. */
static tr_status make_input(const tr_inference_value *v, size_t which, void **out)
{
    float *x = tr_alloc(TR_MEM_IO, v->count, sizeof *x), pair[2];
    if (!x) return tr_last_status();
    for (size_t i = 0; !v->ids && i < v->count; i++) {
        const tr_philox r = tr_philox_at(0, TR_RNG_SYNTHETIC, (uint32_t)which, i, 0);
        tr_normal2(r.v[0], r.v[1], pair);
        x[i] = pair[0];
    }
    *out = x;
    return TR_OK;
}

static tr_status answer(void *ctx)
{
    subject *s = ctx;
    return tr_inference_run(s->engine, (const void *const *)s->inputs, 1, &s->output);
}

static tr_status open_subject(const tr_network *n, const tr_latency_options *o, subject *s)
{
    tr_status st;
    const tr_inference_options i = {.backend = o->backend,
                                    .backend_ctx = o->backend_ctx,
                                    .threads = o->threads,
                                    .max_batch = 1,
                                    .precision = o->precision,
                                    .skip_passes = o->skip_passes};
    TR_TRY(tr_inference_open(n, &i, &s->engine));
    for (size_t k = 0; k < tr_inference_inputs(s->engine); k++) {
        const tr_inference_value v = tr_inference_input(s->engine, k);
        TR_TRY(make_input(&v, k, &s->inputs[k]));
    }
    TR_HAVE(s->output =
                tr_alloc(TR_MEM_IO, tr_inference_output(s->engine, 0).count, sizeof *s->output));
out:
    return st;
}

static void close_subject(subject *s)
{
    tr_inference_close(s->engine);
    for (size_t k = 0; k < TR_COUNT(s->inputs); k++) tr_free(s->inputs[k]);
    tr_free(s->output);
}

static void warn(const tr_timing *t, const char *of)
{
    if (t->quiet_turns < 3)
        tr_log_once(
            TR_LOG_WARN, of,
            "other work meets what is timed: calls with one sample took %.4g ms at best, %.4g ms "
            "in the middle, %.4g ms at worst",
            1e3 * t->quiet, 1e3 * t->spread.percent[50], 1e3 * t->spread.percent[100]);
}

static tr_status measure(const tr_network *const *n, size_t count, const tr_latency_options *o,
                         bool alone, double *ms)
{
    tr_status st = TR_OK;
    subject *s = tr_alloc(TR_MEM_OTHER, count, sizeof *s);
    tr_bench_subject *b = tr_alloc(TR_MEM_OTHER, count, sizeof *b);
    TR_HAVE(s && b);
    for (size_t i = 0; i < count; i++) {
        TR_TRY(open_subject(n[i], o, &s[i]));
        b[i] = (tr_bench_subject){.call = answer, .ctx = &s[i], .timing = &s[i].timing};
    }
    TR_TRY(tr_bench_calls(&calls, b, count));
    for (size_t i = 0; i < count; i++) {
        if (alone) warn(&s[i].timing, o->of);
        ms[i] = 1e3 * s[i].timing.quiet;
    }
out:
    for (size_t i = 0; s && i < count; i++) close_subject(&s[i]);
    tr_free(s);
    tr_free(b);
    return st;
}

tr_status tr_latency(tr_comm *comm, const tr_network *const *n, size_t count,
                     const tr_latency_options *o, double *ms)
{
    const tr_topology *t = tr_comm_topology(comm);
    const bool root = t->rank == 0;
    tr_status st;
    if (root) tr_comm_busy(comm, TR_BUSY_MEASURES);
    st = root ? measure(n, count, o, !t->part, ms) : TR_OK;
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, ms, count * sizeof *ms, 0));
out:
    return st;
}
