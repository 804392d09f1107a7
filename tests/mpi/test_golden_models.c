/* ranks: 3 long: 1 2 4 */
/* Ten steps of whole models against PyTorch in float64 (tests/golden/runs.h5): losses and gradient
 * norms through the real trainer, at every rank count, with shared memory and plain MPI, with
 * recomputation, and with the batch cut into micro-batches.
 *
 * Tolerance. Rounding moves a run away from the exact one, and training amplifies it (in AdamW's
 * first steps, whose updates go by the gradient's sign, without bound). How far it does is measured
 * by PyTorch itself: the distance of its float32 run from its float64 run. We add in another order,
 * so we may be off by another draw of that size, and, with a distance that grows up to tenfold a
 * step, by what PyTorch shows a step later: at step s, eight times PyTorch's largest relative
 * distance up to step s + 1, and at least 2^-20 for losses and 2^-16 for norms, which are sums over
 * up to 670,000 squares and, in PyTorch's float32, off by 1e-6 to 5e-6 in the first step. The first
 * loss and norm, which no update has touched, get the least alone. */
#include "training.h"

#include <hdf5.h>

enum { STEPS = 10, DATA = 1, LABEL = 2, PARAM = 16 };

/* ---- Numbers from an index: tests/golden/formula.py ------------------------------------------ */

static uint32_t word(uint32_t stream, uint32_t i)
{
    uint32_t x = i + stream * 0x9E3779B9u;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ x >> 16;
}

static float symmetric(uint32_t stream, uint32_t i)
{
    return (float)(word(stream, i) >> 8) * 0x1p-24f * 2.0f - 1.0f;
}

/* ---- The models ------------------------------------------------------------------------------ */

#define CONV_BN(out, k, stride, pad)                                                               \
    "{conv2d: {out: " #out ", kernel: " #k ", stride: " #stride ", padding: " #pad                 \
    ", bias: false}}, batchnorm"
#define BODY(out, stride) "[" CONV_BN(out, 3, stride, 1) ", relu, " CONV_BN(out, 3, 1, 1) "]"
#define BLOCK(out)        "    - residual: {body: " BODY(out, 1) "}\n    - relu\n"
#define DOWN(out)                                                                                  \
    "    - residual: {body: " BODY(out, 2) ", shortcut: [" CONV_BN(out, 1, 2, 0) "]}\n    - "      \
                                                                                 "relu\n"
#define RESNET20                                                                                   \
    "  input: [3, 32, 32]\n  layers:\n"                                                            \
    "    - conv2d: {out: 16, kernel: 3, padding: 1, bias: false}\n    - batchnorm\n    - "         \
    "relu\n" BLOCK(16) BLOCK(16) BLOCK(16) DOWN(32) BLOCK(32) BLOCK(32) DOWN(64) BLOCK(64)         \
        BLOCK(64) "    - global_avgpool\n    - flatten\n    - linear: {out: 10}\n"
#define MLP                                                                                        \
    "  input: [784]\n  layers:\n"                                                                  \
    "    - linear: {out: 512}\n    - relu\n    - linear: {out: 512}\n    - relu\n"                 \
    "    - linear: {out: 10}\n"
#define TIED                                                                                       \
    "  input: [96]\n  layers:\n"                                                                   \
    "    - linear: {out: 96}\n    - relu\n    - linear: {out: 96}\n    - relu\n"                   \
    "    - linear: {out: 96, weight_of: linear2}\n    - relu\n"                                    \
    "    - linear: {out: 96, freeze: true}\n    - relu\n"                                          \
    "    - linear: {out: 96, lr_factor: 0.5, decay_factor: 8}\n    - relu\n"                       \
    "    - linear: {out: 96, weight_of: linear2, bias: false}\n    - relu\n"                       \
    "    - linear: {out: 10}\n"
/* The same, where the training says what the layers did. */
#define PLAIN                                                                                      \
    "  input: [96]\n  layers:\n"                                                                   \
    "    - linear: {out: 96}\n    - relu\n    - linear: {out: 96}\n    - relu\n"                   \
    "    - linear: {out: 96, weight_of: linear2}\n    - relu\n"                                    \
    "    - linear: {out: 96}\n    - relu\n    - linear: {out: 96}\n    - relu\n"                   \
    "    - linear: {out: 96, weight_of: linear2, bias: false}\n    - relu\n"                       \
    "    - linear: {out: 10}\n"
#define GROUPS                                                                                     \
    ", freeze: linear4.*, groups: [{match: \"linear5.*\", lr: 0.0005, weight_decay: 0.08}]"
