/* ranks: 1 2 3 4 */
/* standin */
/* The reducers of devices, NCCL and MPI through the host: sums against plain ones, one order of
 * gathers and buckets however ranks get ready, recorded steps, who gets which GPU.
 * With the arguments `die nccl|mpi` it is the victim of dead_peer.sh, with `fault nccl|mpi` that of
 * gpu_faults.sh: steps until something goes wrong, and then every rank says what it heard. */
#include "gpu_bench.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "collectives/nccl/internal.h"

static void test_sums(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++)
        for (size_t l = 0; l < TR_COUNT(layouts); l++) {
            if (kinds[k].mode == 2 && l == 2) continue; /* a thousand requests show no more */
            bench b = open_bench(&kinds[k], &layouts[l], 30);
            for (int step = 0; step < 4; step++) {
                /* the first step decides the order: an empty share among others, and not */
                int way = (b.t->rank + (int)l) % 4;
                check(&b, feed(&b, step));
                check(&b, run(&b, way));
                check_step(&b, step);
                assert_int_equal(b.r->reductions, (uint64_t)(step + 1) * b.l->nbuckets);
            }
            if (b.t->size == 1)
                assert_string_equal(tr_reducer_name(b.r), "one rank");
            else if (kinds[k].nccl)
                assert_memory_equal(tr_reducer_name(b.r), "NCCL 2.", 7);
            close_bench(&b);
        }
}

/* Steps as they come, recorded, and replayed. */
static void test_recorded(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++) {
        if (!kinds[k].nccl) continue;
        bench b = open_bench(&kinds[k], &layouts[1], 30);
        int host = 0;
        for (int step = 0; step < 6; step++) {
            bool replay = false;
            check(&b, feed(&b, step));
            check(&b, gpu->sections->begin(b.sections, 77, &replay));
            tr_status st = replay ? TR_OK : run(&b, b.t->rank % 4);
            host += !replay;
            check(&b, gpu->sections->end(b.sections, st));
            check_step(&b, step);
        }
        assert_int_equal(host, 2);
        close_bench(&b);
    }
}

#ifndef TR_REAL_GPU /* whose NCCL cannot be told to take its time, or to be another */

/* What is gathered does not wait for a bucket that takes its time: here the first one of the second
 * step, plain or recorded, ends only after a gather that was issued behind it. */
static void test_beside(void **state)
{
    (void)state;
    for (int recorded = 0; recorded < 2; recorded++) {
        setenv("FAKENCCL_HOLD", "4", 1); /* a step has three sums */
        bench b = open_bench(&kinds[0], &layouts[2], 5);
        unsetenv("FAKENCCL_HOLD");
        for (int step = 0; step < 4; step++) {
            bool replay = false;
            check(&b, feed(&b, step));
            if (recorded) check(&b, gpu->sections->begin(b.sections, 7, &replay));
            tr_status st = replay ? TR_OK : run(&b, 3);
            if (recorded) st = gpu->sections->end(b.sections, st);
            check(&b, st);
            check_step(&b, step);
        }
        close_bench(&b);
    }
}

/* Where NCCL, by its version, its settings or the driver's, does not keep the order of two
 * communicators, there is one, with the same sums. */
static void test_in_one_stream(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        bool beside;
    } settings[] = {{"FAKENCCL_VERSION", "22500", false},
                    {"FAKENCCL_VERSION", "22600", false}, /* not for what is recorded */
                    {"FAKENCCL_VERSION", "22700", true},
                    {"NCCL_LAUNCH_ORDER_IMPLICIT", "0", false}};
    for (size_t i = 0; i < TR_COUNT(settings); i++) {
        setenv(settings[i].name, settings[i].value, 1);
        bench b = open_bench(&kinds[0], &layouts[1], 30);
        setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1); /* as it was */
        unsetenv("FAKENCCL_VERSION");
        const tr_nccl_link *l = (const tr_nccl_link *)b.link;
        assert_true(b.t->size == 1 || l->beside == settings[i].beside);
        assert_true(b.t->size == 1 || (l->gather != l->reduce) == settings[i].beside);
        for (int step = 0; step < 3; step++) {
            check(&b, feed(&b, step));
            check(&b, run(&b, b.t->rank % 4));
            check_step(&b, step);
        }
        close_bench(&b);
    }
}

