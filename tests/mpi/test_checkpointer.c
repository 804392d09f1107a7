/* ranks: 1 2 3 4 */
/* The trainer's checkpointer: the writer while it is busy; a write that fails; a rank that dies;
 * the moving average. */
#include "checkpoint.h"

#include <signal.h>
#include <sys/stat.h>

/* Saves in a row: each waits for the writer, and each file holds its own step, not a later one. */
static void busy_with(const char *text)
{
    training_folder f = training_folder_make();
    training t = training_open(f.path, text, "", 0);
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

static void test_busy(void **state)
{
    (void)state;
    busy_with(DATA MODEL TRAIN);
    busy_with(DATA MODEL TRAIN_AT_END); /* at once, with all ranks waiting */
}

/* The folder is gone: the write fails and says so, training goes on, and so do later writes. */
static void failing_with(const char *text)
{
    training_folder f = training_folder_make();
    char from[96], to[96];
    double stall;
    snprintf(from, sizeof from, "%s/run/checkpoints", f.path);
    snprintf(to, sizeof to, "%s/away", f.path);
    training t = training_open(f.path, text, "", 0);
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

static void test_failing(void **state)
{
    (void)state;
    failing_with(DATA MODEL TRAIN);
    failing_with(DATA MODEL TRAIN_AT_END);
}

/* ema = 0.9 ema + 0.1 w after every update, from the first weights; an evaluation with it leaves
 * the weights as they were; the model file holds it. */
static void average_with(const char *text, const char *run)
{
    training_folder f = training_folder_make();
    training t = training_open(f.path, text, run, 0);
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
    average_with(DATA MODEL TRAIN, "");
    average_with(DATA MODEL TRAIN, ", collectives: mpi, shard_optimizer: on");
    average_with(DATA MODEL TRAIN_AT_END, "");
    average_with(DATA MODEL TRAIN_AT_END, ", collectives: mpi");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_busy),
    cmocka_unit_test(test_failing),
    cmocka_unit_test(test_average),
};

/* The victim of dead_peer.sh: the last rank dies while the others gather slots for a checkpoint.
 * They say so and end, and the one before is whole. */
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
