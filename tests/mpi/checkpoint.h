/* What the tests of checkpoints share: a network with all that has a state, and copies of what a
 * step depends on, to compare. */
#ifndef TR_TESTS_CHECKPOINT_H
#define TR_TESTS_CHECKPOINT_H

#include "training.h"

#define DATA                                                                                       \
    "data: {train: {format: synthetic, samples: 50}, eval: {format: synthetic, samples: 20}}\n"
#define MODEL                                                                                      \
    "model:\n  input: [2, 6, 6]\n  layers:\n"                                                      \
    "    - conv2d: {out: 8, kernel: 3, freeze: true}\n    - batchnorm\n    - relu\n    - "         \
    "flatten\n"                                                                                    \
    "    - dropout: {p: 0.3}\n    - linear: {out: 5}\n  loss: cross_entropy\n"
#define TRAIN            TRAIN_WITH("")
#define TRAIN_WITH(more) TRAIN_OF(", clip_norm: 1" more)
#define TRAIN_OF(more)   TRAIN_SAVING("keep: 2", more)
/* The last checkpoint alone, which is written from the arrays as they lie. */
#define TRAIN_AT_END TRAIN_SAVING("keep: 2, every_epochs: none, best: false", ", clip_norm: 1")
#define TRAIN_SAVING(saves, more)                                                                  \
    "train: {steps: 40, batch: 12, micro_batch: 3, log_every: 2, ema: 0.9, "                       \
    "loss_scale: dynamic, loss_scale_init: 64, loss_scale_window: 4, "                             \
    "schedule: {plateau: {patience: 0, threshold: 1, gamma: 0.5, warmup: 3}}, "                    \
    "checkpoint: {" saves "}" more "}\n"

/* All that a step depends on, as one rank sees it. */
typedef struct {
    float *arrays[1 + TR_STORE_SLOTS];
    float *states;
    tr_train_state train;
} copy;

/* Slots are the owners' own, where ranks share the work, and so may exact weights be: gathered into
 * whole arrays, the same on every rank. Frozen rows have none: zero, and an average that is the
 * weight. */
static inline copy copy_of(const training *t)
{
    copy c = {.train = t->trainer->state};
    const tr_params *p = t->trainer->params;
    const size_t n = t->model->flat_count, learned = t->model->learned_count;
    assert_int_equal(p->o.nslots, 3); /* two moments and the average */
    assert_true(learned < n);
    c.arrays[0] = tr_alloc(TR_MEM_OTHER, n, sizeof(float));
    assert_non_null(c.arrays[0]);
    TRAINING_TRY(tr_comm_params_weights(p, c.arrays[0]));
    TRAINING_TRY(tr_comm_broadcast(t->comm, c.arrays[0], n * sizeof(float), 0));
    for (int k = 0; k < p->o.nslots; k++) {
        c.arrays[k + 1] = tr_alloc(TR_MEM_OTHER, n, sizeof(float));
        assert_non_null(c.arrays[k + 1]);
        TRAINING_TRY(tr_comm_params_gather(p, k, c.arrays[k + 1]));
        TRAINING_TRY(tr_comm_broadcast(t->comm, c.arrays[k + 1], n * sizeof(float), 0));
    }
    memcpy(c.arrays[3] + learned, c.arrays[0] + learned, (n - learned) * sizeof(float));
    for (int k = 0; k < 4; k++) training_alike(t, "arrays", c.arrays[k], n * sizeof(float));
    c.states = training_copy(t, p->states, t->model->state_count);
    return c;
}

static inline void copy_free(copy *c)
{
    for (size_t k = 0; k < TR_COUNT(c->arrays); k++) tr_free(c->arrays[k]);
    tr_free(c->states);
}

static inline void same_state(const tr_train_state *a, const tr_train_state *b)
{
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->updates, b->updates);
    assert_int_equal(a->seed, b->seed);
    assert_memory_equal(&a->loss_scale, &b->loss_scale, sizeof(double));
    assert_int_equal(a->loss_scale_good, b->loss_scale_good);
    assert_memory_equal(&a->lr_factor, &b->lr_factor, sizeof(double));
    assert_memory_equal(&a->plateau_best, &b->plateau_best, sizeof(double));
    assert_int_equal(a->plateau_bad, b->plateau_bad);
    assert_memory_equal(&a->best, &b->best, sizeof(double));
    assert_int_equal(a->best_step, b->best_step);
    assert_memory_equal(&a->stop_best, &b->stop_best, sizeof(double));
    assert_int_equal(a->stop_bad, b->stop_bad);
    assert_int_equal(a->rollbacks, b->rollbacks);
    assert_int_equal(a->skipped, b->skipped);
    assert_int_equal(a->samples, b->samples);
    assert_int_equal(a->batch, b->batch);
}

static inline void same(const training *t, const copy *a, const copy *b)
{
    for (int k = 0; k < 4; k++)
        assert_memory_equal(a->arrays[k], b->arrays[k], t->model->flat_count * sizeof(float));
    assert_memory_equal(a->states, b->states, t->model->state_count * sizeof(float));
    same_state(&a->train, &b->train);
}

static inline void save(training *t, bool best)
{
    double stall;
    const tr_checkpoint_kind kind = {.step_file = true, .best = best, .sound = true};
    tr_checkpointer_save(t->trainer->checkpointer, &t->trainer->state, &t->trainer->history, kind,
                         &stall);
    TRAINING_TRY(tr_checkpointer_wait(t->trainer->checkpointer));
}

static inline void steps(training *t, int n)
{
    for (int s = 0; s < n; s++) {
        training_step(t);
        if (t->rank == 0) TRAINING_TRY(tr_report_step(t->trainer));
        bool through;
        if (t->trainer->state.step % 3 == 0)
            TRAINING_TRY(tr_trainer_evaluate(t->trainer, &through));
    }
}

/* What a file holds, as the store reads it. */
static inline void check_file(const training *t, const char *path, const copy *want, int params)
{
    size_t n = t->model->flat_count;
    tr_snapshot s = {.nslots = params ? 0 : 3,
                     .slot_names = {"exp_avg", "exp_avg_sq", "ema"},
                     .params = tr_alloc(TR_MEM_OTHER, n, sizeof(float)),
                     .states = tr_alloc(TR_MEM_OTHER, t->model->state_count, sizeof(float))};
    tr_history h = {0};
    for (int k = 0; k < s.nslots; k++) s.slots[k] = tr_alloc(TR_MEM_OTHER, n, sizeof(float));
    TRAINING_TRY(tr_store_read(path, t->model, &s, &h));
    for (size_t i = 0; i < t->model->nparams; i++) { /* padding is not in the file */
        const tr_param *p = &t->model->params[i];
        assert_memory_equal(s.params + p->offset, want->arrays[params] + p->offset,
                            p->count * sizeof(float));
        for (int k = 0; k < s.nslots; k++)
            assert_memory_equal(s.slots[k] + p->offset, want->arrays[k + 1] + p->offset,
                                p->count * sizeof(float));
    }
    assert_int_equal(s.train.step, want->train.step);
    for (int k = 0; k < s.nslots; k++) tr_free(s.slots[k]);
    tr_free(s.params);
    tr_free(s.states);
    tr_history_free(&h);
}

static inline void check_saved(const training *t, const char *name, const copy *want, int params)
{
    if (t->rank != 0) return;
    char *path = tr_sprintf("%s/%s", t->config->output, name);
    assert_non_null(path);
    check_file(t, path, want, params);
    tr_free(path);
}

static inline bool exists(const training *t, const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", t->config->output, name);
    return access(path, F_OK) == 0;
}

#endif
