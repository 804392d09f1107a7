/* Predicted memory of a rank. */
#include "trainer/plan/plan.h"

#include "runtime/optimizer/optimizer.h"
#include "trainer/device/device.h"
#include "trainer/models/train_model.h"

void tr_describe_buckets(const tr_model *m, char *buf, size_t size)
{
    size_t most = 0;
    char text[32];
    for (size_t b = 0; b < m->nbuckets; b++) {
        const size_t n = tr_range_count(m->buckets[b]) * sizeof(float);
        if (n > most) most = n;
    }
    tr_format_bytes((double)most, text, sizeof text);
    snprintf(buf, size, "%zu bucket%s of %s%s", m->nbuckets, m->nbuckets == 1 ? "" : "s",
             m->nbuckets == 1 ? "" : "up to ", text);
}

tr_params_options tr_params_options_of(const tr_config *c, const tr_model *m, const tr_backend *b)
{
    tr_params_options o = {.model = m,
                           .count = m->flat_count,
                           .buckets = m->buckets,
                           .nbuckets = m->nbuckets,
                           .state_count = m->state_count,
                           .backend = b};
    o.nslots = tr_optimizer_slots(c, o.slot_names);
    o.offload = !b->host && c->run.offload == TR_OFFLOAD_ON && o.nslots > 0;
    o.type = tr_precision_dtype((tr_precision)c->train.precision);
    if (o.type != TR_F32) {
        o.rounded = m->rounded;
        o.nrounded = m->nrounded;
    }
    return o;
}

/* auto: where it pays. As many bytes go over the wire either way, but those of weights come after
 * the update, where nothing is left to overlap them with; for that each rank keeps, and updates,
 * one share of the slots. Ranks that share a node's memory already do; plain MPI on one node is
 * asked for to compare, and keeps MPI's own sums. */
static bool shards(const tr_config *c, const tr_backend *b, const tr_topology *t)
{
    if (c->run.shard_optimizer != TR_SHARD_AUTO) return c->run.shard_optimizer == TR_SHARD_ON;
    return b->host ? t->nodes > 1 : t->size > 1;
}

tr_reducer_options tr_reducer_options_of(const tr_config *c, const tr_backend *b,
                                         const tr_topology *t, bool nccl)
{
    return (tr_reducer_options){
        .shard = shards(c, b, t), .wire_bf16 = c->run.wire == TR_WIRE_BF16, .nccl = nccl};
}

void tr_predict_reducer(const tr_memory_of *of, tr_reducer_cost *out)
{
    const tr_params_options p = tr_params_options_of(of->config, of->model, of->backend);
    const tr_reducer_options r =
        tr_reducer_options_of(of->config, of->backend, of->topology, of->nccl);
    tr_reducer_cost_of(of->topology, &p, &r, out);
}

bool tr_saves_copies(const tr_memory_of *of)
{
    const tr_config *c = of->config;
    const tr_params_options p = tr_params_options_of(c, of->model, of->backend);
    const tr_reducer_options r = tr_reducer_options_of(c, of->backend, of->topology, of->nccl);
    if (!tr_comm_params_in_reach(of->topology, &p, &r)) return true;
    for (size_t i = 0; i < of->model->nparams; i++)
        if (of->model->params[i].stored != TR_F32) return true;
    return c->train.checkpoint.every_steps > 0 || c->train.checkpoint.every_epochs > 0 ||
           (tr_config_evaluates(c) && c->train.checkpoint.best);
}

void tr_memory_add_up(tr_memory_total *t)
{
    for (int s = 0; s < TR_SPACES; s++) {
        t->bytes[s][TR_MEM_OTHER] = 0;
        t->total[s] = 0;
        for (int k = 0; k < TR_MEM_KINDS; k++) t->total[s] += t->bytes[s][k];
    }
}

void tr_predict_memory(const tr_memory_of *of, const tr_memory_plan *session, tr_memory_total *out)
{
    const tr_config *c = of->config;
    const tr_model *m = of->model;
    const char *names[TR_PARAM_SLOTS];
    const size_t states = m->state_count * sizeof(float);
    const size_t confusion = tr_config_evaluates(c) ? tr_confusion_cells(m) * sizeof(int64_t) : 0;
    tr_reducer_cost cost;
    tr_predict_reducer(of, &cost);
    *out = (tr_memory_total){0};
    size_t *host = out->bytes[TR_SPACE_HOST], *there = out->bytes[tr_space_of(of->backend)];
    for (int k = 0; k < TR_MEM_KINDS; k++) there[k] = session->bytes[k];
    there[TR_MEM_WEIGHTS] += cost.weights + states;
    there[TR_MEM_GRADIENTS] += cost.gradients - cost.pinned;
    host[TR_MEM_GRADIENTS] += cost.pinned;
    const tr_params_options p = tr_params_options_of(c, m, of->backend);
    if (p.offload) {
        const size_t nslots = (size_t)p.nslots, held = cost.slots / sizeof(float) / nslots;
        host[TR_MEM_MOMENTS] += cost.slots;
        there[TR_MEM_MOMENTS] +=
            TR_UPDATE_BUFFERS * nslots * tr_update_window(held) * sizeof(float);
    } else
        there[TR_MEM_MOMENTS] += cost.slots;
    if (there != host) there[TR_MEM_IO] += confusion;
    host[TR_MEM_DATA] += of->datasets;
    host[TR_MEM_IO] += of->loaders + confusion + of->backend->pinned;
    if (of->topology->rank == 0) {
        host[TR_MEM_IO] += 2 * confusion; /* the last one for the run files, and a copy of it */
        if (tr_saves_copies(of))
            host[TR_MEM_SNAPSHOT] =
                m->flat_count * sizeof(float) * (size_t)(1 + tr_optimizer_slots(c, names)) + states;
    }
    tr_memory_add_up(out);
}

void tr_predict_evaluation(const tr_memory_of *of, const tr_memory_plan *session,
                           tr_memory_total *out)
{
    *out = (tr_memory_total){0};
    size_t *host = out->bytes[TR_SPACE_HOST], *there = out->bytes[tr_space_of(of->backend)];
    for (int k = 0; k < TR_MEM_KINDS; k++) there[k] = session->bytes[k];
    there[TR_MEM_WEIGHTS] = (of->model->flat_count + of->model->state_count) * sizeof(float);
    host[TR_MEM_DATA] = of->datasets;
    host[TR_MEM_IO] += of->loaders + of->backend->pinned;
    tr_memory_add_up(out);
}
