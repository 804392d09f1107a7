/* What computes is opened, and GPUs are connected with each other, before anything is allocated: by
 * then device: auto can still take another GPU, or CPUs, on all ranks at once. */
#include "trainer/plan/offload.h"
#include "trainer/loop/trainer.h"

/* *Collective.* The ranks that share batchnorm's statistics, where they are not all. */
static tr_status open_gatherers(tr_trainer *t)
{
    tr_status st = TR_OK;
    if (t->config->train.sync_batchnorm != TR_SYNC_NODE || t->topology->nodes == 1) return TR_OK;
    TR_TRY(tr_comm_split_node(t->comm, &t->gatherers));
    t->hooks.rank = tr_comm_topology(t->gatherers)->rank;
    t->hooks.size = tr_comm_topology(t->gatherers)->size;
out:
    return st;
}

/* *Collective.* Before the backend makes threads and pins memory, both of which shall lie near the
 * device. */
static tr_status open_affinity(tr_trainer *t, const tr_backend_options *o)
{
    char id[TR_GPU_ID];
    const tr_backend *b = t->backend;
    const bool known = b->device_id && b->device_id(o->device, id, sizeof id) == TR_OK;
    return tr_affinity_open(t->config, t->comm, NULL, known ? id : NULL, &t->affinity);
}

/* *Collective.* On all ranks or on none. */
static tr_status open_backend(tr_trainer *t, const tr_backend_options *o, bool *here)
{
    tr_status st = t->backend->open(o, &t->backend_ctx);
    *here = st != TR_OK;
    return tr_agree(t->comm, st, NULL);
}

/* *Collective.* */
static tr_status connect(tr_trainer *t, const tr_chosen_device *d, bool *here)
{
    const bool gathers = t->config->train.sync_batchnorm != TR_SYNC_NONE && t->model->nstates > 0;
    const tr_gpu_link_options o = {.deterministic = d->options.deterministic,
                                   .recorded = d->options.graphs,
                                   .gathers = gathers,
                                   .gatherers = t->gatherers};
    if (!d->nccl) return TR_OK;
    const tr_status st = tr_gpu_link_open(d->reducers, t->comm, &o, &t->link);
    *here = st != TR_OK && st != TR_PEER;
    return st;
}

/* *Collective.* */
static tr_status use(tr_trainer *t, const tr_chosen_device *d, tr_device_failure *how)
{
    tr_status st;
    t->backend = d->backend;
    t->backend_options = d->options;
    *how = (tr_device_failure){0};
    TR_TRY(open_affinity(t, &d->options));
    TR_TRY(open_backend(t, &d->options, &how->here));
    how->connecting = true;
    TR_TRY(connect(t, d, &how->here));
out:
    return st;
}

static void leave(tr_trainer *t)
{
    const tr_error why = *tr_last_error();
    if (t->backend_ctx) t->backend->close(t->backend_ctx);
    t->backend_ctx = NULL;
    tr_affinity_undo(&t->affinity);
    tr_set_error(&why);
}

tr_status tr_trainer_open_device(tr_trainer *t)
{
    tr_chosen_device d;
    tr_device_failure how;
    tr_status st;
    TR_TRY(open_gatherers(t));
    TR_TRY(tr_device_choose(t->config, t->comm, true, &d));
    while ((st = use(t, &d, &how)) != TR_OK) { /* each time with fewer GPUs, at last with none */
        leave(t);
        TR_TRY(tr_device_next(t->config, t->comm, st, how, &d));
    }
    TR_TRY(tr_offload_check(t->config, t->backend));
    t->gpu_reducers = d.reducers;
    t->nccl = d.nccl;
    t->recorded = d.options.graphs;
    t->lag = t->backend->host ? 0 : 1;
out:
    return st;
}
