/* What becomes of steps and evaluations whose numbers are not finite: how many are put up with, and
 * what is said of them at the end. All follows from what every rank holds alike. */
#include "trainer/loop/nonfinite.h"

#include <math.h>

#include "trainer/plan/shares.h"

typedef enum { FINITE, OVERFLOWS, NOT_FINITE } kind; /* OVERFLOWS: infinite in fp16 */

static kind kind_of(tr_dtype type, const void *v, size_t i)
{
    float f16;
    switch (type) {
    case TR_F32:
        return isfinite(((const float *)v)[i]) ? FINITE : NOT_FINITE;
    case TR_BF16:
        return isfinite(tr_bf16_to_f32(((const tr_bf16 *)v)[i])) ? FINITE : NOT_FINITE;
    case TR_F16:
        f16 = tr_f16_to_f32(((const tr_f16 *)v)[i]);
        return isfinite(f16) ? FINITE : isinf(f16) ? OVERFLOWS : NOT_FINITE;
    default:
        return FINITE;
    }
}

/* Of the first value that is not finite. */
static kind kind_of_all(tr_dtype type, const void *v, int64_t sample, int ndim, const int64_t *dims)
{
    size_t count = 1;
    kind k = FINITE;
    for (int i = 0; i < ndim; i++) count *= (size_t)dims[i];
    for (size_t i = 0; i < count && k == FINITE; i++)
        k = kind_of(type, v, (size_t)sample * count + i);
    return k;
}

static kind kind_of_sample(const tr_trainer *t, const tr_batch *b, int64_t sample)
{
    const tr_model *shorter = tr_model_of_rows(t->model, b->rows),
                   *m = shorter ? shorter : t->model;
    const tr_dtype type = tr_precision_dtype((tr_precision)t->config->train.precision);
    kind k = FINITE;
    for (size_t i = 0; i < m->ninputs && k == FINITE; i++) {
        const tr_input *in = &m->inputs[i];
        if (in->ids == 0) k = kind_of_all(type, b->inputs[i], sample, in->ndim, in->dims);
    }
    if (k == FINITE && !m->labels)
        k = kind_of_all(TR_F32, b->targets, sample, m->ndim_target, m->target_dims);
    return k;
}

/* A sample that is not finite: twice its ordinal, and 1 more where it OVERFLOWS. NONE: there is
 * none; UNREAD: none was found before the data could not be read. */
#define NONE   UINT64_MAX
#define UNREAD (UINT64_MAX - 1)

/* Local. This rank's part of steps [begin, end), read once more: the first such sample. */
static uint64_t own_bad_sample(const tr_trainer *t, tr_loader *l, uint64_t begin, uint64_t end)
{
    tr_batch b;
    tr_status st = tr_loader_seek(l, begin);
    while (st == TR_OK && (st = tr_loader_next(l, &b)) == TR_OK && b.step < end)
        for (int64_t i = 0; i < b.count; i++) {
            const kind k = kind_of_sample(t, &b, i);
            if (k != FINITE) return 2 * (b.ordinal + (uint64_t)i) + (k == OVERFLOWS);
        }
    return st == TR_OK ? NONE : UNREAD;
}

/* *Collective.* The same, over all ranks' parts. */
static tr_status bad_sample(tr_trainer *t, tr_loader *l, uint64_t begin, uint64_t end,
                            uint64_t *out)
{
    const uint64_t mine = own_bad_sample(t, l, begin, end);
    tr_status st = tr_comm_all_gather(t->comm, &mine, t->gathered, sizeof mine);
    *out = NONE;
    for (int r = 0; st == TR_OK && r < t->topology->size; r++)
        if (t->gathered[r] < *out) *out = t->gathered[r];
    return st;
}

static const char *says(uint64_t bad)
{
    return bad % 2 == 1 ? "is not finite in fp16, after data.normalize (more than 65504)"
                        : "is not finite itself";
}

/* data.train's index of an ordinal. */
static uint64_t index_of(const tr_trainer *t, uint64_t ordinal)
{
    return tr_loader_sample(t->loader, ordinal);
}

/* "16 to 31", or where they are shuffled, some of them. */
static void list_samples(const tr_trainer *t, uint64_t step, char *buf, size_t size)
{
    enum { SHOWN = 8 };
    const uint64_t samples = tr_dataset_samples(t->train_data);
    const uint64_t batch = (uint64_t)t->config->train.batch, epoch = step / t->steps_per_epoch;
    const uint64_t begin = step % t->steps_per_epoch * batch;
    const uint64_t count = samples - begin < batch ? samples - begin : batch;
    int n = 0;
    if (!t->config->data.shuffle) {
        snprintf(buf, size, "%llu to %llu", (unsigned long long)begin,
                 (unsigned long long)(begin + count - 1));
        return;
    }
    for (uint64_t i = 0; i < count && i < SHOWN; i++)
        n += snprintf(buf + n, size - (size_t)n, "%s%llu", i ? ", " : "",
                      (unsigned long long)index_of(t, epoch * samples + begin + i));
    if (count > SHOWN)
        snprintf(buf + n, size - (size_t)n, ", ... (%llu)", (unsigned long long)count);
}

