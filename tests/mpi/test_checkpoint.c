/* ranks: 1 2 3 4 */
/* Checkpoints: what was saved comes back bit by bit, on the same ranks and on others; what is of no
 * use is passed over. */
#include "checkpoint.h"

#include <sys/stat.h>

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

/* Without a snapshot: the same from the arrays as they lie, wherever that is; the file of either
 * goes on with the other. */
static void test_no_copies(void **state)
{
    (void)state;
    static const char *const runs[] = {"", ", collectives: mpi",
                                       ", bucket_mb: 0.001, shard_optimizer: off"};
    const char *const configs[] = {DATA MODEL TRAIN_AT_END, DATA MODEL TRAIN};
    for (size_t i = 0; i < TR_COUNT(runs); i++) {
        if (i == 2) training_nodes(2);
        round_trip_of(configs[0], runs[i]);
        training_folder f = training_folder_make();
        training t = training_open(f.path, configs[i % 2], runs[i], 0);
        steps(&t, 4);
        copy last = copy_of(&t);
        save(&t, false);
        training_close(&t);
        t = training_open(f.path, configs[1 - i % 2], runs[i], TRAINING_RESUME);
        copy back = copy_of(&t);
        same(&t, &last, &back);
        copy_free(&last);
        copy_free(&back);
        training_close(&t);
        training_folder_remove(&f);
    }
    training_nodes(1);
}

/* It is held where it is planned: on rank 0, where something is saved before the end. */
static void test_snapshot_is_planned(void **state)
{
    (void)state;
    for (int held = 0; held < 2; held++) {
        training_folder f = training_folder_make();
        training t =
            training_open(f.path, held ? DATA MODEL TRAIN : DATA MODEL TRAIN_AT_END, "", 0);
        tr_memory_total planned;
        tr_predicted_memory(t.trainer, &planned);
        const size_t is = tr_mem_held(TR_MEM_SNAPSHOT);
        assert_int_equal(planned.bytes[TR_SPACE_HOST][TR_MEM_SNAPSHOT], is);
        assert_int_equal(is > 0, t.rank == 0 && (held || training_on_gpu));
        training_close(&t);
        training_folder_remove(&f);
    }
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

/* In mixed precision a sharded job hands weights on as 16-bit copies: losses, files and what goes
 * on from these have the same bits as those of a job that keeps all of them everywhere. */
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
    cmocka_unit_test(test_round_trip),          cmocka_unit_test(test_no_copies),
    cmocka_unit_test(test_snapshot_is_planned), cmocka_unit_test(test_other_ranks),
    cmocka_unit_test(test_other_sharding),      cmocka_unit_test(test_rounded),
    cmocka_unit_test(test_start_that_changed),  cmocka_unit_test(test_latest),
};

RUN_MPI_TESTS(tests)
