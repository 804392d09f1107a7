/* Which layers are worth 8 bits. First those that are not faster so are left out, by the times of their ops in both
 * networks, what turns values into steps and back included: again and again, because a layer that is left out
 * changes what its neighbours get. Then, while the loss is more than allowed, the one with the largest error. */
#include "optimize/quantize/choose.h"

#include <math.h>
#include <string.h>

#include "optimize/profile/profile.h"

enum { RUNS = 40, ROUNDS = 4 };

/* ---- Times, rank 0's ------------------------------------------------------------------------- */

static tr_status time_rows(const choosing *k, const tr_network *n, tr_profile *out)
{
    tr_profile_options o = {.network = n,
                            .precision = (tr_precision)k->config->train.precision,
                            .mode = TR_MODE_INFER,
                            .batch = 1,
                            .runs = RUNS,
                            .skip_passes = tr_graph_skip(k->config)};
    tr_evaluator_place(k->e, &o.backend, &o.backend_ctx, &o.threads);
    return tr_profile_measure(&o, NULL, out);
}

static double seconds_of(const tr_profile *p, const char *layer)
{
    double sum = 0;
    for (size_t i = 0; i < p->nrows; i++)
        if (strcmp(p->rows[i].layer, layer) == 0) sum += p->rows[i].seconds;
    return sum;
}

/* Of chosen layers that read the value. */
static size_t readers(const tr_model *m, const bool *chosen, int value)
{
    size_t n = 0;
    for (size_t i = 0; i < m->nlayers; i++) n += chosen[i] && m->layers[i].in[0] == value;
    return n;
}

tr_status tr_quantize_measure(choosing *k, const tr_network *q, double times[2])
{
    const tr_model *m = k->n->model;
    tr_comm *comm = tr_evaluator_comm(k->e);
    tr_profile before = {0}, after = {0};
    tr_status st = TR_OK;
    const bool root = tr_comm_topology(comm)->rank == 0;
    tr_comm_busy(comm, root); /* the others wait as long as it takes */
    if (root) {
        st = time_rows(k, k->n, &before);
        if (st == TR_OK) st = time_rows(k, q, &after);
    }
    tr_comm_busy(comm, false);
    TR_TRY(tr_agree(comm, st, NULL));
    times[0] = before.seconds, times[1] = after.seconds;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        char steps[TR_NAME];
        if (!k->chosen[i]) continue;
        tr_steps_name(m, l->in[0], steps);
        k->layers[i].float_us = 1e6 * seconds_of(&before, l->name);
        k->layers[i].int8_us =
            1e6 * (seconds_of(&after, l->name) +
                   seconds_of(&after, steps) / (double)readers(m, k->chosen, l->in[0]));
    }
    TR_TRY(tr_comm_broadcast(comm, times, 2 * sizeof *times, 0));
    TR_TRY(tr_comm_broadcast(comm, k->layers, m->nlayers * sizeof *k->layers, 0));
out:
    tr_profile_free(&before);
    tr_profile_free(&after);
    return st;
}

static size_t count_of(const choosing *k)
{
    size_t n = 0;
    for (size_t i = 0; i < k->n->model->nlayers; i++) n += k->chosen[i];
    return n;
}

/* *Collective.* */
static tr_status made(choosing *k, tr_network **out)
{
    return tr_agree(tr_evaluator_comm(k->e),
                    tr_quantize_static(k->n, k->chosen, k->ranges, k->o->per_tensor, NULL, out),
                    NULL);
}

static tr_status choose_by_time(choosing *k)
{
    tr_status st = TR_OK;
    tr_network *q = NULL;
    double times[2] = {0, 0};
    for (int round = 0; round < ROUNDS && count_of(k) > 0; round++) {
        bool dropped = false;
        tr_network_close(q);
        q = NULL;
        TR_TRY(made(k, &q));
        TR_TRY(k->measure(k, q, times));
        for (size_t i = 0; i < k->n->model->nlayers; i++)
            if (k->chosen[i] && k->layers[i].int8_us >= k->layers[i].float_us)
                k->chosen[i] = false, dropped = true;
        if (dropped) continue;
        if (times[1] >= times[0]) /* all together are not faster */
            memset(k->chosen, 0, k->n->model->nlayers * sizeof *k->chosen);
        break;
    }
out:
    tr_network_close(q);
    return st;
}

/* ---- The loss -------------------------------------------------------------------------------- */

static bool allowed(const tr_int8_options *o, const tr_evaluation *was, const tr_evaluation *is)
{
    const bool loss = o->loss_rise < 0 || is->loss - was->loss <= o->loss_rise;
    const bool right = o->accuracy_drop < 0 || !isfinite(was->accuracy) ||
                       was->accuracy - is->accuracy <= o->accuracy_drop;
    return loss && right;
}

static tr_status choose_by_loss(choosing *k)
{
    tr_status st = TR_OK;
    tr_evaluation was, is;
    tr_network *q = NULL;
    const uint64_t samples = k->o->calibration.samples;
    TR_TRY(tr_evaluate_on(k->e, k->n, k->config, true, samples, &was));
    while (count_of(k) > 0) {
        size_t worst = k->n->model->nlayers;
        tr_network_close(q);
        q = NULL;
        TR_TRY(made(k, &q));
        TR_TRY(tr_evaluate_on(k->e, q, k->config, true, samples, &is));
        if (allowed(k->o, &was, &is)) break;
        for (size_t i = 0; i < k->n->model->nlayers; i++)
            if (k->chosen[i] &&
                (worst == k->n->model->nlayers ||
                 k->layers[i].output_sqnr_nearest < k->layers[worst].output_sqnr_nearest))
                worst = i;
        k->chosen[worst] = false;
    }
out:
    tr_network_close(q);
    return st;
}

tr_status tr_quantize_choose(choosing *k)
{
    tr_status st = choose_by_time(k);
    return st == TR_OK ? choose_by_loss(k) : st;
}