#define SMALL                                                                                      \
    "  input: [3, 9, 9]\n  layers:\n"                                                              \
    "    - conv2d: {out: 8, kernel: 3, bias: false}\n    - batchnorm\n    - relu\n"                \
    "    - conv2d: {out: 6, kernel: 3, stride: 2, bias: false}\n    - batchnorm\n    - relu\n"     \
    "    - flatten\n    - linear: {out: 10}\n"
#define PLAIN_MLP                                                                                  \
    "  input: [96]\n  layers:\n"                                                                   \
    "    - linear: {out: 96}\n    - relu\n    - linear: {out: 96}\n    - relu\n"                   \
    "    - linear: {out: 10}\n"
#define ADAMW "adamw: {lr: 0.001, weight_decay: 0.01}"

typedef struct {
    const char *name; /* group of runs.h5 */
    const char *layers, *optimizer;
    int batch;
    size_t elements; /* of a sample */
    const char *dims;
    int lacks; /* samples that the last step has less */
} golden;

static const golden mlp = {"mlp", MLP, ADAMW, 128, 784, "1280, 784", 0};
static const golden resnet20 = {"resnet20", RESNET20, ADAMW, 32, 3072, "320, 3, 32, 32", 0};
static const golden resnet20_sgd = {
    "resnet20_sgd", RESNET20, "sgd: {lr: 0.01, momentum: 0.9}", 32, 3072, "320, 3, 32, 32", 0};

static const golden tied = {"tied", TIED, ADAMW, 64, 96, "640, 96", 0};

static const golden optimizers[] = {
    {"adam", PLAIN_MLP, "adam: {lr: 0.001, weight_decay: 0.05}", 64, 96, "640, 96", 0},
    {"rmsprop", PLAIN_MLP,
     "rmsprop: {lr: 0.001, alpha: 0.9, eps: 0.001, momentum: 0.9, centered: true, weight_decay: "
     "0.05}",
     64, 96, "640, 96", 0},
    {"lars", PLAIN_MLP, "lars: {lr: 0.5, trust_coefficient: 0.02, weight_decay: 0.05}", 64, 96,
     "640, 96", 0},
    {"lamb", PLAIN_MLP, "lamb: {lr: 0.01, weight_decay: 0.05}", 64, 96, "640, 96", 0},
};

static const golden accumulate = {"accumulate",   SMALL, "sgd: {lr: 0.01, momentum: 0.9}", 22, 243,
                                  "208, 3, 9, 9", 12};

typedef struct {
    double loss[STEPS], norm[STEPS];
    char weights[65];
} outcome;

static void read_column(hid_t group, const char *name, double *to)
{
    const hid_t d = H5Dopen2(group, name, H5P_DEFAULT), space = H5Dget_space(d);
    assert_true(d >= 0 && H5Sget_simple_extent_npoints(space) == STEPS);
    assert_true(H5Dread(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) >= 0);
    H5Sclose(space);
    H5Dclose(d);
}

/* In the tree that this was built from; TR_SOURCE_DIR in the environment: where that was carried
 * to. */
static void read_golden(const golden *g, outcome *exact, outcome *rounded)
{
    const char *carried = getenv("TR_SOURCE_DIR");
    char *path = tr_sprintf("%s/tests/golden/runs.h5", carried ? carried : TR_SOURCE_DIR);
    assert_non_null(path);
    const hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    tr_free(path);
    const hid_t group = H5Gopen2(file, g->name, H5P_DEFAULT);
    assert_true(group >= 0);
    read_column(group, "loss_float64", exact->loss);
    read_column(group, "grad_norm_float64", exact->norm);
    read_column(group, "loss_float32", rounded->loss);
    read_column(group, "grad_norm_float32", rounded->norm);
    H5Gclose(group);
    H5Fclose(file);
}

