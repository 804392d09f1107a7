/* ranks: 1 2 3 4 */
/* Checkpoints through the trainer's checkpointer: what was saved comes back bit by bit, on the same
 * ranks and on others; the writer while it is busy; a write that fails; the moving average. */
#include "training.h"

#include <signal.h>
#include <sys/stat.h>

#define DATA                                                                                       \
    "data: {train: {format: synthetic, samples: 50}, eval: {format: synthetic, samples: 20}}\n"
#define MODEL                                                                                      \
    "model:\n  input: [2, 6, 6]\n  layers:\n"                                                      \
    "    - conv2d: {out: 8, kernel: 3, freeze: true}\n    - batchnorm\n    - relu\n    - "         \
    "flatten\n"                                                                                    \
    "    - dropout: {p: 0.3}\n    - linear: {out: 5}\n  loss: cross_entropy\n"
#define TRAIN            TRAIN_WITH("")
#define TRAIN_WITH(more) TRAIN_OF(", clip_norm: 1" more)
#define TRAIN_OF(more)                                                                             \
    "train: {steps: 40, batch: 12, micro_batch: 3, log_every: 2, ema: 0.9, "                       \
    "loss_scale: dynamic, loss_scale_init: 64, loss_scale_window: 4, "                             \
    "schedule: {plateau: {patience: 0, threshold: 1, gamma: 0.5, warmup: 3}}, "                    \
    "checkpoint: {keep: 2}" more "}\n"

/* All that a step depends on, as one rank sees it. */
typedef struct {
    float *arrays[1 + TR_STORE_SLOTS];
    float *states;
    tr_train_state train;
} copy;

/* Slots are the owners' own, where ranks share the work, and so may exact weights be: gathered into
 * whole arrays, the same on every rank. Frozen rows have none: zero, and an average that is the weight. */
static copy copy_of(const training *t)
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

static void copy_free(copy *c)
{
    for (size_t k = 0; k < TR_COUNT(c->arrays); k++) tr_free(c->arrays[k]);
    tr_free(c->states);
}

static void same_state(const tr_train_state *a, const tr_train_state *b)
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

static void same(const training *t, const copy *a, const copy *b)
{
    for (int k = 0; k < 4; k++)
        assert_memory_equal(a->arrays[k], b->arrays[k], t->model->flat_count * sizeof(float));
    assert_memory_equal(a->states, b->states, t->model->state_count * sizeof(float));
    same_state(&a->train, &b->train);
}

static void save(training *t, bool best)
{
    double stall;
    const tr_checkpoint_kind kind = {.step_file = true, .best = best, .sound = true};
    tr_checkpointer_save(t->trainer->checkpointer, &t->trainer->state, &t->trainer->history, kind,
                         &stall);
    TRAINING_TRY(tr_checkpointer_wait(t->trainer->checkpointer));
}

static void steps(training *t, int n)
{
    for (int s = 0; s < n; s++) {
        training_step(t);
        if (t->rank == 0) TRAINING_TRY(tr_report_step(t->trainer));
        bool through;
        if (t->trainer->state.step % 3 == 0)
            TRAINING_TRY(tr_trainer_evaluate(t->trainer, &through));
    }
}

/* Seven steps, saved, five more; again from the file, and the same five. */
static void round_trip_of(const char *text, const char *run)
{
    training_folder f = training_folder_make();
    training t = training_open(f.path, text, run, 0);
    TRAINING_TRY(tr_loader_seek(t.trainer->loader, 0));
    steps(&t, 7);
    TRAINING_TRY(tr_trainer_share_states(t.trainer)); /* as the loop does before it saves */
    copy saved = copy_of(&t);
    assert_true(saved.train.loss_scale == 128 && saved.train.updates == 7);
    assert_true(saved.train.lr_factor < 1); /* the plateau schedule had its say */
    size_t records = t.trainer->history.nsteps;
    save(&t, false);
    steps(&t, 5);
    copy ahead = copy_of(&t);
    training_close(&t);

    t = training_open(f.path, text, run, TRAINING_RESUME);
    copy back = copy_of(&t);
    same(&t, &saved, &back);
    if (t.rank == 0) {
        assert_int_equal(t.trainer->history.nsteps, records);
        assert_int_equal(t.trainer->history.nevals, 2);
        assert_int_equal(t.trainer->history.steps[records - 1].step, 7);
    }
    TRAINING_TRY(tr_loader_seek(t.trainer->loader, t.trainer->state.step));
    steps(&t, 5);
    copy again = copy_of(&t);
    same(&t, &ahead, &again);
    training_close(&t);
    copy_free(&saved);
    copy_free(&ahead);
    copy_free(&back);
    copy_free(&again);
    training_folder_remove(&f);
}