#endif

/* The same gradients give the same bits, whatever was reduced before. */
static void test_repeated(void **state)
{
    (void)state;
    bench b = open_bench(&kinds[0], &layouts[1], 30);
    const size_t nbytes = b.count * sizeof(float);
    float *before = malloc(nbytes);
    for (int time = 0; time < 4; time++) {
        check(&b, feed(&b, 3));
        check(&b, run(&b, b.t->rank % 4));
        check_step(&b, 3);
        if (time > 0) assert_memory_equal(b.host, before, nbytes);
        memcpy(before, b.host, nbytes);
    }
    free(before);
    close_bench(&b);
}

/* A gradient that is not finite on one rank shows on all. */
static void test_nonfinite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < TR_COUNT(kinds); k++)
        for (size_t i = 0; kinds[k].sort && i < TR_COUNT(bad); i++) {
            bench b = open_bench(&kinds[k], &layouts[1], 30);
            numbers n;
            check(&b, feed(&b, 0));
            if (b.t->rank == b.t->size - 1)
                check(&b,
                      gpu->memory->upload(b.ctx, b.fresh + 5000 * i + 3, &bad[i], sizeof(float)));
            check(&b, run(&b, b.t->rank % 4));
            check(&b, gpu->memory->download(b.ctx, &n, b.n, sizeof n));
            assert_false(isfinite(n.squares));
            close_bench(&b);
        }
}

/* What it costs is what it holds; arrays start at zero; one rank's GPU is nobody else's. */
static void test_arrays(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++) {
        if (!kinds[k].sort) continue;
        bench b = open_bench(&kinds[k], &layouts[2], 30);
        const tr_reducer_options o = {.nccl = b.k->nccl, .shard = b.k->shard};
        tr_reducer_cost cost;
        tr_reducer_cost_of(b.t, &b.p->o, &o, &cost);
        assert_int_equal(tr_mem_held(TR_MEM_WEIGHTS), cost.weights);
        assert_int_equal(tr_mem_held(TR_MEM_GRADIENTS), cost.gradients);
        assert_int_equal(tr_mem_held(TR_MEM_MOMENTS), cost.slots);
        double held = (double)b.p->held;
        check(&b, tr_comm_all_reduce(b.c, &held, 1, TR_F64));
        assert_true(held == (double)b.count * (b.k->shard ? 1 : b.t->size));
        const float *const arrays[] = {b.p->weights, b.p->grads, b.p->slots[0], b.p->slots[1]};
        for (size_t a = 0; a < TR_COUNT(arrays); a++) {
            const size_t n = a < 2 ? b.count : b.p->held;
            check(&b, gpu->memory->download(b.ctx, b.host, arrays[a], n * sizeof(float)));
            for (size_t i = 0; i < n; i++) assert_true(b.host[i] == 0);
        }
        for (size_t i = 0; i < b.p->nowned; i++) { /* what slots hold comes together in its order */
            const tr_range own = b.p->owned[i];
            for (size_t e = own.begin; e < own.end; e++) b.host[e] = (float)e;
            check(&b, gpu->memory->upload(b.ctx, b.p->slots[1] + b.p->slot_at[i],
                                          b.host + own.begin, tr_range_count(own) * sizeof(float)));
        }
        memset(b.host, 0, b.count * sizeof(float));
        check(&b, tr_comm_params_gather(b.p, 1, b.host));
        for (size_t e = 0; b.t->rank == 0 && e < b.count; e++) assert_true(b.host[e] == (float)e);
        close_bench(&b);
        assert_int_equal(tr_mem_held(TR_MEM_WEIGHTS), 0);
        assert_int_equal(tr_mem_held(TR_MEM_GRADIENTS), 0);
    }
}

