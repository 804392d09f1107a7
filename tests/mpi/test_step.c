/* ranks: 1 2 3 4 */
/* One optimizer step as the trainer takes it: every bucket reduced once however many micro-batches
 * there are, the same update from any cut of the batch, whoever owns what. */
#include "collectives/reducer/reducer.h"
#include "step.h"

#include <math.h>

/* ---- One reduction a bucket a step ----------------------------------------------------------- */

static void count_reductions(int64_t share, int64_t micro, const char *run)
{
    training_folder f = training_folder_make();
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *text = tr_sprintf(DATA MODEL "train: {steps: 100, batch: %lld, micro_batch: %lld}\n",
                            (long long)share * size, (long long)(share / micro));
    assert_non_null(text);
    char *seen = tr_sprintf("%s%s", run, SEEN);
    assert_non_null(seen);
    training t = training_open(f.path, text, seen, 0);
    assert_int_equal(t.trainer->micro_batches, micro);
    assert_true(t.model->nbuckets >= 3);
    for (uint64_t s = 1; s <= 9; s++) { /* past the short batch at the end of the epoch */
        training_step(&t);
        assert_int_equal(t.trainer->reducer->reductions, s * t.model->nbuckets);
    }
    training_close(&t);
    tr_free(seen);
    tr_free(text);
    training_folder_remove(&f);
}

static void test_reductions(void **state)
{
    (void)state;
    for (int64_t micro = 1; micro <= 3; micro += 2) {
        count_reductions(6, micro, ", bucket_mb: 0.001");
        count_reductions(6, micro, ", bucket_mb: 0.001, collectives: mpi");
        count_reductions(6, micro, ", bucket_mb: 0.001, collectives: mpi, shard_optimizer: on");
    }
}

/* ---- Any cut of the batch -------------------------------------------------------------------- */

enum { CUT_STEPS = 12 }; /* more than an epoch: 60 samples in batches of 7, the last has 4 */

/* SGD, whose update is linear in the gradient: rounding is not amplified. */
static float *train_cut(const char *folder, int flags, int64_t micro_batch, const char *run,
                        size_t *count, double losses[CUT_STEPS])
{
    char *text =
        tr_sprintf(DATA SMALL "train: {steps: 12, batch: 7, micro_batch: %lld, clip_norm: 0.5, "
                              "optimizer: {sgd: {lr: 0.1, momentum: 0.5}}}\n",
                   (long long)micro_batch);
    assert_non_null(text);
    training t = training_open(folder, text, run, TRAINING_FORCE | flags);
    for (int s = 0; s < CUT_STEPS; s++) {
        training_step(&t);
        losses[s] = t.trainer->loss;
    }
    training_weights_alike(&t);
    float *w = training_weights_copy(&t);
    *count = t.model->flat_count;
    training_close(&t);
    tr_free(text);
    return w;
}

/* Losses and weights against one rank with the whole batch at once. Another order of adding moves a
 * gradient by a few 2^-24 of it; twelve steps of 0.1 times a gradient of at most 0.5 leave weights
 * (of at most 1) within 2^-20. */
static void test_cuts(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    char own[96];
    int rank;
    size_t count;
    double want_losses[CUT_STEPS], losses[CUT_STEPS];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(own, sizeof own, "%s/rank%d", f.path, rank);
    float *want = train_cut(own, TRAINING_ALONE, 7, "", &count, want_losses);
    static const struct {
        const char *run;
        int nodes;
    } ways[] = {{"", 1},
                {", collectives: mpi", 1},
                {", collectives: mpi, shard_optimizer: on", 1},
                {", bucket_mb: 0.001", 2}, /* sharded by itself, on a GPU over NCCL */
                {", bucket_mb: 0.001", 3},
                {", shard_optimizer: off", 2}};
    for (int64_t micro = 1; micro <= 7; micro++) /* with 4 ranks some meet empty shares */
        for (size_t way = 0; way < TR_COUNT(ways); way++) {
            if (way > 2 && micro % 3 != 1) continue;
            training_nodes(ways[way].nodes);
            float *got = train_cut(f.path, 0, micro, ways[way].run, &count, losses);
            training_nodes(1);
            for (int s = 0; s < CUT_STEPS; s++)
                if (!(fabs(losses[s] - want_losses[s]) <= 0x1p-20 * want_losses[s]))
                    fail_msg("micro-batch %d: loss %d is %.9g, at once %.9g", (int)micro, s,
                             losses[s], want_losses[s]);
            for (size_t i = 0; i < count; i++)
                if (!(fabsf(got[i] - want[i]) <= 0x1p-20f))
                    fail_msg("micro-batch %d: weight %zu is %.9g, at once %.9g", (int)micro, i,
                             (double)got[i], (double)want[i]);
            tr_free(got);
        }
    tr_free(want);
    training_folder_remove(&f);
}

/* The sums are made in the same order whoever ends with them: the same bits, on CPU nodes. Plain
 * MPI has an order of its own, and on GPUs the gradient's norm is added up otherwise. */
