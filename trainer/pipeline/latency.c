#include "trainer/pipeline/latency.h"

#include <string.h>

#include "optimize/inference/inference.h"
#include "runtime/base/numbers.h"

/* Calls and seconds, at least, of warm-up and of measuring alike; calls at most. */
enum { CALLS = 30, CALLS_MAX = 2000 };
#define SECONDS 0.25

typedef struct {
    tr_inference *engine;
    void *inputs[TR_MAX_IN];
    float *output;
    double *taken; /* [CALLS_MAX] seconds */
} timing;

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

/* The median of one round. */
static tr_status round_of_calls(timing *t, double *median)
{
    tr_status st = TR_OK;
    const double begin = tr_now();
    size_t n = 0;
    for (double now = begin; n < CALLS_MAX && (n < CALLS || now - begin < SECONDS); n++) {
        TR_TRY(tr_inference_run(t->engine, (const void *const *)t->inputs, 1, &t->output));
        const double end = tr_now();
        t->taken[n] = end - now;
        now = end;
    }
    *median = tr_median(t->taken, n);
out:
    return st;
}

static tr_status measure(const tr_network *n, const tr_latency_options *o, double *ms)
{
    tr_status st;
    timing t = {.engine = NULL};
    double median;
    const tr_inference_options i = {.backend = o->backend,
                                    .backend_ctx = o->backend_ctx,
                                    .threads = o->threads,
                                    .max_batch = 1,
                                    .precision = o->precision,
                                    .skip_passes = o->skip_passes};
    TR_TRY(tr_inference_open(n, &i, &t.engine));
    for (size_t k = 0; k < tr_inference_inputs(t.engine); k++) {
        const tr_inference_value v = tr_inference_input(t.engine, k);
        TR_TRY(make_input(&v, k, &t.inputs[k]));
    }
    t.output = tr_alloc(TR_MEM_IO, tr_inference_output(t.engine, 0).count, sizeof *t.output);
    t.taken = tr_alloc(TR_MEM_OTHER, CALLS_MAX, sizeof *t.taken);
    TR_HAVE(t.output && t.taken);
    TR_TRY(round_of_calls(&t, &median)); /* warm-up */
    TR_TRY(round_of_calls(&t, &median));
    *ms = median * 1e3;
out:
    tr_inference_close(t.engine);
    for (size_t k = 0; k < TR_COUNT(t.inputs); k++) tr_free(t.inputs[k]);
    tr_free(t.output);
    tr_free(t.taken);
    return st;
}

tr_status tr_latency(tr_comm *comm, const tr_network *n, const tr_latency_options *o, double *ms)
{
    const bool root = tr_comm_topology(comm)->rank == 0;
    tr_status st;
    if (root) tr_comm_busy(comm, TR_BUSY_MEASURES);
    st = root ? measure(n, o, ms) : TR_OK;
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, ms, sizeof *ms, 0));
out:
    return st;
}