static void write_data(const golden *g, const training_folder *f)
{
    if (f->owner) {
        size_t samples = STEPS * (size_t)g->batch - (size_t)g->lacks, n = samples * g->elements;
        float *x = calloc(n, sizeof *x);
        int32_t *labels = calloc(samples, sizeof *labels);
        char dims[32];
        assert_true(x && labels);
        for (size_t i = 0; i < n; i++) x[i] = symmetric(DATA, (uint32_t)i);
        for (size_t s = 0; s < samples; s++) labels[s] = (int32_t)(word(LABEL, (uint32_t)s) % 10);
        training_write_npy(f->path, "x.npy", "<f4", g->dims, x, n * sizeof *x);
        snprintf(dims, sizeof dims, "%zu,", samples);
        training_write_npy(f->path, "y.npy", "<i4", dims, labels, samples * sizeof *labels);
        free(x);
        free(labels);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static float initial(const tr_param *p, size_t row, size_t i)
{
    const float bound = p->fan_in > 0 ? 1.0f / sqrtf((float)p->fan_in) : 0;
    return bound > 0 ? symmetric(PARAM + (uint32_t)row, (uint32_t)i) * bound
                     : (float)(strcmp(p->name, "weight") == 0);
}

static void set_weights(training *t)
{
    const tr_params *p = t->trainer->params;
    float *w = training_weights_copy(t);
    for (size_t row = 0; row < t->model->nparams; row++) {
        const tr_param *a = &t->model->params[row];
        for (size_t i = 0; i < a->count; i++) w[a->offset + i] = initial(a, row, i);
    }
    for (size_t k = 0; k <= p->nowned; k++) {
        const tr_range mine = k < p->nowned ? p->owned[k] : p->frozen;
        training_put(t, training_weights(t) + mine.begin, w + mine.begin,
                     tr_range_count(mine) * sizeof *w);
    }
    tr_free(w);
    TRAINING_TRY(tr_reducer_publish(t->trainer->reducer));
    t->trainer->params_changed = true;
}

/* Bit for bit: frozen parameters never move. */
static void check_frozen(const training *t, const float *w)
{
    for (size_t row = 0; row < t->model->nparams; row++) {
        const tr_param *p = &t->model->params[row];
        for (size_t i = 0; p->frozen && i < p->count; i++)
            assert_true(w[p->offset + i] == initial(p, row, i));
    }
}

/* `train`, `run`: more keys of these blocks, each with a comma before it. */
static outcome train(const golden *g, const training_folder *f, const char *more, const char *run)
{
    outcome o = {0};
    char *text = tr_sprintf("data:\n"
                            "  train: {format: npy, inputs: x.npy, labels: y.npy}\n"
                            "  shuffle: false\n"
                            "model:\n%s  loss: cross_entropy\n"
                            "train: {steps: %d, batch: %d, clip_norm: 1.0, optimizer: {%s}%s}\n",
                            g->layers, STEPS, g->batch, g->optimizer, more);
    assert_non_null(text);
    training t = training_open(f->path, text, run, TRAINING_FORCE);
    set_weights(&t);
    for (int s = 0; s < STEPS; s++) {
        training_step(&t);
        assert_null(t.trainer->skipped);
        o.loss[s] = t.trainer->loss;
        o.norm[s] = t.trainer->grad_norm;
    }
    training_weights_alike(&t);
    float *w = training_weights_copy(&t);
    check_frozen(&t, w);
    tr_sha256_hex(w, t.model->flat_count * sizeof *w, o.weights);
    tr_free(w);
    training_close(&t);
    tr_free(text);
    return o;
}

static void near(const golden *g, const char *what, const double *got, const double *want,
                 const double *rounded, double least)
{
    double drift = 0, worst = 0, most = 0;
    for (int s = 0; s < STEPS; s++) {
        int next = s + 1 < STEPS ? s + 1 : s;
        if (s > 0) drift = fmax(drift, fabs(rounded[next] - want[next]) / want[next]);
        double tolerance = fmax(8 * drift, least), off = fabs(got[s] - want[s]) / want[s];
        if (!(off <= tolerance))
            fail_msg("%s: %s of step %d is %.9g, PyTorch's %.9g: off by %.2g of it, %.2g is "
                     "allowed",
                     g->name, what, s, got[s], want[s], off, tolerance);
        worst = fmax(worst, off / tolerance);
        most = fmax(most, off);
    }
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        print_message("%s: %s off by at most %.1e, %.0f %% of what is allowed\n", g->name, what,
                      most, worst * 100);
}

static void compare(const golden *g, const outcome *got)
{
    outcome exact, rounded;
    read_golden(g, &exact, &rounded);
    near(g, "the loss", got->loss, exact.loss, rounded.loss, 0x1p-20);
    near(g, "the gradient norm", got->norm, exact.norm, rounded.norm, 0x1p-16);
}

static void same(const char *what, const outcome *a, const outcome *b)
{
    for (int s = 0; s < STEPS; s++)
        if (a->loss[s] != b->loss[s] || a->norm[s] != b->norm[s])
            fail_msg("%s: step %d has loss %.17g and norm %.17g, without it %.17g and %.17g", what,
                     s, b->loss[s], b->norm[s], a->loss[s], a->norm[s]);
    assert_string_equal(a->weights, b->weights);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_mlp(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    write_data(&mlp, &f);
    outcome plain = train(&mlp, &f, "", "");
    compare(&mlp, &plain);
    outcome again = train(&mlp, &f, "", "");
    same("the same once more", &plain, &again);
    again = train(&mlp, &f, ", recompute: {every: 2}", "");
    same("recompute every 2", &plain, &again);
    again = train(&mlp, &f, ", recompute: blocks", "");
    same("recompute blocks", &plain, &again);
    again = train(&mlp, &f, ", micro_batch: 11", ""); /* shares that do not divide evenly */
    compare(&mlp, &again);
    again = train(&mlp, &f, ", micro_batch: 16", ", bucket_mb: 0.2");
    compare(&mlp, &again);
    again = train(&mlp, &f, "", ", collectives: mpi");
    compare(&mlp, &again);
    training_folder_remove(&f);
}

/* A weight that three layers use, behind and before frozen ones and factors. */
static void test_tied(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    write_data(&tied, &f);
    outcome plain = train(&tied, &f, "", "");
    compare(&tied, &plain);
    outcome again = train(&tied, &f, ", recompute: {every: 3}", "");
    same("recompute every 3", &plain, &again);
    golden grouped = tied;
    grouped.layers = PLAIN;
    again = train(&grouped, &f, GROUPS, "");
    same("groups of the training", &plain, &again);
    again = train(&tied, &f, ", micro_batch: 7", ", bucket_mb: 0.02"); /* several buckets */
    compare(&tied, &again);
    outcome parts = train(&grouped, &f, ", micro_batch: 7" GROUPS, ", bucket_mb: 0.02");
    same("groups of the training, in micro-batches", &again, &parts);
    again = train(&tied, &f, "", ", collectives: mpi");
    compare(&tied, &again);
    training_folder_remove(&f);
}

/* Others than AdamW and SGD, with all ways in which ranks share them: the norms of LARS and LAMB
 * are those of whole parameters. */
static void test_optimizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(optimizers); i++) {
        const golden *g = &optimizers[i];
        training_folder f = training_folder_make();
        write_data(g, &f);
        outcome plain = train(g, &f, "", "");
        compare(g, &plain);
        outcome again = train(g, &f, "", "");
        same("the same once more", &plain, &again);
        again = train(g, &f, ", micro_batch: 7", ", bucket_mb: 0.02");
        compare(g, &again);
        again = train(g, &f, "", ", collectives: mpi, shard_optimizer: on");
        compare(g, &again);
        again = train(g, &f, "", ", collectives: mpi, shard_optimizer: off");
        compare(g, &again);
        training_folder_remove(&f);
    }
}

/* PyTorch's gradient accumulation, where batchnorm sees a micro-batch of all ranks: of 6, 6, 5 and
 * 5 samples, the short last step's of 5 and 5. */
static void test_accumulate(void **state)
{
    (void)state;
    training_folder f = training_folder_make();
    write_data(&accumulate, &f);
    outcome plain = train(&accumulate, &f, ", accumulate: 4", "");
    compare(&accumulate, &plain);
    outcome again = train(&accumulate, &f, ", accumulate: 4, recompute: {every: 3}", "");
    same("recompute every 3", &plain, &again);
    again = train(&accumulate, &f, ", accumulate: 4", ", collectives: mpi");
    compare(&accumulate, &again);
    training_folder_remove(&f);
}

static void test_resnet(const golden *g, bool all)
{
    training_folder f = training_folder_make();
    write_data(g, &f);
    outcome plain = train(g, &f, "", "");
    compare(g, &plain);
    if (all) {
        outcome again = train(g, &f, ", recompute: blocks", "");
        same("recompute blocks", &plain, &again);
        again = train(g, &f, ", recompute: {every: 4}", "");
        same("recompute every 4", &plain, &again);
        again = train(g, &f, "", ", collectives: mpi");
        compare(g, &again);
    }
    training_folder_remove(&f);
}

static void test_resnet20(void **state)
{
    (void)state;
    test_resnet(&resnet20, false);
}

static void test_resnet20_sgd(void **state)
{
    (void)state;
    test_resnet(&resnet20_sgd, true);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_mlp),        cmocka_unit_test(test_tied),
    cmocka_unit_test(test_optimizers), cmocka_unit_test(test_accumulate),
    cmocka_unit_test(test_resnet20),   cmocka_unit_test(test_resnet20_sgd),
};

RUN_MPI_TESTS(tests)
