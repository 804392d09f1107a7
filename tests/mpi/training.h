/* A training run inside a test: config text in, an open trainer out, on every rank.
 *
 *     training_folder f = training_folder_make();       // one for all ranks
 *     training t = training_open(f.path, text, 0);
 *     training_step(&t);
 *     training_close(&t);
 *     training_folder_remove(&f);
 *
 * The run's output is FOLDER/run; data paths are relative to FOLDER.
 *
 * TRAINING_DEVICE, defined before: a GPU trains; a test that must know asks training_on_gpu. Arrays
 * of the trainer lie in the backend's memory: read and write them with training_get and
 * training_put. */
#ifndef TR_TESTS_TRAINING_H
#define TR_TESTS_TRAINING_H

#include "modes.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "trainer/run/run_folder.h"
#include "trainer/loop/trainer.h"

#ifdef TRAINING_DEVICE
enum { training_on_gpu = 1 };
#else
#define TRAINING_DEVICE "cpu"
enum { training_on_gpu = 0 };
#endif

typedef struct {
    char path[64];
    bool owner;
} training_folder;

static inline training_folder training_folder_make(void)
{
    training_folder f = {.path = "training-XXXXXX"};
    int rank, made = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    f.owner = rank == 0;
    if (f.owner) made = mkdtemp(f.path) != NULL;
    MPI_Bcast(&made, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Bcast(f.path, sizeof f.path, MPI_CHAR, 0, MPI_COMM_WORLD);
    assert_true(made);
    return f;
}

static inline void training_folder_remove(const training_folder *f)
{
    char command[128];
    MPI_Barrier(MPI_COMM_WORLD);
    if (!f->owner) return;
    snprintf(command, sizeof command, "rm -r '%s'", f->path);
    assert_int_equal(system(command), 0);
}

enum {
    TRAINING_RESUME = 1,
    TRAINING_FORCE = 2,
    TRAINING_ALONE = 4 /* this rank by itself, without MPI */
};

typedef struct {
    tr_comm *comm;
    tr_config *config;
    tr_model *model;
    tr_trainer *trainer;
    char *text;
    int rank, size;
    tr_run_folder *folder; /* rank 0's */
} training;

/* Trainings opened from now on pretend to be on so many nodes. Not on GPUs: there each rank of the
 * one machine needs its own. */
static inline void training_nodes(int nodes)
{
    char text[16];
    snprintf(text, sizeof text, "%d", training_on_gpu ? 1 : nodes);
    setenv("TRIREME_FAKE_NODES", text, 1);
}

#define TRAINING_TRY(expr)                                                                         \
    do {                                                                                           \
        if ((expr) != TR_OK) fail_msg("%s: %s", #expr, tr_last_error()->text);                     \
    } while (0)

/* `text`: the config but for its name, seed, output and run (in which more may stand behind the
 * number of threads). */
static inline training training_open(const char *folder, const char *text, const char *run,
                                     int flags)
{
    training t = {0};
    size_t n;
    char *file = tr_sprintf("%s/config.yaml", folder);
    char *whole = tr_sprintf("name: test\nseed: 5\noutput: %s/run\ndevice: " TRAINING_DEVICE
                             "\nrun: {threads: 1, affinity: none, timeout: 60, "
                             "deterministic: on%s}\n%s", /* most tests compare bits */
                             folder, run, text);
    assert_true(file && whole);
    TRAINING_TRY(tr_config_open(file, whole, strlen(whole), NULL, 0, NULL, &t.config));
    FILE *f = open_memstream(&t.text, &n);
    assert_non_null(f);
    TRAINING_TRY(tr_config_write(t.config, f));
    fclose(f);
    tr_free(file);
    tr_free(whole);
    tr_comm_options co = {.mpi = !(flags & TRAINING_ALONE),
                          .shared_allowed = t.config->run.collectives != TR_COLL_MPI,
                          .timeout = t.config->run.timeout};
    TRAINING_TRY(tr_comm_open(&co, &t.comm));
    t.rank = tr_comm_topology(t.comm)->rank;
    t.size = tr_comm_topology(t.comm)->size;
    TRAINING_TRY(tr_train_model(t.config, &t.model));
    tr_status st = t.rank == 0 ? tr_run_folder_open(t.config->output, flags & TRAINING_RESUME,
                                                    flags & TRAINING_FORCE, &t.folder)
                               : TR_OK;
    TRAINING_TRY(tr_agree(t.comm, st, NULL));
    tr_trainer_options o = {.comm = t.comm,
                            .config = t.config,
                            .config_text = t.text,
                            .model = t.model,
                            .folder = t.folder,
                            .resume = flags & TRAINING_RESUME,
                            .quiet = true};
    TRAINING_TRY(tr_trainer_open(&o, &t.trainer));
    TRAINING_TRY(tr_report_begin(t.trainer));
    return t;
}

static inline void training_close(training *t)
{
    tr_trainer_close(t->trainer);
    tr_model_close(t->model);
    tr_comm_close(t->comm);
    tr_config_close(t->config);
    free(t->text);
    tr_run_folder_close(t->folder);
    *t = (training){0};
}

/* Issues one step and collects it. */
static inline tr_status training_try_step(training *t)
{
    const tr_status st = tr_trainer_issue(t->trainer);
    return st == TR_OK ? tr_trainer_collect(t->trainer) : st;
}

static inline void training_step(training *t)
{
    TRAINING_TRY(training_try_step(t));
}

/* Every rank holds the same bytes. */
static inline void training_alike(const training *t, const char *what, const void *v, size_t nbytes)
{
    char mine[65], all[16][65];
    tr_sha256_hex(v, nbytes, mine);
    assert_true(t->size <= 16);
    TRAINING_TRY(tr_comm_all_gather(t->comm, mine, all, sizeof mine));
    for (int r = 0; r < t->size; r++)
        if (strcmp(all[r], all[0]) != 0) fail_msg("%s of rank %d are not rank 0's", what, r);
}

/* In the backend's memory. */
static inline float *training_weights(const training *t)
{
    return t->trainer->params->weights;
}

static inline void training_get(const training *t, void *to, const void *from, size_t nbytes)
{
    TRAINING_TRY(t->trainer->backend->memory->download(t->trainer->backend_ctx, to, from, nbytes));
}

static inline void training_put(const training *t, void *to, const void *from, size_t nbytes)
{
    TRAINING_TRY(t->trainer->backend->memory->upload(t->trainer->backend_ctx, to, from, nbytes));
}

/* A copy of an array in the backend's memory; free with tr_free. */
static inline float *training_copy(const training *t, const float *from, size_t count)
{
    float *v = tr_alloc(TR_MEM_OTHER, count, sizeof *v);
    assert_non_null(v);
    training_get(t, v, from, count * sizeof *v);
    return v;
}

/* The weights as this rank sees them. */
static inline float *training_weights_copy(const training *t)
{
    return training_copy(t, training_weights(t), t->model->flat_count);
}

static inline void training_weights_alike(const training *t)
{
    float *w = training_weights_copy(t);
    training_alike(t, "weights", w, t->model->flat_count * sizeof *w);
    tr_free(w);
}

static inline const tr_param *training_param(const training *t, const char *layer, const char *name)
{
    for (size_t i = 0; i < t->model->nparams; i++) {
        const tr_param *p = &t->model->params[i];
        if (strcmp(p->layer, layer) == 0 && strcmp(p->name, name) == 0) return p;
    }
    fail_msg("no parameter %s.%s", layer, name);
    return NULL;
}

/* NPY, version 1: `dims` as a Python tuple's inside, "8, 3,". */
static inline void training_write_npy(const char *folder, const char *name, const char *type,
                                      const char *dims, const void *v, size_t nbytes)
{
    char path[128], head[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int n = snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                     type, dims);
    uint8_t start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    int padded = (n + 1 + 10 + 63) / 64 * 64 - 10;
    start[8] = (uint8_t)padded;
    start[9] = (uint8_t)(padded >> 8);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(start, 1, 10, f), 10);
    assert_int_equal(fprintf(f, "%-*s\n", padded - 1, head), padded);
    assert_int_equal(fwrite(v, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

#endif
