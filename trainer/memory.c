/* Predicted and held memory of a rank. */
#include "trainer/plan.h"

#include "trainer/optimizer.h"
#include "trainer/trainer.h"

size_t tr_confusion_cells(const tr_model *m)
{
    enum { MOST = 1024 };
    return m->labels && m->outputs <= MOST ? (size_t)(m->outputs * m->outputs) : 0;
}

tr_status tr_predict_reducer(const tr_config *c, const tr_model *m, const tr_topology *t,
                             tr_reducer_cost *out)
{
    const char *names[4];
    tr_range *ranges = tr_alloc(TR_MEM_OTHER, m->nbuckets, sizeof *ranges);
    if (!ranges) return TR_MEMORY;
    for (size_t b = 0; b < m->nbuckets; b++)
        ranges[b] = (tr_range){m->buckets[b].begin, m->buckets[b].end};
    const tr_reducer_options o = {.count = m->flat_count,
                                  .buckets = ranges,
                                  .nbuckets = m->nbuckets,
                                  .nslots = tr_optimizer_slots(c, names),
                                  .wire_bf16 = c->run.wire == TR_WIRE_BF16};
    tr_reducer_cost_of(t, &o, out);
    tr_free(ranges);
    return TR_OK;
}

tr_status tr_predict_memory(const tr_config *c, const tr_model *m, const tr_topology *t,
                            const tr_memory_plan *session, size_t datasets, size_t loaders,
                            tr_memory_total *out)
{
    const char *names[4];
    const size_t states = m->state_count * sizeof(float);
    const size_t confusion = c->data.eval.present ? tr_confusion_cells(m) * sizeof(int64_t) : 0;
    tr_reducer_cost cost;
    const tr_status st = tr_predict_reducer(c, m, t, &cost);
    if (st != TR_OK) return st;
    *out = (tr_memory_total){0};
    for (int k = 0; k < TR_MEM_KINDS; k++) out->bytes[k] = session->bytes[k];
    out->bytes[TR_MEM_WEIGHTS] += cost.weights + states;
    out->bytes[TR_MEM_GRADIENTS] += cost.gradients;
    out->bytes[TR_MEM_MOMENTS] += cost.slots;
    out->bytes[TR_MEM_DATA] += datasets;
    out->bytes[TR_MEM_IO] += loaders + confusion;
    if (t->rank == 0) { /* rank 0 keeps the last one for the run files, and a snapshot of that */
        out->bytes[TR_MEM_IO] += confusion;
        out->bytes[TR_MEM_SNAPSHOT] =
            m->flat_count * sizeof(float) * (size_t)(1 + tr_optimizer_slots(c, names)) + states +
            confusion;
    }
    out->bytes[TR_MEM_OTHER] = 0;
    for (int k = 0; k < TR_MEM_KINDS; k++) out->total += out->bytes[k];
    return TR_OK;
}

tr_status tr_predicted_memory(const tr_trainer *t, size_t *nbytes)
{
    tr_memory_plan session;
    tr_memory_total total;
    size_t datasets = tr_dataset_held(t->train_data), loaders = tr_loader_held(t->loader);
    if (t->eval_data) datasets += tr_dataset_held(t->eval_data);
    if (t->eval_loader) loaders += tr_loader_held(t->eval_loader);
    tr_session_memory(t->session, &session);
    const tr_status st =
        tr_predict_memory(t->config, t->model, t->topology, &session, datasets, loaders, &total);
    if (st == TR_OK) *nbytes = total.total;
    return st;
}

size_t tr_held_memory(const tr_trainer *t)
{
    (void)t; /* the counters are the process's: one trainer a process */
    size_t held = 0;
    for (int k = 0; k < TR_MEM_KINDS; k++)
        if (k != TR_MEM_OTHER) held += tr_mem_held((tr_mem_kind)k);
    return held;
}
