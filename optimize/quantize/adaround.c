/* AdaRound (Nagel, Amjad, van Baalen, Louizos and Blankevoort 2020): which way each weight is
 * rounded is learned. For an output with weights w and a scale s, rounded to s (floor(w / s) +
 * h(v)) with the rectified sigmoid h, it is
 *
 *     d' H d / (that of rounding to nearest) + strength * mean of (1 - |2 h - 1|^beta),
 *         d = s (floor(w / s) + h) - w
 *
 * that Adam makes small, beta falling from 20 to 2, so that h ends at 0 or 1. H, the mean of x x'
 * over what the output's window reads, is all that there is to know of the data: outputs do not
 * depend on each other, and are dealt to the ranks. Of windows of more than TR_ADAROUND_WINDOW
 * values, whose H would be too large, blocks of so many are learned as if the others were not
 * there. Where rounding to nearest was better after all, for the block by its own H, it stays: of
 * several blocks together that is not looked at. */
#include "optimize/quantize/adaround.h"

#include <string.h>

/* *Local.* Of the weight's outputs rank, rank + size, ... those of a group, what they have of one
 * block; that of the group's others becomes 0. */
static tr_status round_block(const tr_reading *v, const tr_network *n, const float *H, size_t group,
                             size_t block, const tr_int8_options *o, tr_network *q)
{
    const tr_topology *t = tr_comm_topology(tr_evaluator_comm(v->e));
    const tr_param *was = tr_own_weight(n->model, v->l),
                   *is = tr_network_row(q, v->l->name, "weight");
    const size_t outputs = (size_t)was->dims[0] / (size_t)v->product.groups;
    const size_t size = (size_t)t->size, first = group * outputs,
                 at = first * v->K + block * v->block;
    const tr_backend *backend;
    void *ctx;
    tr_rounding r = {.K = tr_reading_values(v, block),
                     .row = v->K,
                     .outputs = outputs,
                     .first = ((size_t)t->rank + size - first % size) % size,
                     .stride = size,
                     .H = H,
                     .w = n->params + was->offset + at,
                     .scale = q->states + q->model->states[is->scale].offset + first,
                     .rounded = q->params + is->offset + at,
                     .stop = o->stop,
                     .stop_ctx = o->stop_ctx};
    tr_evaluator_place(v->e, &backend, &ctx, &r.threads);
    for (size_t i = 0; i < r.outputs; i++)
        if (i % r.stride != r.first) memset(r.rounded + i * r.row, 0, r.K * sizeof(float));
    return tr_round_outputs(&r);
}

/* *Local.* */
static tr_status round_mine(const tr_reading *v, const tr_network *n, const float *H,
                            const tr_int8_options *o, tr_network *q)
{
    tr_status st = TR_OK;
    const size_t blocks = tr_reading_blocks(v);
    for (size_t b = 0; b < (size_t)v->product.groups * blocks && st == TR_OK; b++)
        st = round_block(v, n, H + b * tr_reading_apart(v), b / blocks, b % blocks, o, q);
    return st;
}

static void say(const tr_evaluator *e, const tr_layer *l, const tr_reading *v, size_t at,
                size_t all, double seconds)
{
    char time[32], parts[48] = "";
    if (v->block < v->K) snprintf(parts, sizeof parts, " (looked at by %zu)", v->block);
    if (tr_comm_topology(tr_evaluator_comm(e))->rank == 0)
        tr_log(TR_LOG_INFO,
               "rounding: adaround: layer %zu of %zu, %s: %zu values for each output%s, in %s", at,
               all, l->name, v->K, parts, tr_format_seconds(seconds, time, sizeof time));
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
    st = round_mine(v, n, H, o, q);
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
    for (size_t i = 0; i < m->nlayers; i++) all += chosen[i];
    for (size_t i = 0; i < m->nlayers; i++) {
        const double begin = tr_now();
        if (!chosen[i]) continue;
        v = tr_reading_of(e, n, &m->layers[i]);
        TR_TRY(round_layer(e, n, both, config, o, &v, q));
        say(e, v.l, &v, ++at, all, tr_now() - begin);
    }
out:
    tr_network_close(both);
    return st;
}