static void round_trip(const char *run)
{
    round_trip_of(DATA MODEL TRAIN, run);
}

static void test_round_trip(void **state)
{
    (void)state;
    round_trip("");
    round_trip(", collectives: mpi");
    round_trip(", collectives: mpi, shard_optimizer: on");
    training_nodes(2);
    round_trip(", bucket_mb: 0.001");
    /* statistics of each node, which rank 0's replace when they are saved */
    round_trip_of(DATA MODEL TRAIN_WITH(", sync_batchnorm: node"), "");
    training_nodes(1);
}

/* Rank 0 by itself trains and saves; all ranks go on with it. */
static void other_ranks(const char *run)
{
    training_folder f = training_folder_make();
    copy saved = {.states = NULL};
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
        training t = training_open(f.path, DATA MODEL TRAIN, run, TRAINING_ALONE);
        steps(&t, 7);
        saved = copy_of(&t);
        save(&t, false);
        training_close(&t);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    training t = training_open(f.path, DATA MODEL TRAIN, run, TRAINING_RESUME);
    copy back = copy_of(&t);
    if (rank == 0) same(&t, &saved, &back);
    training_alike(&t, "states", back.states, t.model->state_count * sizeof(float));
    training_alike(&t, "the step", &back.train.step, sizeof back.train.step);
    assert_int_equal(back.train.step, 7);
    TRAINING_TRY(tr_loader_seek(t.trainer->loader, t.trainer->state.step));
    steps(&t, 3);
    training_weights_alike(&t);
    training_close(&t);
    copy_free(&saved);
    copy_free(&back);
    training_folder_remove(&f);
}

static void test_other_ranks(void **state)
{
    (void)state;
    other_ranks("");
    other_ranks(", collectives: mpi");
    training_nodes(3);
    other_ranks(", bucket_mb: 0.001, shard_optimizer: on");
    training_nodes(1);
}

/* The file of a job that shards is that of one that does not, and either goes on with it. */
static void test_other_sharding(void **state)
{
    (void)state;
    static const char *const runs[] = {", collectives: mpi, shard_optimizer: on",
                                       ", collectives: mpi, shard_optimizer: off", ""};
    training_folder f = training_folder_make();
    training t = training_open(f.path, DATA MODEL TRAIN, runs[0], 0);
    steps(&t, 4);
    copy last = copy_of(&t);
    save(&t, false);
    training_close(&t);
    for (size_t i = 1; i < 6; i++) {
        t = training_open(f.path, DATA MODEL TRAIN, runs[i % 3], TRAINING_RESUME);
        copy back = copy_of(&t);
        same(&t, &last, &back);
        copy_free(&last);
        copy_free(&back);
        TRAINING_TRY(tr_loader_seek(t.trainer->loader, t.trainer->state.step));
        steps(&t, 1);
        last = copy_of(&t);
        save(&t, false);
        training_close(&t);
    }
    copy_free(&last);
    training_folder_remove(&f);
}

/* In mixed precision a sharded job hands weights on as 16-bit copies: losses, files and what goes on
 * from these have the same bits as those of a job that keeps all of them everywhere. */