static void test_refuses(void **state)
{
    (void)state;
    static const tr_range bucket = {0, 32};
    tr_comm *c = open_mode(&modes[0], 30);
    tr_params *p = NULL;
    tr_reducer *r = NULL;
    const tr_params_options po = {.count = 32, .buckets = &bucket, .nbuckets = 1};
    tr_reducer_options o = {0};
    assert_int_equal(tr_comm_params_open(c, &po, &o, &p), TR_OK);
    p->o.backend = gpu;
    assert_int_equal(tr_reducer_open(c, p, &o, &r), TR_UNSUPPORTED);
    o.gpu = &tr_nccl_reducers;
    o.wire_bf16 = true;
    assert_int_equal(tr_reducer_open(c, p, &o, &r), TR_UNSUPPORTED);
    assert_non_null(strstr(tr_last_error()->text, "use fp32"));
    assert_null(r);
    p->o.backend = NULL;
    tr_comm_params_close(p);
    tr_comm_close(c);
}

/* ---- Choosing ---- */

static struct {
    int count, first;  /* devices this process sees, the first one's place; the others' behind it */
    const int *places; /* not NULL: their places instead */
} pretend;

static int pretend_devices(char *why, size_t size)
{
    if (!pretend.count) snprintf(why, size, "the driver is asleep");
    return pretend.count;
}

static tr_status pretend_id(int device, char *buf, size_t size)
{
    const int place = pretend.places ? pretend.places[device] : pretend.first + device;
    snprintf(buf, size, "0000:%02x:00.0", place);
    return TR_OK;
}

static void test_choose(void **state)
{
    (void)state;
    const tr_backend b = {.name = "x", .devices = pretend_devices, .device_id = pretend_id};
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    tr_gpu_choice got = {-1, false};
    char want[200];

    pretend.count = 8, pretend.first = 0; /* all see all */
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, t->local_rank);

    tr_comm *group; /* of two ranks, or what is left: with those that its ranks were dealt */
    assert_int_equal(tr_comm_split(c, t->rank / 2, 0, &group), TR_OK);
    assert_int_equal(tr_gpu_part(group, &b, got.device), TR_OK);
    assert_int_equal(tr_gpu_choose(group, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, t->rank);
    assert_int_equal(tr_gpu_part(group, NULL, 0), TR_OK);
    assert_int_not_equal(tr_gpu_choose(group, &b, 0, &got), TR_OK);
    tr_comm_close(group);

    pretend.count = 1, pretend.first = t->rank; /* each sees its own */
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, 0);

    if (t->size > 1) { /* all see the same ones, too few */
        pretend.count = t->size - 1, pretend.first = 0;
        assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_USAGE);
        snprintf(
            want, sizeof want,
            "node %s has %d visible GPU%s for %d ranks: start %d rank%s on it (mpirun --map-by "
            "ppr:%d:node)",
            t->host, t->size - 1, t->size == 2 ? "" : "s", t->size, t->size - 1,
            t->size == 2 ? "" : "s", t->size - 1);
        assert_string_equal(tr_last_error()->text, want);
    }
    pretend.count = t->rank == t->size - 1 ? 0 : 8; /* one has none */
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_KERNEL);
    if (t->size == 1)
        snprintf(want, sizeof want, "no GPU: the driver is asleep");
    else
        snprintf(want, sizeof want,
                 "no GPU for 1 of %d ranks, the first of them %d on %s: the driver is asleep",
                 t->size, t->size - 1, t->host);
    assert_string_equal(tr_last_error()->text, want);
    tr_comm_close(c);

    c = open_mode(&modes[3], 30); /* two pretended nodes: as many GPUs as there are ranks on one */
    pretend.count = 2, pretend.first = 0;
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, tr_comm_topology(c)->local_rank);
    tr_comm_close(c);
}

