/* Predicted and held memory of an open trainer. */
#include "trainer/loop/trainer.h"
#include "trainer/plan/plan.h"

void tr_predicted_memory(const tr_trainer *t, tr_memory_total *out)
{
    tr_memory_plan session;
    tr_memory_of of = {.config = t->config,
                       .model = t->model,
                       .backend = t->backend,
                       .topology = t->topology,
                       .nccl = t->nccl,
                       .datasets = tr_dataset_held(t->train_data),
                       .loaders = tr_loader_held(t->loader)};
    if (t->eval_data) of.datasets += tr_dataset_held(t->eval_data);
    if (t->eval_loader) of.loaders += tr_loader_held(t->eval_loader);
    tr_session_memory(t->session, &session);
    tr_predict_memory(&of, &session, out);
    if (t->teacher) tr_teacher_memory(t->teacher, out);
    tr_memory_add_up(out);
}

/* The counters are the process's: one trainer at a time. */
size_t tr_held_of(const tr_trainer *t, tr_mem_kind kind)
{
    const size_t all = tr_mem_held(kind), before = t->held_before[kind];
    return all > before ? all - before : 0;
}

size_t tr_held_memory(const tr_trainer *t)
{
    size_t held = 0;
    for (int k = 0; k < TR_MEM_KINDS; k++)
        if (k != TR_MEM_OTHER) held += tr_held_of(t, (tr_mem_kind)k);
    return held;
}

size_t tr_held_beside(const tr_trainer *t)
{
    size_t held = 0;
    for (int k = 0; k < TR_MEM_KINDS; k++)
        if (k != TR_MEM_OTHER) held += t->held_before[k];
    return held;
}