static void test_sharding_changes_nothing(void **state)
{
    (void)state;
    static const char *const runs[] = {", shard_optimizer: off", ", shard_optimizer: on"};
    training_folder f = training_folder_make();
    float *w[2];
    size_t count;
    double losses[2][CUT_STEPS];
    if (training_on_gpu) {
        print_message("skipped: on GPUs the norm of what is sharded is summed in another order\n");
        training_folder_remove(&f);
        return;
    }
    for (int nodes = 2; nodes <= 3; nodes++) {
        training_nodes(nodes);
        for (int i = 0; i < 2; i++) w[i] = train_cut(f.path, 0, 3, runs[i], &count, losses[i]);
        training_nodes(1);
        int size;
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        if (size > nodes) { /* else one rank a node: MPI's sums against ours */
            assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
            assert_memory_equal(w[0], w[1], count * sizeof(float));
        }
        for (int i = 0; i < 2; i++) tr_free(w[i]);
    }
    training_folder_remove(&f);
}

/* ---- A stop is everybody's ------------------------------------------------------------------- */

static void test_time_limit(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    training t = training_open(
        f.path, DATA MODEL "train: {steps: 9, batch: 8, max_seconds: 0.001}\n", "", 0);
    training_step(&t);
    assert_true(t.trainer->stop);
    training_close(&t);
    training_folder_remove(&f);
}

/* ---- Whose statistics ------------------------------------------------------------------------ */

#define NORMED                                                                                     \
    "model:\n  input: [12]\n  layers:\n    - linear: {out: 32, name: one}\n"                       \
    "    - batchnorm: {name: norm, momentum: 1}\n    - relu\n    - linear: {out: 5}\n"             \
    "  loss: cross_entropy\n"

enum { NORMED_BATCH = 14, FEATURES = 32 };

/* The running statistics of this rank after so many steps: of the last batch, as momentum is 1.
 * shared: after rank 0's have become everybody's. */
static float *statistics(const char *sync, const char *run, int steps, bool shared)
{
    training_folder f = training_folder_make();
    char *text = tr_sprintf(DATA NORMED "train: {steps: 100, batch: %d, sync_batchnorm: %s}\n",
                            NORMED_BATCH, sync);
    assert_non_null(text);
    training t = training_open(f.path, text, run, 0);
    for (int s = 0; s < steps; s++) training_step(&t);
    if (shared) TRAINING_TRY(tr_trainer_share_states(t.trainer));
    assert_int_equal(t.model->state_count, 2 * FEATURES);
    float *v = training_copy(&t, t.trainer->params->states, t.model->state_count);
    if (shared) training_alike(&t, "statistics", v, t.model->state_count * sizeof *v);
    training_weights_alike(&t);
    training_close(&t);
    tr_free(text);
    training_folder_remove(&f);
    return v;
}

/* `mine`: each rank's own share's statistics. Merges those of the node that `rank` is on. */
static void merge_node(const float *mine, int nodes, int rank, int size, double *want)
{
    float all[4][2 * FEATURES];
    assert_true(size <= 4);
    MPI_Allgather(mine, 2 * FEATURES, MPI_FLOAT, all, 2 * FEATURES, MPI_FLOAT, MPI_COMM_WORLD);
    for (int c = 0; c < FEATURES; c++) {
        double count = 0, sum = 0, m2 = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int r = 0; r < size; r++) {
                if (r * nodes / size != rank * nodes / size) continue;
                const tr_range share = tr_share(60, NORMED_BATCH, 0, 1, 0, r, size);
                const double n = (double)(share.end - share.begin), mean = all[r][c];
                if (pass == 0) {
                    count += n;
                    sum += n * mean;
                    continue;
                }
                const double apart = mean - sum / count;
                m2 += all[r][FEATURES + c] * (n - 1) + n * apart * apart;
            }
        want[c] = sum / count;
        want[FEATURES + c] = m2 / (count - 1);
    }
}

/* train.sync_batchnorm: node: statistics of the node's samples, on each node its own, until rank
 * 0's are shared; on one node the same as all, to the bit. Nodes of unequal size, too. */
static void test_node_statistics(void **state)
{
    (void)state;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int nodes = 1; nodes <= 3 && nodes <= size; nodes++)
        for (int mpi = 0; mpi < 2; mpi++) {
            const char *run = mpi ? ", collectives: mpi" : "";
            char count[16];
            double want[2 * FEATURES];
            snprintf(count, sizeof count, "%d", nodes);
            setenv("TRIREME_FAKE_NODES", count, 1);
            float *none = statistics("none", run, 1, false);
            float *node = statistics("node", run, 1, false);
            float *shared = statistics("node", run, 6, true); /* with a short batch */
            merge_node(none, nodes, rank, size, want);
            for (int i = 0; i < 2 * FEATURES; i++)
                if (!(fabs(node[i] - want[i]) <= 1e-5 * (1 + fabs(want[i]))))
                    fail_msg("%d nodes: statistic %d is %.9g, not %.9g", nodes, i, node[i],
                             want[i]);
            if (nodes == 1) {
                float *all = statistics("all", run, 1, false);
                assert_memory_equal(node, all, sizeof(float) * 2 * FEATURES);
                tr_free(all);
            }
            tr_free(none);
            tr_free(node);
            tr_free(shared);
        }
    unsetenv("TRIREME_FAKE_NODES");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_reductions),
    cmocka_unit_test(test_cuts),
    cmocka_unit_test(test_sharding_changes_nothing),
    cmocka_unit_test(test_time_limit),
    cmocka_unit_test(test_node_statistics),
};

RUN_MPI_TESTS(tests)
