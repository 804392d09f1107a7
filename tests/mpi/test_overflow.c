/* ranks: 1 2 3 4 */
/* What one rank's gradient that is not finite does on all: the step changes nothing, the loss scale
 * goes down, or it is an error. */
#include "step.h"

#include <math.h>

/* Stands between the plan and the reducer: on the last rank, right before the bucket that holds an
 * element is handed over, that element overflows. */
typedef struct {
    tr_hooks inner;
    training *t;
    size_t at;   /* SIZE_MAX: nothing */
    size_t next; /* begin of the bucket that is handed over next */
    float value;
} poison;

static void poisoned_ready(void *ctx, int bucket)
{
    poison *p = ctx;
    const tr_model *m = p->t->model;
    size_t end = m->buckets[bucket].end; /* and all before it */
    if (p->at >= p->next && p->at < end && p->t->rank == p->t->size - 1)
        training_put(p->t, p->t->trainer->params->grads + p->at, &p->value, sizeof p->value);
    p->next = end == m->flat_count ? 0 : end;
    p->inner.bucket_ready(p->inner.ctx, bucket);
}

static tr_status poisoned_gather(void *ctx, const void *send, void *recv, size_t nbytes)
{
    poison *p = ctx;
    return p->inner.gather(p->inner.ctx, send, recv, nbytes);
}

static tr_status poisoned_poll(void *ctx)
{
    poison *p = ctx;
    return p->inner.poll(p->inner.ctx);
}

static void put_between(poison *p, training *t)
{
    *p = (poison){.inner = t->trainer->hooks, .t = t, .at = SIZE_MAX};
    t->trainer->hooks = (tr_hooks){.ctx = p,
                                   .rank = t->rank,
                                   .size = t->size,
                                   .gather = poisoned_gather,
                                   .bucket_ready = poisoned_ready,
                                   .poll = poisoned_poll};
}

/* `more`: keys of train, each with a comma before it. */
static training open_scaled(const char *folder, const char *scale, const char *more,
                            const char *run)
{
    char *text = tr_sprintf(DATA MODEL "train: {steps: 100, batch: 24, micro_batch: 2, "
                                       "loss_scale: %s, loss_scale_init: 1024, "
                                       "loss_scale_window: 3, clip_norm: 1, ema: 0.9%s}\n",
                            scale, more);
    char *seen = tr_sprintf("%s%s", run, SEEN);
    assert_true(text && seen);
    training t = training_open(folder, text, seen, TRAINING_FORCE);
    assert_true(t.trainer->micro_batches >= 3);
    tr_free(seen);
    tr_free(text);
    return t;
}

/* A step that must change nothing but the counters and, by this factor, the loss scale, on any
 * rank. */
static void skipped_step(training *t, tr_status want, double factor, const char *name)
{
    size_t nbytes = t->model->flat_count * sizeof(float);
    float *before = training_weights_copy(t);
    double scale = t->trainer->state.loss_scale;
    uint64_t step = t->trainer->state.step, updates = t->trainer->state.updates,
             skipped = t->trainer->state.skipped;
    assert_int_equal(training_try_step(t), want);
    assert_int_equal(t->trainer->state.step, step + 1);
    assert_int_equal(t->trainer->state.updates, updates);
    assert_int_equal(t->trainer->state.skipped, skipped + 1);
    assert_true(t->trainer->state.loss_scale == scale * factor);
    assert_non_null(t->trainer->skipped);
    if (!strstr(t->trainer->skipped, name))
        fail_msg("rank %d: \"%s\" does not name %s", t->rank, t->trainer->skipped, name);
    if (want != TR_OK) assert_non_null(strstr(tr_last_error()->text, name));
    float *after = training_weights_copy(t);
    assert_memory_equal(after, before, nbytes);
    training_weights_alike(t);
    tr_free(after);
    tr_free(before);
}

static void good_step(training *t)
{
    float *before = training_weights_copy(t);
    uint64_t updates = t->trainer->state.updates;
    training_step(t);
    assert_null(t->trainer->skipped);
    assert_int_equal(t->trainer->state.updates, updates + 1);
    assert_true(isfinite(t->trainer->loss) && t->trainer->grad_norm > 0);
    float *after = training_weights_copy(t);
    assert_memory_not_equal(after, before, t->model->flat_count * sizeof(float));
    training_weights_alike(t);
    tr_free(after);
    tr_free(before);
}

static size_t element(const training *t, const char *layer, const char *name, size_t i)
{
    const tr_param *p = training_param(t, layer, name);
    assert_true(i < p->count);
    return p->offset + i;
}