static void test_rounded(void **state)
{
    (void)state;
    static const char *const runs[] = {", shard_optimizer: off, bucket_mb: 0.001",
                                       ", shard_optimizer: on, bucket_mb: 0.001"};
    enum { STEPS = 4 };
    /* not clipped: the norm's last bit depends on who sums which squares */
    static const char text[] = DATA MODEL TRAIN_OF(", precision: bf16");
    double loss[2][STEPS];
    copy last[2];
    training_folder f = training_folder_make();
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    training_nodes(size == 4 ? 2 : size); /* MPI's own order of four sums is another one */
    for (int i = 0; i < 2; i++) {
        training t = training_open(f.path, text, runs[i], TRAINING_FORCE);
        const tr_params *p = t.trainer->params;
        assert_true(p->o.nrounded > 0 && p->o.type == TR_BF16);
        for (int s = 0; s < STEPS; s++) {
            steps(&t, 1);
            loss[i][s] = t.trainer->loss;
        }
        last[i] = copy_of(&t);
        if (i == 1 && size > 1) { /* what others own is rounded here */
            float *seen = training_weights_copy(&t);
            bool exact = true;
            for (size_t e = p->o.rounded[0].begin; e < p->o.rounded[0].end; e++)
                exact &= seen[e] == last[i].arrays[0][e];
            assert_false(exact);
            tr_free(seen);
        }
        if (i == 1) same(&t, &last[0], &last[1]);
        save(&t, false);
        training_close(&t);
    }
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    training_nodes(1);
    training t = training_open(f.path, text, "", TRAINING_RESUME);
    copy back = copy_of(&t);
    same(&t, &last[0], &back);
    training_close(&t);
    copy_free(&back);
    copy_free(&last[0]);
    copy_free(&last[1]);
    training_folder_remove(&f);
}

/* What a file holds, as the store reads it. */
static void check_file(const training *t, const char *path, const copy *want, int params)
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

static void check_saved(const training *t, const char *name, const copy *want, int params)
{
    if (t->rank != 0) return;
    char *path = tr_sprintf("%s/%s", t->config->output, name);
    assert_non_null(path);
    check_file(t, path, want, params);
    tr_free(path);
}

static bool exists(const training *t, const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", t->config->output, name);
    return access(path, F_OK) == 0;
}

/* Saves in a row: each waits for the writer, and each file holds its own step, not a later one. */
static void test_busy(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    training t = training_open(f.path, DATA MODEL TRAIN, "", 0);
    copy at[3];
    for (int i = 0; i < 3; i++) {
        double stall = -1;
        steps(&t, 1);
        at[i] = copy_of(&t);
        const tr_checkpoint_kind kind = {.step_file = true, .best = i == 1, .sound = true};
        tr_checkpointer_save(t.trainer->checkpointer, &t.trainer->state, &t.trainer->history, kind,
                             &stall);
        assert_true(stall >= 0);
    }
    steps(&t, 2); /* the weights move on while the last one is written */
    TRAINING_TRY(tr_checkpointer_wait(t.trainer->checkpointer));
    if (t.rank == 0) {
        assert_false(exists(&t, "checkpoints/step-00000001.h5")); /* keep: 2 */
        tr_checkpoint_report r;
        for (uint64_t step = 1; step <= 3;
             step++) { /* every write is told, also when nobody asked between */
            assert_true(tr_checkpointer_report(t.trainer->checkpointer, &r));
            assert_true(r.saved && r.step == step && r.nbytes > 0);
        }
        assert_false(tr_checkpointer_report(t.trainer->checkpointer, &r));
    }
    check_saved(&t, "checkpoints/step-00000002.h5", &at[1], 0);
    check_saved(&t, "checkpoints/best.h5", &at[1], 0);
    check_saved(&t, "checkpoints/step-00000003.h5", &at[2], 0);
    for (int i = 0; i < 3; i++) copy_free(&at[i]);
    training_close(&t);
    training_folder_remove(&f);
}

