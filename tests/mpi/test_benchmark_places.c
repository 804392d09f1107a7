/* ranks: 1 2 3 */
/* Places of the stage `benchmark`: one that cannot be had on some rank is gone on without, on all
 * ranks alike, also a GPU that others have filled; a rank that has no memory for CPUs ends the job
 * on all. */
#include "modes.h"

#include "optimize/evaluation/evaluation.h"
#include "optimize/stages/benchmark_models.h"

#include <string.h>

typedef struct {
    tr_device device;
    tr_status fails; /* what it fails with, on one rank */
    int rank;
    int open;
} machine;

static int *opened;

static void close_one(void *ctx)
{
    (void)ctx;
    --*opened;
}

static const tr_backend backend = {.name = "cpu", .host = true, .close = close_one};

/* tr_stage_job.open_device */
static tr_status open_device(const tr_stage_job *job, tr_device device, tr_precision precision,
                             tr_stage_device *out)
{
    machine *m = job->trainer;
    (void)precision;
    if (device == m->device) {
        const bool here = tr_comm_topology(job->comm)->rank == m->rank;
        return tr_agree(job->comm, here ? TR_FAIL(m->fails, "this one") : TR_OK, NULL);
    }
    m->open++;
    *out = (tr_stage_device){.backend = &backend, .threads = 1};
    return TR_OK;
}

/* *Collective.* Of [cpu, cuda, cpu-bf16]. */
static tr_status open_places(tr_comm *c, machine *on, tr_benchmark_models *m)
{
    static const char text[] = "[cpu, cuda, cpu-bf16]";
    static const char file[] = TR_SOURCE_DIR "/tests/e2e/old/step-00000010.h5";
    static const tr_config config = {.name = "places"};
    const tr_evaluator_options eo = {.comm = c, .config = &config};
    tr_document places = {0};
    tr_evaluator *e = NULL;
    opened = &on->open;
    assert_int_equal(tr_document_parse("backends", text, strlen(text), &places), TR_OK);
    assert_int_equal(tr_evaluator_open(&eo, &e), TR_OK);
    const tr_stage_job job = {.config = &config,
                              .comm = c,
                              .evaluator = e,
                              .file = file,
                              .open_device = open_device,
                              .trainer = on};
    const tr_status st = tr_benchmark_models_open(&job, NULL, places.root, TR_BENCHMARK_AUTO, m);
    tr_benchmark_models_close(m);
    assert_int_equal(on->open, 0);
    tr_evaluator_close(e);
    tr_document_close(&places);
    return st;
}

static void check(tr_comm *c, machine one)
{
    const bool cpu = one.device == TR_DEVICE_CPU;
    tr_benchmark_models m;
    const tr_status st = open_places(c, &one, &m);
    assert_false(tr_comm_broken(c));
    if (cpu && one.fails == TR_MEMORY) {
        assert_int_equal(st, tr_comm_topology(c)->rank == one.rank ? TR_MEMORY : TR_PEER);
        assert_non_null(strstr(tr_last_error()->text, "this one"));
        return;
    }
    assert_int_equal(st, TR_OK);
    assert_int_equal(m.nplaces, cpu ? 1 : 2);
    assert_int_equal(m.nmissing, cpu ? 2 : 1);
    assert_string_equal(m.missing[0].place, cpu ? "cpu" : "cuda");
    assert_non_null(strstr(m.missing[0].why, "this one"));
}

static void test_cannot_run(void **state)
{
    static const tr_device devices[] = {TR_DEVICE_CPU, TR_DEVICE_CUDA};
    static const tr_status reasons[] = {TR_UNSUPPORTED, TR_KERNEL, TR_MEMORY};
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    for (size_t d = 0; d < TR_COUNT(devices); d++)
        for (size_t i = 0; i < TR_COUNT(reasons); i++)
            for (int rank = 0; rank < tr_comm_topology(c)->size; rank++)
                check(c, (machine){.device = devices[d], .fails = reasons[i], .rank = rank});
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_cannot_run),
};

RUN_MPI_TESTS(tests)
