/* Evaluators: datasets that are opened once, and the loss and accuracy of a network. */
#include "optimize/evaluation/internal.h"

#include <math.h>

tr_status tr_evaluator_open(const tr_evaluator_options *o, tr_evaluator **out)
{
    tr_evaluator *e = TR_NEW(TR_MEM_OTHER, tr_evaluator);
    if (!e) return tr_last_status();
    e->o = *o;
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

tr_status tr_evaluator_data(tr_evaluator *e, const tr_network *n, bool train, tr_dataset **out)
{
    tr_status st = TR_OK;
    const tr_config *c = e->o.config;
    tr_dataset **data = &e->data[train];
    TR_NEED(train || c->data.eval.present, TR_CONFIG,
            "data.eval is missing: nothing to evaluate on");
    if (!*data) TR_TRY(tr_dataset_open(c, train ? &c->data.train : &c->data.eval, n->model, data));
    *out = *data;
out:
    return st;
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

tr_status tr_evaluate_on(tr_evaluator *e, const tr_network *n, const tr_config *config,
                         bool train_data, uint64_t samples, tr_evaluation *out)
{
    tr_status st = TR_OK;
    const tr_over_data what = {.train_data = train_data,
                               .samples = samples,
                               .nbytes = TR_TALLY * sizeof(double),
                               .take = take_tally};
    double *tallies = NULL, sum[TR_TALLY] = {0};
    uint64_t batches;
    TR_TRY(tr_run_over(e, n, config, &what, (void **)&tallies, &batches));
    for (uint64_t b = 0; b < batches; b++)
        for (int i = 0; i < TR_TALLY; i++) sum[i] += tallies[b * TR_TALLY + (uint64_t)i];
    const double count = sum[TR_TALLY_SAMPLES];
    const int loss = e->o.config->model.loss.kind.which;
    const bool classes = loss == TR_LOSS_CROSS_ENTROPY, right = classes || loss == TR_LOSS_BCE;
    *out = (tr_evaluation){.samples = (uint64_t)count,
                           .loss = sum[TR_TALLY_LOSS] / sum[TR_TALLY_WEIGHT],
                           .accuracy = right ? sum[TR_TALLY_CORRECT] / count : NAN,
                           .top5 =
                               classes && n->model->outputs > 5 ? sum[TR_TALLY_TOP5] / count : NAN};
out:
    tr_free(tallies);
    return st;
}