tr_status tr_nonfinite_end(tr_trainer *t, const char *what, const char *limit)
{
    const uint64_t step = t->state.step - 1;
    char where[400], list[200], file[512];
    uint64_t bad;
    bool resumable;
    tr_status st;
    TR_TRY(tr_trainer_discard(t)); /* the loader's batches are read no more */
    TR_TRY(bad_sample(t, t->loader, step, step + 1, &bad));
    TR_TRY(tr_checkpointer_resumable(t->checkpointer, &resumable));
    list_samples(t, step, list, sizeof list);
    if (bad == UNREAD)
        snprintf(where, sizeof where, "its samples (of data.train: %s) could not be read again",
                 list);
    else if (bad != NONE) {
        tr_dataset_where(t->train_data, index_of(t, bad / 2), file, sizeof file);
        snprintf(where, sizeof where, "sample %llu of data.train %s (%.200s)",
                 (unsigned long long)index_of(t, bad / 2), says(bad), file);
    } else
        snprintf(where, sizeof where, "the values of its samples (of data.train: %s) are finite",
                 list);
    return TR_FAIL(TR_NONFINITE, "%.400s%s; %s; the learning rate was %g; --resume %s", what, limit,
                   where, t->lr,
                   resumable ? "goes on from the last sound checkpoint"
                             : "starts over: there is no sound checkpoint");
out:
    return st;
}

tr_status tr_nonfinite_skipped(tr_trainer *t, const char *what)
{
    const tr_config *c = t->config;
    const uint64_t row = (uint64_t)c->train.max_skips_in_a_row;
    const uint64_t all = c->train.max_skips > 0 ? (uint64_t)c->train.max_skips : t->total_steps / 2;
    char limit[128];
    if (t->topology->rank == 0) tr_log(TR_LOG_WARN, "%s; the update is skipped", what);
    if (t->state.failed_row < row && t->state.failed <= all) return TR_OK;
    if (t->state.failed_row >= row)
        snprintf(limit, sizeof limit, "; %llu update%s skipped (train.max_skips_in_a_row)",
                 (unsigned long long)t->state.failed_row,
                 t->state.failed_row == 1 ? " was" : "s in a row were");
    else
        snprintf(limit, sizeof limit, "; %llu of %llu updates were skipped (train.max_skips)",
                 (unsigned long long)t->state.failed, (unsigned long long)t->state.step);
    return tr_nonfinite_end(t, what, limit);
}

tr_status tr_nonfinite_evaluation(tr_trainer *t)
{
    char where[700], file[512];
    snprintf(where, sizeof where,
             "the values of data.eval are finite: look at the weights (trainer inspect)");
    const uint64_t steps = tr_loader_steps_per_epoch(t->eval_loader);
    tr_status st;
    if (!t->eval_searched) TR_TRY(bad_sample(t, t->eval_loader, 0, steps, &t->eval_bad));
    t->eval_searched = t->eval_bad != UNREAD; /* data.eval stays as it is */
    if (t->eval_bad == UNREAD)
        snprintf(where, sizeof where, "data.eval could not be read again to look for the sample");
    else if (t->eval_bad != NONE) {
        tr_dataset_where(t->eval_data, t->eval_bad / 2, file, sizeof file);
        snprintf(where, sizeof where, "sample %llu of data.eval %s (%.400s)",
                 (unsigned long long)t->eval_bad / 2, says(t->eval_bad), file);
    }
    return TR_FAIL(TR_NONFINITE, "step %llu: the evaluation loss is not finite; %s",
                   (unsigned long long)t->state.step, where);
out:
    return st;
}

tr_status tr_nonfinite_result(tr_trainer *t)
{
    if (t->eval_failed) return tr_nonfinite_evaluation(t);
    if (t->state.updates > 0) return TR_OK;
    if (t->state.failed > 0)
        return TR_FAIL(TR_NONFINITE,
                       "all %llu updates were skipped, %llu of them for losses or gradients that "
                       "are not finite at any loss scale: see the warnings",
                       (unsigned long long)t->state.step, (unsigned long long)t->state.failed);
    return TR_FAIL(TR_NONFINITE,
                   "all %llu updates were skipped, the last at loss scale %g, which was still "
                   "sought: train for more steps (--resume goes on seeking), or begin lower "
                   "(train.loss_scale_init, with --force)",
                   (unsigned long long)t->state.step, t->state.loss_scale);
}
