/* AdaRound (Nagel, Amjad, van Baalen, Louizos and Blankevoort 2020): which way each weight is rounded is learned. For
 * an output with weights w and a scale s, rounded to s (floor(w / s) + h(v)) with the rectified sigmoid h, it is
 *
 *     d' H d / (that of rounding to nearest) + strength * mean of (1 - |2 h - 1|^beta),   d = s (floor(w / s) + h) - w
 *
 * that Adam makes small, beta falling from 20 to 2, so that h ends at 0 or 1. H, the mean of x x' over what
 * the output's window reads, is all that there is to know of the data: outputs do not depend on each other, and are
 * dealt to the ranks. Where rounding to nearest was better after all, it stays. */
#include "optimize/quantize/adaround.h"

#include <string.h>

/* Whether it is one of those that can be. */
static bool takes(const tr_evaluator *e, const tr_network *n, const tr_layer *l, tr_reading *v)
{
    *v = tr_reading_of(e, n, l);
    return v->K <= TR_ADAROUND_WINDOW && v->product.groups == 1;
}

/* *Local.* Outputs rank, rank + size, ... of q's weight; those of others become 0. */
static tr_status round_mine(tr_evaluator *e, const tr_network *n, const tr_layer *l, const float *H,
                            const tr_int8_options *o, tr_network *q)
{
    const tr_topology *t = tr_comm_topology(tr_evaluator_comm(e));
    const tr_param *was = tr_own_weight(n->model, l), *is = tr_network_row(q, l->name, "weight");
    const tr_backend *backend;
    void *ctx;
    tr_rounding r = {.outputs = (size_t)was->dims[0],
                     .first = (size_t)t->rank,
                     .stride = (size_t)t->size,
                     .H = H,
                     .w = n->params + was->offset,
                     .scale = q->states + q->model->states[is->scale].offset,
                     .rounded = q->params + is->offset,
                     .stop = o->stop,
                     .stop_ctx = o->stop_ctx};
    r.K = was->count / r.outputs;
    tr_evaluator_place(e, &backend, &ctx, &r.threads);
    for (size_t i = 0; i < r.outputs; i++)
        if (i % r.stride != r.first) memset(r.rounded + i * r.K, 0, r.K * sizeof(float));
    return tr_round_outputs(&r);
}

static void say(const tr_evaluator *e, const tr_layer *l, const tr_reading *v, size_t at,
                size_t all, double seconds)
{
    char time[32];
    if (tr_comm_topology(tr_evaluator_comm(e))->rank == 0)
        tr_log(TR_LOG_INFO,
               "rounding: adaround: layer %zu of %zu, %s: %lld values for each output, in %s", at,
               all, l->name, (long long)v->K, tr_format_seconds(seconds, time, sizeof time));
}

/* *Collective.* */
static tr_status round_layer(tr_evaluator *e, const tr_network *n, const tr_network *both,
                             const tr_config *config, const tr_int8_options *o, tr_reading *v,
                             tr_network *q)
{
    tr_comm *comm = tr_evaluator_comm(e);
    const tr_layer *l = v->l;
    const tr_param *is = tr_network_row(q, l->name, "weight");
    char steps[TR_NAME];
    float *H = NULL;
    tr_status st;
    tr_steps_name(n->model, l->in[0], steps);
    TR_TRY(tr_reading_moments(e, both, config, o->calibration.samples, v, steps, &H));
    tr_comm_busy(comm, TR_BUSY_COMPUTES);
    st = round_mine(e, n, l, H, o, q);
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    /* each element is 0 on all ranks but one: sums are its bits; rows are padded to 64 bytes */
    st = tr_comm_all_reduce(comm, q->params + is->offset, (is->count + 1) / 2, TR_I64);
out:
    tr_free(H);
    return st;
}

tr_status tr_quantize_adaround(tr_evaluator *e, const tr_network *n, const tr_config *config,
                               const tr_int8_options *o, const bool *chosen,
                               const tr_value_range *ranges, tr_network *q)
{
    tr_comm *comm = tr_evaluator_comm(e);
    const tr_model *m = n->model;
    size_t all = 0, at = 0;
    tr_reading v;
    tr_network *both = NULL;
    tr_status st = tr_quantize_beside(n, q, chosen, ranges, &both);
    TR_TRY(tr_agree(comm, st, NULL));
    for (size_t i = 0; i < m->nlayers; i++) all += chosen[i] && takes(e, n, &m->layers[i], &v);
    for (size_t i = 0; i < m->nlayers; i++) {
        const double begin = tr_now();
        if (!chosen[i] || !takes(e, n, &m->layers[i], &v)) continue;
        TR_TRY(round_layer(e, n, both, config, o, &v, q));
        say(e, v.l, &v, ++at, all, tr_now() - begin);
    }
out:
    tr_network_close(both);
    return st;
}