static void overflow(const char *run)
{
    training_folder f = training_folder_make();
    training t = open_scaled(f.path, "dynamic", "", run);
    poison p;
    put_between(&p, &t);
    good_step(&t);
    p.at = element(&t, "two", "weight", 1001);
    p.value = INFINITY;
    skipped_step(&t, TR_OK, 0.5, "two.weight");
    assert_non_null(strstr(t.trainer->skipped, "loss scale 1024, now 512"));
    p.at = element(&t, "norm", "bias", 95);
    p.value = NAN;
    skipped_step(&t, TR_OK, 0.5, "norm.bias");
    p.at = element(&t, "one", "weight", 0);
    p.value = -INFINITY;
    skipped_step(&t, TR_OK, 0.5, "one.weight");
    assert_true(t.trainer->state.loss_scale == 128);
    p.at = SIZE_MAX;
    for (int s = 0; s < 2; s++) good_step(&t);
    assert_true(t.trainer->state.loss_scale == 128);
    good_step(&t); /* the third: the window is over */
    assert_true(t.trainer->state.loss_scale == 256);
    training_close(&t);
    training_folder_remove(&f);
}

static void test_overflow(void **state)
{
    (void)state;
    overflow(", bucket_mb: 0.001");
    overflow("");
    overflow(", collectives: mpi");
    overflow(", bucket_mb: 0.001, collectives: mpi, shard_optimizer: on");
    training_nodes(2);
    overflow(", bucket_mb: 0.001");
    training_nodes(1);
}

/* Without a scale to lower it is an error, on every rank, and still no update. */
static void test_nonfinite(void **state)
{
    (void)state;
    static const char *const scales[] = {"none", "64"};
    for (size_t i = 0; i < TR_COUNT(scales); i++) {
        training_folder f = training_folder_make();
        training t = open_scaled(f.path, scales[i], "", "");
        poison p;
        put_between(&p, &t);
        good_step(&t);
        p.at = element(&t, "three", "bias", 4);
        p.value = NAN;
        skipped_step(&t, TR_NONFINITE, 1, "three.bias");
        p.at = SIZE_MAX;
        good_step(&t);
        training_close(&t);
        training_folder_remove(&f);
    }
}

/* Where such a step ends the run or takes it back, one that was issued before its outcome was known
 * changes nothing either, on any rank. */
static void test_held(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    training t = open_scaled(f.path, "none", ", on_nonfinite: stop", "");
    if (t.trainer->lag == 0) {
        print_message(
            "skipped: on the CPU no step is issued before the last one's outcome is known\n");
    } else {
        poison p;
        put_between(&p, &t);
        good_step(&t);
        float *before = training_weights_copy(&t);
        p.at = element(&t, "three", "bias", 4);
        p.value = NAN;
        TRAINING_TRY(tr_trainer_issue(t.trainer));
        p.at = SIZE_MAX;
        TRAINING_TRY(tr_trainer_issue(t.trainer));
        assert_int_equal(tr_trainer_collect(t.trainer), TR_NONFINITE);
        TRAINING_TRY(tr_trainer_discard(t.trainer));
        float *after = training_weights_copy(&t);
        assert_memory_equal(after, before, t.model->flat_count * sizeof(float));
        assert_int_equal(t.trainer->state.updates, 1);
        tr_free(before);
        tr_free(after);
        TRAINING_TRY(tr_loader_seek(t.trainer->loader, t.trainer->state.step));
        TRAINING_TRY(tr_trainer_control(t.trainer));
        good_step(&t);
    }
    training_close(&t);
    training_folder_remove(&f);
}

/* One sample of the whole batch, in its first micro-batch, is too large for float32: the loss and
 * every gradient behind it are not finite. The scale goes down to 1, but the loss has none: it is
 * an error at once. */
static void test_bad_sample(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    if (f.owner) {
        float x[24 * 12];
        int32_t labels[24];
        for (size_t i = 0; i < TR_COUNT(x); i++) x[i] = (float)(i * 37 % 101) / 101;
        for (int i = 0; i < 24; i++) labels[i] = i % 5;
        for (int i = 0; i < 12; i++) x[i] = 3e38f;
        training_write_npy(f.path, "x.npy", "<f4", "24, 12", x, sizeof x);
        training_write_npy(f.path, "y.npy", "<i4", "24,", labels, sizeof labels);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    training t = training_open(
        f.path,
        "data: {train: {format: npy, inputs: x.npy, labels: y.npy}, shuffle: false}\n" SMALL
        "train: {steps: 100, batch: 24, micro_batch: 2, loss_scale: dynamic, loss_scale_init: 4}\n",
        "", 0);
    skipped_step(&t, TR_NONFINITE, 0.5, "three.");
    skipped_step(&t, TR_NONFINITE, 0.5, "three.");
    assert_true(t.trainer->state.loss_scale == 1);
    skipped_step(&t, TR_NONFINITE, 1, "three.");
    training_close(&t);
    training_folder_remove(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_overflow),
    cmocka_unit_test(test_nonfinite),
    cmocka_unit_test(test_held),
    cmocka_unit_test(test_bad_sample),
};

RUN_MPI_TESTS(tests)
