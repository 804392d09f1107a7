/* A model over data with all that is kept of each sample: every rank stores the outputs and targets
 * of the batches that it ran. */
#include "optimize/evaluation/internal.h"
#include "optimize/evaluation/metrics.h"

#include <math.h>
#include <string.h>

#include "runtime/config/measures.h"

typedef struct {
    const tr_evaluator *e;
    tr_kept *kept;
    uint64_t batch;
} full;

static tr_status take(void *ctx, const tr_plan *p, const tr_batch *b, const double *tally,
                      void *result)
{
    const full *k = ctx;
    memcpy(result, tally, TR_TALLY * sizeof *tally);
    return tr_kept_add(k->kept, b->ordinal / k->batch, k->e->backend, k->e->backend_ctx, p, b);
}

/* What a loss says of the probability of sequences. */
static void measure_likelihood(const tr_config *c, tr_over_source source, tr_full_evaluation *out)
{
    const tr_source_config *s =
        source == TR_OVER_TRAIN || !c->data.eval.present ? &c->data.train : &c->data.eval;
    if (!tr_measures_likelihood(c, s)) return;
    out->perplexity = exp(out->mean.loss);
    const double bytes = tr_measures_bytes(c, s);
    if (bytes > 0) out->bits_per_byte = out->mean.loss / M_LN2 / bytes;
}

tr_status tr_evaluate_full(tr_evaluator *e, const tr_network *n, const tr_config *config,
                           tr_over_source source, tr_full_evaluation *out)
{
    tr_status st;
    tr_over *o = NULL;
    double *tallies = NULL;
    const int loss = e->o.config->model.loss.kind.which;
    full k = {.e = e};
    const tr_over_data what = {
        .source = source, .nbytes = TR_TALLY * sizeof(double), .take = take, .ctx = &k};
    *out = (tr_full_evaluation){.loss = loss, .rows = 1, .perplexity = NAN, .bits_per_byte = NAN};
    TR_TRY(tr_over_open(e, n, config, &what, &o));
    const uint64_t batches = tr_over_batches(o);
    k.batch = (uint64_t)tr_over_batch(o);
    st = tr_kept_open(e->o.comm, n->model, e->o.config, tr_over_samples(o), batches, &k.kept);
    TR_TRY(tr_agree(e->o.comm, st, NULL));
    TR_TRY(tr_over_run(o, 0, batches, (void **)&tallies));
    tr_evaluation_sum(loss, (size_t)n->model->classes, tallies, batches, &out->mean);
    out->rows = n->model->rows;
    if (tr_is_sequence(n->model)) measure_likelihood(e->o.config, source, out);
    st = tr_kept_measure(k.kept, true, out);
out:
    tr_over_close(o);
    tr_kept_close(k.kept);
    tr_free(tallies);
    return st;
}

void tr_full_free(tr_full_evaluation *f)
{
    tr_free(f->of);
    tr_free(f->confusion);
    tr_free(f->values);
    *f = (tr_full_evaluation){0};
}