/* The folder is gone: the write fails and says so, training goes on, and so do later writes. */
static void test_failing(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    char from[96], to[96];
    double stall;
    snprintf(from, sizeof from, "%s/run/checkpoints", f.path);
    snprintf(to, sizeof to, "%s/away", f.path);
    training t = training_open(f.path, DATA MODEL TRAIN, "", 0);
    tr_checkpointer *k = t.trainer->checkpointer;
    steps(&t, 2);
    save(&t, false);
    steps(&t, 1);
    if (t.rank == 0) assert_int_equal(rename(from, to), 0);
    const tr_checkpoint_kind kind = {.step_file = true, .sound = true};
    tr_checkpointer_save(k, &t.trainer->state, &t.trainer->history, kind, &stall);
    if (t.rank == 0) {
        assert_int_not_equal(tr_checkpointer_wait(k), TR_OK);
        assert_non_null(strstr(tr_last_error()->text, "step-00000003.h5"));
        tr_checkpoint_report r;
        assert_true(tr_checkpointer_report(k, &r) && r.saved && r.step == 2);
        assert_true(tr_checkpointer_report(k, &r) && !r.saved && r.step == 3);
    } else
        assert_int_equal(tr_checkpointer_wait(k), TR_OK);
    steps(&t, 2);
    training_weights_alike(&t);
    if (t.rank == 0) assert_int_equal(rename(to, from), 0);
    copy now = copy_of(&t);
    save(&t, false);
    check_saved(&t, "checkpoints/step-00000005.h5", &now, 0);
    if (t.rank == 0) assert_true(exists(&t, "checkpoints/step-00000002.h5"));
    copy_free(&now);
    training_close(&t);
    training_folder_remove(&f);
}

/* ema = 0.9 ema + 0.1 w after every update, from the first weights; an evaluation with it leaves
 * the weights as they were; the model file holds it. */
static void average_with(const char *run)
{
    training_folder f = training_folder_make();
    training t = training_open(f.path, DATA MODEL TRAIN, run, 0);
    size_t n = t.model->flat_count;
    copy before = copy_of(&t);
    double *average = tr_alloc(TR_MEM_OTHER, n, sizeof *average);
    assert_non_null(average);
    assert_memory_equal(before.arrays[0], before.arrays[3], n * sizeof(float));
    for (size_t i = 0; i < n; i++) average[i] = (double)before.arrays[0][i];
    copy_free(&before);
    for (int s = 0; s < 4; s++) {
        training_step(&t);
        copy now = copy_of(&t);
        for (size_t i = 0; i < n; i++) {
            average[i] = 0.9 * average[i] + 0.1 * (double)now.arrays[0][i];
            /* three roundings a step of numbers below 1 (1/sqrt(18) and four steps of 0.001) */
            assert_true(fabs((double)now.arrays[3][i] - average[i]) <= 12 * 0x1p-24);
        }
        copy_free(&now);
    }
    copy trained = copy_of(&t);
    TRAINING_TRY(tr_trainer_evaluate(t.trainer, &(bool){false}));
    copy after = copy_of(&t);
    for (int k = 0; k < 4; k++)
        assert_memory_equal(trained.arrays[k], after.arrays[k], n * sizeof(float));
    double with_average = t.trainer->state.best;
    /* the same evaluation by hand: the average as weights, and an average that is no different */
    const size_t nowned = t.trainer->params->nowned;
    const tr_range *owned = t.trainer->params->owned;
    for (size_t r = 0; r < nowned; r++)
        training_put(&t, training_weights(&t) + owned[r].begin, trained.arrays[3] + owned[r].begin,
                     (owned[r].end - owned[r].begin) * sizeof(float));
    TRAINING_TRY(tr_reducer_publish(t.trainer->reducer));
    t.trainer->params_changed = true;
    t.trainer->state.best = NAN;
    TRAINING_TRY(tr_trainer_evaluate(t.trainer, &(bool){false}));
    assert_true(t.trainer->state.best == with_average);
    char *path = tr_sprintf("%s/model.h5", t.config->output);
    TRAINING_TRY(tr_checkpointer_write_model(t.trainer->checkpointer, path,
                                             tr_trainer_choice(t.trainer), &t.trainer->state,
                                             &t.trainer->history));
    if (t.rank == 0) check_file(&t, path, &trained, 3);
    tr_free(path);
    MPI_Barrier(MPI_COMM_WORLD);
    copy_free(&trained);
    copy_free(&after);
    tr_free(average);
    training_close(&t);
    training_folder_remove(&f);
}

static void test_average(void **state)
{
    (void)state;
    average_with("");
    average_with(", collectives: mpi, shard_optimizer: on");
}

