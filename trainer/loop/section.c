/* Which micro-batches put the same work into the stream on every rank: those whose shares have the
 * same sizes on all of them. Recording is then uniform over the ranks, as NCCL demands. */
#include "trainer/loop/trainer.h"

static tr_range share(const tr_trainer *t, bool tail, int micro, int rank)
{
    const uint64_t step = tail ? t->steps_per_epoch - 1 : 0;
    return tr_share(t->state.samples, t->config->train.batch, step, t->micro_batches, micro, rank,
                    t->topology->size);
}

static bool alike(const tr_trainer *t, int a, int b)
{
    for (int r = 0; r < t->topology->size; r++) {
        const tr_range x = share(t, a >= t->micro_batches, a % t->micro_batches, r);
        const tr_range y = share(t, b >= t->micro_batches, b % t->micro_batches, r);
        if (x.end - x.begin != y.end - y.begin) return false;
    }
    return true;
}

tr_status tr_section_open(tr_trainer *t)
{
    const int n = 2 * t->micro_batches; /* of a full step, then of the epoch's last */
    t->section_class = tr_alloc(TR_MEM_OTHER, (size_t)n, sizeof *t->section_class);
    if (!t->section_class) return tr_last_status();
    for (int i = 0; i < n; i++) {
        int first = 0;
        while (first < i && (t->section_class[first] != first || !alike(t, first, i))) first++;
        t->section_class[i] = first;
    }
    return TR_OK;
}

uint64_t tr_section_key(const tr_trainer *t, uint64_t step, int micro, int64_t rows)
{
    uint64_t of = 0; /* which of the models of fewer rows; all ranks run the same one */
    while (of < t->model->nshorter && t->model->shorter[of]->inputs[0].dims[0] != rows) of++;
    const bool tail = step % t->steps_per_epoch == t->steps_per_epoch - 1;
    const uint64_t class = (uint64_t)t->section_class[(tail ? t->micro_batches : 0) + micro];
    return (class * (t->model->nshorter + 1) + of) * 4 + (micro == 0 ? 2 : 0) +
           (micro == t->micro_batches - 1);
}