/* Ranks of a node see different GPUs: each gets another as long as that can be. */
static void test_choose_sets(void **state)
{
    (void)state;
    const tr_backend b = {.name = "x", .devices = pretend_devices, .device_id = pretend_id};
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    const int r = t->rank, last = t->size - 1;
    tr_gpu_choice got = {-1, false};
    char want[300];

    pretend.count = 4, pretend.first = r % 2 * 4; /* those of its socket, ranks dealt round */
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, r / 2);

    pretend.count = 4, pretend.first = r / 2 * 4; /* ranks dealt in blocks */
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, r % 2);

    /* all must make room for the last one */
    const int chain[] = {r < last ? r : 0, r + 1};
    pretend.count = r < last ? 2 : 1, pretend.places = chain;
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, r < last ? 1 : 0);

    /* each the first that is free, in its own order */
    const int back[] = {9, r, 8};
    pretend.count = 3, pretend.places = back;
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, r ? 1 : 0);

    if (t->size > 2) { /* enough, but two see only the same one */
        got.device = -1;
        const int spare[] = {2, 3, 4, 5, 6};
        pretend.count = r < 2 ? 1 : 5, pretend.places = r < 2 ? (const int[]){1} : spare;
        assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_USAGE);
        assert_int_equal(got.device, -1);
        snprintf(want, sizeof want,
                 "on node %s ranks 0, 1 see only 1 GPU between them, though its %d ranks see 6 "
                 "together: show all of the node's GPUs to every rank (srun --gpu-bind=none, "
                 "CUDA_VISIBLE_DEVICES), or to each rank another",
                 t->host, t->size);
        assert_string_equal(tr_last_error()->text, want);

        /* too few, however they are shown: each is counted once */
        pretend.count = r < 2 ? 1 : 2, pretend.places = r < 2 ? (const int[]){1} : (int[]){0, 1};
        assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_USAGE);
        snprintf(want, sizeof want, "node %s has 2 visible GPUs for %d ranks: start 2 ranks on it",
                 t->host, t->size);
        assert_memory_equal(tr_last_error()->text, want, strlen(want));
    }
    tr_comm_close(c);

    c = open_mode(&modes[3],
                  30); /* two pretended nodes: only the second has too few, all hear it */
    t = tr_comm_topology(c);
    pretend.count = t->node ? 1 : 8, pretend.first = 0, pretend.places = NULL;
    got.device = -1;
    const bool crowded = t->size > 3; /* of 3 ranks one is on the second */
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), crowded ? TR_USAGE : TR_OK);
    assert_int_equal(got.device, crowded ? -1 : t->local_rank);
    if (crowded) assert_non_null(strstr(tr_last_error()->text, " has 1 visible GPU for 2 ranks: "));
    tr_comm_close(c);
}

/* Instances of one GPU are told apart, and told; what a rank cannot use, no rank of its node
 * gets. */
static tr_status pretend_instance(int device, char *buf, size_t size)
{
    snprintf(buf, size, "0000:%02x:00.0/%032x", device / 4, device);
    return TR_OK;
}

static tr_status pretend_whole(int device, char *buf, size_t size)
{
    snprintf(buf, size, "0000:%02x:00.0/%032x", device, device);
    return TR_OK;
}

static void test_choose_instances(void **state)
{
    (void)state;
    tr_backend b = {.name = "x", .devices = pretend_devices, .device_id = pretend_instance};
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    tr_gpu_choice got;
    pretend.count = 8, pretend.first = 0, pretend.places = NULL;
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, t->local_rank);
    assert_int_equal(got.instances, t->size > 1);
    b.device_id = pretend_id;
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_false(got.instances);

    /* the last rank does not find out what would tell them apart: the same GPUs all the same */
    b.device_id = t->rank == t->size - 1 ? pretend_id : pretend_whole;
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    assert_int_equal(got.device, t->local_rank);
    assert_false(got.instances);
    b.device_id = pretend_id;

    const uint64_t mine = t->rank == t->size - 1 ? 5 : 0; /* the last rank cannot use 0 and 2 */
    assert_int_equal(tr_gpu_choose(c, &b, mine, &got), TR_OK);
    assert_int_equal(got.device, t->local_rank == 0 ? 1 : t->local_rank + 2);
    assert_int_equal(tr_gpu_choose(c, &b, mine ? 255 : 0, &got), TR_USAGE);
    tr_comm_close(c);
}

