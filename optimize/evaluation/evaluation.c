/* Evaluators: datasets that are opened once, and the loss and accuracy of a network. */
#include "optimize/evaluation/internal.h"

#include <math.h>

tr_status tr_evaluator_open(const tr_evaluator_options *o, tr_evaluator **out)
{
    tr_evaluator *e = TR_NEW(TR_MEM_OTHER, tr_evaluator);
    if (!e) return tr_last_status();
    e->o = *o;
    e->precision = (tr_precision)o->config->train.precision;
    *out = e;
    return TR_OK;
}

tr_comm *tr_evaluator_comm(const tr_evaluator *e)
{
    return e->o.comm;
}

void tr_evaluator_move(tr_evaluator *e, const tr_backend *backend, void *ctx, int threads)
{
    e->backend = backend;
    e->backend_ctx = ctx;
    e->threads = threads;
}

tr_precision tr_evaluator_compute(tr_evaluator *e, tr_precision precision)
{
    const tr_precision before = e->precision;
    e->precision = precision;
    return before;
}

void tr_evaluator_place(const tr_evaluator *e, const tr_backend **backend, void **ctx, int *threads)
{
    *backend = e->backend;
    *ctx = e->backend_ctx;
    *threads = e->threads;
}

void tr_evaluator_close(tr_evaluator *e)
{
    if (!e) return;
    for (size_t i = 0; i < TR_COUNT(e->data); i++) tr_dataset_close(e->data[i]);
    tr_free(e);
}

tr_status tr_evaluator_data(tr_evaluator *e, const tr_network *n, tr_over_source source,
                            tr_dataset **out)
{
    tr_status st = TR_OK;
    const tr_config *c = e->o.config;
    tr_dataset **data = &e->data[source];
    TR_NEED(source == TR_OVER_EVAL ? tr_config_has_eval(c)
                                   : tr_over_source_config(c, source)->present,
            TR_CONFIG, "%s is missing: nothing to %s", tr_over_source_name(source),
            source == TR_OVER_EVAL ? "evaluate on" : "run on");
    TR_TRY(tr_config_settled(c));
    if (!*data) TR_TRY(tr_same_data_open(e->o.comm, c, source, n->model, data));
    *out = *data;
out:
    return st;
}

bool tr_evaluator_without(tr_evaluator *e, tr_status st)
{
    double other = st != TR_DATA && st != TR_IO && st != TR_PEER;
    if (tr_comm_broken(e->o.comm)) return false;
    const tr_error why = *tr_last_error();
    if (tr_comm_all_reduce(e->o.comm, &other, 1, TR_F64) != TR_OK) return false;
    tr_set_error(&why);
    return other == 0;
}

int64_t tr_evaluator_batch(const tr_evaluator *e)
{
    const tr_config *c = e->o.config;
    return c->train.eval.batch > 0 ? c->train.eval.batch : c->train.batch;
}

static tr_status take_tally(void *ctx, const tr_plan *p, const tr_batch *b, const double *tally,
                            void *result)
{
    (void)ctx, (void)p, (void)b;
    for (int i = 0; i < TR_TALLY; i++) ((double *)result)[i] = tally[i];
    return TR_OK;
}

tr_status tr_evaluate(tr_evaluator *e, const tr_network *n, const tr_config *config,
                      tr_evaluation *out)
{
    return tr_evaluate_on(e, n, config, false, 0, out);
}

void tr_evaluation_sum(int loss, size_t classes, const double *tallies, uint64_t batches,
                       tr_evaluation *out)
{
    double sum[TR_TALLY] = {0};
    for (uint64_t b = 0; b < batches; b++)
        for (int i = 0; i < TR_TALLY; i++) sum[i] += tallies[b * TR_TALLY + (uint64_t)i];
    const double count = sum[TR_TALLY_TARGETS];
    const bool right = tr_loss_counts(loss);
    *out = (tr_evaluation){.samples = (uint64_t)sum[TR_TALLY_SAMPLES],
                           .targets = (uint64_t)count,
                           .loss = sum[TR_TALLY_LOSS] / sum[TR_TALLY_WEIGHT],
                           .accuracy = right ? sum[TR_TALLY_CORRECT] / count : NAN,
                           .top5 = classes > 5 ? sum[TR_TALLY_TOP5] / count : NAN};
}

tr_status tr_evaluate_on(tr_evaluator *e, const tr_network *n, const tr_config *config,
                         bool train_data, uint64_t samples, tr_evaluation *out)
{
    tr_status st = TR_OK;
    const tr_over_data what = {.source = train_data ? TR_OVER_TRAIN : TR_OVER_EVAL,
                               .samples = samples,
                               .nbytes = TR_TALLY * sizeof(double),
                               .take = take_tally};
    double *tallies = NULL;
    uint64_t batches;
    TR_TRY(tr_run_over(e, n, config, &what, (void **)&tallies, &batches));
    tr_evaluation_sum(e->o.config->model.loss.kind.which, (size_t)n->model->classes, tallies,
                      batches, out);
out:
    tr_free(tallies);
    return st;
}
