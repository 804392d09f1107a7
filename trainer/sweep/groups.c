/* Groups of ranks that run trials beside each other. Ranks are numbered node by node and cut into
 * runs of ranks_per_trial, so that a group lies on one node where that can be.
 *
 *     node 0: ranks 0 2    node 1: ranks 1 3    two a trial: groups (0 2) and (1 3)
 *
 * A group's communicator deals out cores among its own ranks alone. So the job's are dealt first,
 * and every rank is bound to its share, which a group then keeps (tr_affinity_open); GPUs are kept
 * for groups by tr_gpu_part. */
#include <string.h>

#include "runtime/base/numbers.h"

#include "optimize/evaluation/evaluation.h"
#include "trainer/loop/trainer.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/internal.h"

/* ---- What goes by the clock ------------------------------------------------------------------ */

static const char *timed(const tr_config *c, size_t place)
{
    const tr_list_item *item = &c->pipeline.items[place];
    const tr_stage *stage = tr_stages[item->which];
    const tr_budget *b = stage == &tr_stage_train ? tr_train_budget(c, place)
                         : stage->fields ? &((const tr_stage_common *)item->options)->budget
                                         : NULL;
    if (b && b->latency_ms >= 0) return "budget.latency_ms";
    if (b && b->speedup >= 0) return "budget.speedup";
    return stage->timed ? stage->timed(item->options) : NULL;
}

tr_status tr_sweep_groups_check_timed(const tr_sweep *s, const tr_config *c)
{
    for (size_t i = 0; s->side_by_side && i < c->pipeline.count; i++) {
        const char *what = timed(c, i);
        if (what)
            return tr_node_fail(
                c->pipeline.items[i].at,
                "pipeline.%zu: stage %s: %s goes by the clock, and trials beside each other slow "
                "each other down: leave ranks_per_trial out, so that each trial has all ranks",
                i, tr_stages[c->pipeline.items[i].which]->name, what);
    }
    return TR_OK;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

tr_status tr_sweep_groups_check(const tr_sweep *s, int ranks)
{
    const int64_t k = s->spec.ranks_per_trial;
    if (k == 0 || (k <= ranks && ranks % k == 0)) return TR_OK;
    return tr_node_fail(tr_node_get(s->document.root, "ranks_per_trial"),
                        "ranks_per_trial: %lld does not divide the job's ranks, which are %d",
                        (long long)k, ranks);
}

typedef struct {
    int node, local_rank;
} place;

/* Of rank r, counted node by node. */
static int position(const place *all, int size, int r)
{
    int n = 0;
    for (int k = 0; k < size; k++)
        n += all[k].node < all[r].node ||
             (all[k].node == all[r].node && all[k].local_rank < all[r].local_rank);
    return n;
}

/* *Collective.* */
static tr_status split(const tr_sweep *s, tr_sweep_groups *g)
{
    tr_status st;
    const tr_topology *t = tr_comm_topology(g->job);
    const int size = t->size, k = s->side_by_side ? (int)s->spec.ranks_per_trial : size;
    const place mine = {t->node, t->local_rank};
    place *all = tr_alloc(TR_MEM_OTHER, (size_t)size, sizeof *all);
    g->count = (size_t)(size / k);
    g->leaders = tr_alloc(TR_MEM_OTHER, g->count, sizeof *g->leaders);
    TR_TRY(tr_agree(g->job, all && g->leaders ? TR_OK : tr_last_status(), NULL));
    if (!s->side_by_side) goto out;
    TR_TRY(tr_comm_all_gather(g->job, &mine, all, sizeof mine));
    for (int r = 0; r < size; r++)
        if (position(all, size, r) % k == 0) g->leaders[position(all, size, r) / k] = r;
    const int own = position(all, size, t->rank);
    g->own = (size_t)(own / k);
    TR_TRY(tr_comm_split(g->job, own / k, own % k, &g->comm));
out:
    tr_free(all);
    return st;
}

/* *Collective.* Where a trial may compute on GPUs, each rank has one of its own, or none does. */
static tr_status part_gpus(const tr_sweep *s, tr_sweep_groups *g)
{
    tr_status st = TR_OK;
    bool any = s->base->device != TR_DEVICE_CPU;
    tr_chosen_device d = {0};
    tr_config c = *s->base;
    for (size_t k = 0; k < s->ncolumns; k++)
        any = any || strcmp(s->columns[k]->text, "device") == 0;
    if (any && c.device == TR_DEVICE_CPU) c.device = TR_DEVICE_AUTO;
    if (any) TR_TRY(tr_device_choose(&c, g->job, false, &d));
    const bool gpu = d.backend && !d.backend->host;
    TR_TRY(tr_gpu_part(g->comm, gpu ? d.backend : NULL, d.options.device));
out:
    return st;
}

/* *Collective.* A trial's ranks compare what they read; here those of all trials do, as far as the
 * config that trials start from has data that can be opened without what they set. */
static tr_status compare_data(const tr_sweep *s, tr_comm *job)
{
    const tr_config *c = s->base;
    tr_status st;
    tr_model *m = NULL;
    tr_dataset *train = NULL, *eval = NULL;
    TR_TRY(tr_agree(job, tr_train_model(c, &m), NULL));
    TR_TRY(tr_same_data_open(job, c, TR_OVER_TRAIN, m, &train));
    if (tr_config_evaluates(c)) TR_TRY(tr_same_data_open(job, c, TR_OVER_EVAL, m, &eval));
out:;
    const tr_error why = *tr_last_error();
    tr_dataset_close(train);
    tr_dataset_close(eval);
    tr_model_close(m);
    double differs = st == TR_DIFFERENT;
    const tr_status shared = tr_comm_all_reduce(job, &differs, 1, TR_F64);
    if (shared != TR_OK || differs <= 0) return shared;
    tr_set_error(&why);
    return st;
}

tr_status tr_sweep_groups_open(const tr_sweep *s, tr_comm *job, tr_sweep_groups *g)
{
    tr_status st;
    *g = (tr_sweep_groups){.job = job, .comm = job};
    TR_TRY(split(s, g));
    if (!s->side_by_side) goto out;
    TR_TRY(compare_data(s, job));
    TR_TRY(tr_affinity_open(s->base, job, NULL, NULL, &g->cores));
    g->dealt = true;
    TR_TRY(part_gpus(s, g));
    if (tr_comm_topology(job)->rank == 0)
        tr_log(TR_LOG_INFO, "%zu trial%s at a time, on %lld rank%s each", g->count,
               tr_plural(g->count), (long long)s->spec.ranks_per_trial,
               tr_plural((uint64_t)s->spec.ranks_per_trial));
out:
    return st;
}

void tr_sweep_groups_close(tr_sweep_groups *g)
{
    if (g->dealt) tr_affinity_undo(&g->cores);
    if (g->comm != g->job) tr_comm_close(g->comm);
    tr_free(g->leaders);
    g->comm = g->job;
    g->leaders = NULL;
}