/* A rank that runs out of memory says so, wherever it does, and nobody waits for it. */
static void test_choose_memory(void **state)
{
    (void)state;
    const tr_backend b = {.name = "x", .devices = pretend_devices, .device_id = pretend_id};
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    const bool fails = t->rank == t->size - 1;
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_gpu_choice got = {-1, false};
    pretend.count = 8, pretend.first = 0, pretend.places = NULL;
    for (int n = 1; n <= 7; n++) {
        if (fails) tr_mem_fail_at((uint64_t)n);
        tr_status st = tr_gpu_choose(c, &b, 0, &got);
        tr_mem_fail_at(0);
        assert_int_equal(st, fails ? TR_MEMORY : TR_PEER);
        assert_int_equal(got.device, -1);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
    }
    assert_int_equal(tr_gpu_choose(c, &b, 0, &got), TR_OK);
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_choose_sets), cmocka_unit_test(test_choose_memory),
    cmocka_unit_test(test_choose),      cmocka_unit_test(test_refuses),
    cmocka_unit_test(test_sums),        cmocka_unit_test(test_recorded),
    cmocka_unit_test(test_repeated),    cmocka_unit_test(test_nonfinite),
    cmocka_unit_test(test_arrays),      cmocka_unit_test(test_choose_instances),
#ifndef TR_REAL_GPU
    cmocka_unit_test(test_beside),      cmocka_unit_test(test_in_one_stream),
#endif
};

/* Steps until something is wrong, recorded from the third on. `victim`: the rank that kills
 * itself. */
static tr_status work(bench *b, int steps, int victim)
{
    tr_status st = TR_OK;
    TR_TRY(try_open(b, 20));
    for (int step = 0; step < steps; step++) {
        bool replay = false, recorded = b->k->nccl;
        TR_TRY(feed(b, step));
        TR_TRY(tr_reducer_step(b->r, (uint64_t)step, 0));
        if (recorded) TR_TRY(gpu->sections->begin(b->sections, 5, &replay));
        if (step == 4 && b->t->rank == victim) raise(SIGKILL);
        if (!replay) st = run(b, b->t->rank % 4);
        if (recorded) st = gpu->sections->end(b->sections, st);
        if (st == TR_OK) tr_reducer_issued(b->r);
        if (st == TR_OK) st = tr_reducer_wait(b->r, (uint64_t)step, is_done, b);
        if (st != TR_OK) {
            tr_error why = *tr_last_error();
            tr_comm_break(b->c, st); /* a call of the device's that nobody else knows of */
            tr_set_error(&why);
            goto out;
        }
    }
out:
    return st;
}

static int die(const kind *k)
{
    bench b = {.k = k, .l = &layouts[2]};
    int size;
    bool said = true;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    tr_status st = work(&b, 1000, size - 1);
    if (b.c) st = tr_agree(b.c, st, &said);
    if (said && st != TR_OK) fprintf(stderr, "failed: %s\n", tr_last_error()->text);
    tr_comm_abort(b.c, tr_status_exit_code(st));
    return 1;
}

static int fault(const kind *k)
{
    bench b = {.k = k, .l = &layouts[1]};
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    tr_status st = work(&b, 5, -1);
    if (b.c) st = tr_agree(b.c, st, NULL);
    if (st != TR_OK) fprintf(stderr, "rank %d failed: %s\n", rank, tr_last_error()->text);
    MPI_Barrier(MPI_COMM_WORLD);
    close_bench(&b);
    MPI_Finalize();
    return st == TR_OK ? 0 : 3;
}

int main(int argc, char **argv)
{
    int provided, rank, size, failed;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    const kind *k = argc == 3 ? &kinds[strcmp(argv[2], "mpi") ? 0 : 3] : NULL;
    if (k && !strcmp(argv[1], "die")) return die(k);
    if (k && !strcmp(argv[1], "fault")) return fault(k);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    tr_log_init(rank, size, TR_LOG_ERROR);
    failed = RUN_RANK_TESTS(tests);
    MPI_Finalize();
    return failed;
}
