/* Predicted and held memory of a rank. */
#include "trainer/plan.h"

#include "trainer/device.h"
#include "trainer/optimizer.h"
#include "trainer/trainer.h"

size_t tr_confusion_cells(const tr_model *m)
{
    enum { MOST = 1024 };
    return m->labels && m->outputs <= MOST ? (size_t)(m->outputs * m->outputs) : 0;
}

tr_status tr_predict_reducer(const tr_config *c, const tr_model *m, const tr_backend *b,
                             const tr_topology *t, tr_reducer_cost *out)
{
    const char *names[4];
    tr_range *ranges = tr_alloc(TR_MEM_OTHER, m->nbuckets, sizeof *ranges);
    if (!ranges) return TR_MEMORY;
    for (size_t i = 0; i < m->nbuckets; i++)
        ranges[i] = (tr_range){m->buckets[i].begin, m->buckets[i].end};
    const tr_reducer_options o = {.count = m->flat_count,
                                  .buckets = ranges,
                                  .nbuckets = m->nbuckets,
                                  .nslots = tr_optimizer_slots(c, names),
                                  .wire_bf16 = c->run.wire == TR_WIRE_BF16,
                                  .backend = b,
                                  .nccl = tr_config_nccl(c)};
    tr_reducer_cost_of(t, &o, out);
    tr_free(ranges);
    return TR_OK;
}

tr_space tr_space_of(const tr_backend *b)
{
    return b->host ? TR_SPACE_HOST : TR_SPACE_DEVICE;
}

static void add_up(tr_memory_total *t)
{
    for (int s = 0; s < TR_SPACES; s++) {
        t->bytes[s][TR_MEM_OTHER] = 0;
        t->total[s] = 0;
        for (int k = 0; k < TR_MEM_KINDS; k++) t->total[s] += t->bytes[s][k];
    }
}

tr_status tr_predict_memory(const tr_memory_of *of, const tr_memory_plan *session,
                            tr_memory_total *out)
{
    const tr_config *c = of->config;
    const tr_model *m = of->model;
    const char *names[4];
    const size_t states = m->state_count * sizeof(float);
    const size_t confusion = c->data.eval.present ? tr_confusion_cells(m) * sizeof(int64_t) : 0;
    tr_reducer_cost cost;
    const tr_status st = tr_predict_reducer(c, m, of->backend, of->topology, &cost);
    if (st != TR_OK) return st;
    *out = (tr_memory_total){0};
    size_t *host = out->bytes[TR_SPACE_HOST], *there = out->bytes[tr_space_of(of->backend)];
    for (int k = 0; k < TR_MEM_KINDS; k++) there[k] = session->bytes[k];
    there[TR_MEM_WEIGHTS] += cost.weights + states;
    there[TR_MEM_GRADIENTS] += cost.gradients - cost.pinned;
    host[TR_MEM_GRADIENTS] += cost.pinned;
    there[TR_MEM_MOMENTS] += cost.slots;
    if (there != host) there[TR_MEM_IO] += confusion;
    host[TR_MEM_DATA] += of->datasets;
    host[TR_MEM_IO] += of->loaders + confusion + of->backend->pinned;
    if (of->topology->rank == 0) { /* it keeps the last one for the run files, and a snapshot */
        host[TR_MEM_IO] += confusion;
        host[TR_MEM_SNAPSHOT] =
            m->flat_count * sizeof(float) * (size_t)(1 + tr_optimizer_slots(c, names)) + states +
            confusion;
    }
    add_up(out);
    return TR_OK;
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
    add_up(out);
}

tr_status tr_predicted_memory(const tr_trainer *t, tr_memory_total *out)
{
    tr_memory_plan session;
    tr_memory_of of = {.config = t->config,
                       .model = t->model,
                       .backend = t->backend,
                       .topology = t->topology,
                       .datasets = tr_dataset_held(t->train_data),
                       .loaders = tr_loader_held(t->loader)};
    if (t->eval_data) of.datasets += tr_dataset_held(t->eval_data);
    if (t->eval_loader) of.loaders += tr_loader_held(t->eval_loader);
    tr_session_memory(t->session, &session);
    return tr_predict_memory(&of, &session, out);
}

size_t tr_held_memory(const tr_trainer *t)
{
    (void)t; /* the counters are the process's: one trainer a process */
    size_t held = 0;
    for (int k = 0; k < TR_MEM_KINDS; k++)
        if (k != TR_MEM_OTHER) held += tr_mem_held((tr_mem_kind)k);
    return held;
}