static void write_start(training *t, const char *path)
{
    TRAINING_TRY(tr_checkpointer_write_model(t->trainer->checkpointer, path,
                                             tr_trainer_choice(t->trainer), &t->trainer->state,
                                             &t->trainer->history));
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What comes back to step 0 begins from the same values, or fails. */
static void test_start_that_changed(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    char *path = tr_sprintf("%s/start.h5", f.path);
    training t = training_open(f.path, DATA MODEL TRAIN, "", 0);
    write_start(&t, path);
    training_close(&t);
    t = training_open(f.path, DATA MODEL "  init_from: start.h5\n" TRAIN, "", TRAINING_FORCE);
    TRAINING_TRY(tr_trainer_initialize(t.trainer, true));
    TRAINING_TRY(tr_loader_seek(t.trainer->loader, 0));
    steps(&t, 2);
    write_start(&t, path);
    assert_true(tr_trainer_initialize(t.trainer, true) != TR_OK);
    if (t.rank == 0) assert_non_null(strstr(tr_last_error()->text, "is another file now"));
    training_close(&t);
    tr_free(path);
    training_folder_remove(&f);
}

/* Resuming with nothing there starts at step 0; a damaged newest file is passed over. */
static void second_is_of_no_use(bool unsound)
{
    training_folder f = training_folder_make();
    training t = training_open(f.path, DATA MODEL TRAIN, "", TRAINING_RESUME);
    assert_int_equal(t.trainer->state.step, 0);
    steps(&t, 1);
    save(&t, false);
    copy first = copy_of(&t);
    steps(&t, 1);
    const float nan = NAN;
    if (unsound) training_put(&t, t.trainer->params->states, &nan, sizeof nan);
    save(&t, false);
    if (t.rank == 0) assert_true(exists(&t, "checkpoints/step-00000002.h5"));
    training_close(&t);
    if (f.owner && !unsound) {
        char path[128];
        struct stat s;
        snprintf(path, sizeof path, "%s/run/checkpoints/step-00000002.h5", f.path);
        assert_int_equal(stat(path, &s), 0);
        assert_int_equal(truncate(path, s.st_size / 2), 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    t = training_open(f.path, DATA MODEL TRAIN, "", TRAINING_RESUME);
    copy back = copy_of(&t);
    same(&t, &first, &back);
    assert_int_equal(exists(&t, "checkpoints/step-00000002.h5.unsound"), unsound);
    training_close(&t);
    copy_free(&first);
    copy_free(&back);
    training_folder_remove(&f);
}

static void test_latest(void **state)
{
    (void)state;
    second_is_of_no_use(false); /* cut */
    second_is_of_no_use(true);  /* whole, but with a state that is not finite */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_other_ranks),
    cmocka_unit_test(test_other_sharding), cmocka_unit_test(test_rounded),
    cmocka_unit_test(test_busy),           cmocka_unit_test(test_failing),
    cmocka_unit_test(test_average),        cmocka_unit_test(test_start_that_changed),
    cmocka_unit_test(test_latest),
};

/* The victim of dead_peer.sh: the last rank dies while the others gather slots for a checkpoint. They
 * say so and end, and the one before is whole. */
static int die(void)
{
    training_folder f = training_folder_make();
    training t =
        training_open(f.path, DATA MODEL TRAIN, ", collectives: mpi, shard_optimizer: on", 0);
    bool said = true;
    double stall;
    steps(&t, 2);
    copy saved = copy_of(&t);
    save(&t, false);
    steps(&t, 1);
    if (t.rank == t.size - 1) raise(SIGKILL);
    const tr_checkpoint_kind kind = {.step_file = true, .sound = true};
    tr_status st = tr_checkpointer_save(t.trainer->checkpointer, &t.trainer->state,
                                        &t.trainer->history, kind, &stall);
    const bool waited = t.rank != 0 || st == TR_PEER; /* for what the dead rank holds */
    st = tr_agree(t.comm, st, &said);
    check_saved(&t, "checkpoints/step-00000002.h5", &saved, 0);
    if (said && waited && st != TR_OK && !exists(&t, "checkpoints/step-00000003.h5"))
        fprintf(stderr, "failed: %s\n", tr_last_error()->text);
    tr_comm_abort(t.comm, tr_status_exit_code(st));
    return 1;
}

int main(int argc, char **argv)
{
    int provided, rank, size, failed;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (argc > 1 && !strcmp(argv[1], "die")) return die();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    tr_log_init(rank, size, TR_LOG_ERROR);
    failed = RUN_RANK_TESTS(tests);
    MPI_Finalize();
    return failed;
}
