/* ranks: 1 2 4 */
/* standin */
/* The reducers of devices, NCCL and MPI through the host, on the stand-in: sums against plain ones,
 * one order of gathers and buckets however ranks get ready, recorded steps, ranks that come late.
 * With the arguments `die nccl|mpi` it is the victim of dead_peer.sh, with `fault nccl|mpi` that of
 * gpu_faults.sh: steps until something goes wrong, and then every rank says what it heard. */
#include "modes.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "collectives/nccl/nccl.h"
#include "collectives/reducer.h"
#include "kernels/cuda/cuda.h"

enum { MAX_BUCKETS = 9, TALLY = 3, GATHERS = 3, PIECE = 40 };

typedef struct {
    const char *name;
    size_t nbuckets;
    size_t lengths[MAX_BUCKETS];
} layout;

static const layout layouts[] = {
    {"one unit", 1, {16}},
    {"uneven, some empty", 9, {48, 0, 16, 112, 0, 20016, 32, 1008, 0}},
    {"several chunks", 3, {40000, 16, 25008}},
};

typedef struct {
    const char *name;
    int mode; /* of modes.h */
    bool nccl;
} kind;

static const kind kinds[] = {{"nccl", 0, true},           {"nccl, no shared memory", 1, true},
                             {"nccl, 2 nodes", 3, true},  {"mpi", 0, false},
                             {"mpi in pieces", 2, false}, {"mpi, 2 nodes", 6, false}};

/* What the device's memory holds for the test. */
typedef struct {
    double tally[TALLY], squares;
    char give[PIECE], got[GATHERS][8 * PIECE];
} numbers;

typedef struct {
    const kind *k;
    const layout *l;
    tr_comm *c;
    const tr_topology *t;
    void *ctx;
    tr_reducer *r;
    tr_range buckets[MAX_BUCKETS];
    size_t count;
    float *fresh; /* device: this step's own gradients */
    numbers *n;   /* device */
    float *host;
} bench;

static const tr_backend *const gpu = &tr_cuda_backend;

static tr_status try_open(bench *b, double timeout)
{
    tr_status st = TR_OK;
    tr_backend_options bo = {.threads = 1, .graphs = true, .workspace = 1 << 20};
    b->c = open_mode(&modes[b->k->mode], timeout);
    b->t = tr_comm_topology(b->c);
    for (size_t i = 0; i < b->l->nbuckets; i++) {
        b->buckets[i] = (tr_range){b->count, b->count + b->l->lengths[i]};
        b->count += b->l->lengths[i];
    }
    tr_reducer_options o = {.count = b->count,
                            .buckets = b->buckets,
                            .nbuckets = b->l->nbuckets,
                            .nslots = 2,
                            .backend = gpu,
                            .gpu = &tr_nccl_reducers,
                            .nccl = b->k->nccl};
    TR_TRY(tr_gpu_choose(b->c, gpu, &bo.device));
    st = gpu->open(&bo, &b->ctx);
    TR_TRY(tr_agree(b->c, st, NULL));
    o.backend_ctx = b->ctx;
    TR_TRY(tr_reducer_open(b->c, &o, &b->r));
    b->fresh = gpu->alloc(b->ctx, TR_MEM_OTHER, b->count * sizeof(float));
    b->n = gpu->alloc(b->ctx, TR_MEM_OTHER, sizeof(numbers));
    b->host = malloc(b->count * sizeof(float));
    st = b->fresh && b->n && b->host ? TR_OK : TR_MEMORY;
    TR_TRY(tr_agree(b->c, st, NULL));
out:
    return st;
}

static bench open_bench(const kind *k, const layout *l, double timeout)
{
    bench b = {.k = k, .l = l};
    tr_status st = try_open(&b, timeout);
    if (st != TR_OK) fail_msg("%s: %s", k->name, tr_last_error()->text);
    return b;
}

static void close_bench(bench *b)
{
    tr_reducer_close(b->r);
    if (b->ctx) {
        gpu->free(b->ctx, b->fresh);
        gpu->free(b->ctx, b->n);
        gpu->close(b->ctx);
    }
    free(b->host);
    tr_comm_close(b->c);
}

/* Magnitudes over many binades: sums in another order differ. */
static float gradient(int rank, int step, size_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)step * 97u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return ldexpf((float)(int32_t)h / 2147483648.0f, (int)(h % 13) - 6);
}

static char piece(int rank, int step, int i)
{
    return (char)(rank * 31 + step * 7 + i);
}

static void check(bench *b, tr_status st)
{
    if (st != TR_OK) fail_msg("%s, %s: %s", b->k->name, b->l->name, tr_last_error()->text);
}

/* Before a step, outside what is recorded: this rank's numbers. */
static tr_status feed(bench *b, int step)
{
    tr_status st = TR_OK;
    numbers n;
    memset(&n, 0x55, sizeof(n));
    for (size_t i = 0; i < b->count; i++) b->host[i] = gradient(b->t->rank, step, i);
    for (int i = 0; i < PIECE; i++) n.give[i] = piece(b->t->rank, step, i);
    n.tally[0] = b->t->rank + 0.1;
    n.tally[1] = step;
    n.tally[2] = 1;
    TR_TRY(gpu->upload(b->ctx, b->fresh, b->host, b->count * sizeof(float)));
    TR_TRY(gpu->upload(b->ctx, b->n, &n, sizeof(n)));
out:
    return st;
}

/* Gradients are made (copied) just before they are marked ready. */
static tr_status make(bench *b, int from, int to)
{
    size_t begin = b->buckets[from].begin, end = b->buckets[to].end;
    tr_status st = TR_OK;
    if (begin < end)
        st = gpu->copy(b->ctx, tr_reducer_grads(b->r) + begin, b->fresh + begin,
                       (end - begin) * sizeof(float));
    if (st == TR_OK) tr_reducer_ready(b->r, to);
    return st;
}

/* Ranks differ in how buckets and gathers mingle: an empty share has all ready before it gathers,
 * others some between the gathers, or in jumps. */
static tr_status run(bench *b, int way)
{
    tr_status st = TR_OK;
    int n = (int)b->l->nbuckets, at = 0;
    tr_reducer_ready(b->r, -1);
    for (int g = 0; g <= GATHERS; g++) {
        int to = way == 0       ? n
                 : way == 1     ? n * g / GATHERS
                 : g == GATHERS ? n
                                : n * g / (GATHERS + 1);
        if (way == 3) /* one at a time */
            for (; at < to; at++) TR_TRY(make(b, at, at));
        else if (to > at)
            TR_TRY(make(b, at, to - 1));
        at = to;
        TR_TRY(tr_reducer_poll(b->r));
        if (g < GATHERS)
            TR_TRY(tr_reducer_gather(b->r, b->n->give, b->n->got[g], (size_t)(g * 13 + 1)));
    }
    TR_TRY(tr_reducer_finish(b->r, b->n->tally, TALLY, &b->n->squares));
    TR_TRY(tr_reducer_publish(b->r));
out:
    return st;
}

static tr_status is_done(void *ctx, bool *done)
{
    cudaError_t e = cudaStreamQuery(((bench *)ctx)->t ? gpu->stream(((bench *)ctx)->ctx) : NULL);
    *done = e == cudaSuccess;
    if (e == cudaErrorNotReady) (void)cudaGetLastError();
    return e == cudaSuccess || e == cudaErrorNotReady ? TR_OK
                                                      : TR_FAIL(TR_KERNEL, "cudaStreamQuery");
}

static void same_everywhere(bench *b, const void *v, size_t nbytes)
{
    char mine[65], all[8][65];
    tr_sha256_hex(v, nbytes, mine);
    assert_int_equal(tr_comm_gather(b->c, mine, all, sizeof(mine)), TR_OK);
    for (int r = 0; r < b->t->size; r++) assert_string_equal(all[r], mine);
}

static void check_gradients(bench *b, int step, double squares)
{
    double want_squares = 0;
    size_t nbytes = b->count * sizeof(float);
    check(b, gpu->download(b->ctx, b->host, tr_reducer_grads(b->r), nbytes));
    for (size_t i = 0; i < b->count; i++) {
        float want = 0, magnitude = 0;
        for (int r = 0; r < b->t->size; r++) {
            want += gradient(r, step, i);
            magnitude += fabsf(gradient(r, step, i));
        }
        if (!(fabsf(b->host[i] - want) <= (b->t->size > 1 ? magnitude * 0x1p-22f : 0)))
            fail_msg("%s, %s, step %d: [%zu] = %.9g, expected %.9g", b->k->name, b->l->name, step,
                     i, (double)b->host[i], (double)want);
        want_squares += (double)b->host[i] * (double)b->host[i];
    }
    assert_true(fabs(squares - want_squares) <= 1e-12 * want_squares);
    same_everywhere(b, b->host, nbytes);
    same_everywhere(b, &squares, sizeof(squares));
}

static void check_step(bench *b, int step)
{
    numbers n;
    check(b, tr_reducer_wait(b->r, (uint64_t)step, is_done, b));
    check(b, gpu->download(b->ctx, &n, b->n, sizeof(n)));
    check_gradients(b, step, n.squares);
    double want = 0.1;
    for (int r = 1; r < b->t->size; r++) want += r + 0.1;
    assert_true(fabs(n.tally[0] - want) <= 1e-14 * want);
    assert_true(n.tally[1] == (double)step * b->t->size && n.tally[2] == b->t->size);
    for (int g = 0; g < GATHERS; g++)
        for (int r = 0; r < b->t->size; r++)
            for (int i = 0; i < g * 13 + 1; i++)
                if (n.got[g][r * (g * 13 + 1) + i] != piece(r, step, i))
                    fail_msg("%s, step %d: gather %d, of rank %d, byte %d", b->k->name, step, g, r,
                             i);
}

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
                assert_int_equal(tr_reducer_reductions(b.r), (uint64_t)(step + 1) * b.l->nbuckets);
            }
            if (b.t->size > 1 && kinds[k].nccl)
                assert_memory_equal(tr_reducer_name(b.r), "NCCL 2.", 7);
            close_bench(&b);
        }
}

/* Steps as they come, recorded, and replayed. */
static void test_recorded(void **state)
{
    (void)state;
    for (size_t k = 0; k < 3; k++) {
        bench b = open_bench(&kinds[k], &layouts[1], 30);
        assert_true(tr_reducer_recordable(b.r));
        int host = 0;
        for (int step = 0; step < 6; step++) {
            bool replay = false;
            check(&b, feed(&b, step));
            check(&b, gpu->section_begin(b.ctx, 77, &replay));
            tr_status st = replay ? TR_OK : run(&b, b.t->rank % 4);
            host += !replay;
            check(&b, gpu->section_end(b.ctx, st));
            check_step(&b, step);
        }
        assert_int_equal(host, 2);
        close_bench(&b);
    }
}

/* A gradient that is not finite on one rank shows on all. */
static void test_nonfinite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < TR_COUNT(kinds); k += 3)
        for (size_t i = 0; i < TR_COUNT(bad); i++) {
            bench b = open_bench(&kinds[k], &layouts[1], 30);
            numbers n;
            check(&b, feed(&b, 0));
            if (b.t->rank == b.t->size - 1)
                check(&b, gpu->upload(b.ctx, b.fresh + 5000 * i + 3, &bad[i], sizeof(float)));
            check(&b, run(&b, b.t->rank % 4));
            check(&b, gpu->download(b.ctx, &n, b.n, sizeof(n)));
            assert_false(isfinite(n.squares));
            close_bench(&b);
        }
}

/* What it costs is what it holds; arrays start at zero; one rank's GPU is nobody else's. */
static void test_arrays(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k += 3) {
        bench b = open_bench(&kinds[k], &layouts[2], 30);
        tr_reducer_options o = {.count = b.count,
                                .buckets = b.buckets,
                                .nbuckets = b.l->nbuckets,
                                .nslots = 2,
                                .backend = gpu,
                                .nccl = b.k->nccl};
        tr_reducer_cost cost;
        tr_reducer_cost_of(b.t, &o, &cost);
        assert_int_equal(tr_mem_held(TR_MEM_WEIGHTS), cost.weights);
        assert_int_equal(tr_mem_held(TR_MEM_GRADIENTS), cost.gradients);
        assert_int_equal(tr_mem_held(TR_MEM_MOMENTS), cost.slots);
        size_t n;
        const tr_range *owned = tr_reducer_owned(b.r, &n);
        assert_true(n == 1 && owned[0].begin == 0 && owned[0].end == b.count);
        const float *const arrays[] = {tr_reducer_weights(b.r), tr_reducer_slot(b.r, 0),
                                       tr_reducer_slot(b.r, 1), tr_reducer_grads(b.r)};
        for (size_t a = 0; a < TR_COUNT(arrays); a++) {
            check(&b, gpu->download(b.ctx, b.host, arrays[a], b.count * sizeof(float)));
            for (size_t i = 0; i < b.count; i++) assert_true(b.host[i] == 0);
        }
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
    tr_reducer *r = NULL;
    tr_reducer_options o = {.count = 32, .buckets = &bucket, .nbuckets = 1, .backend = gpu};
    assert_int_equal(tr_reducer_open(c, &o, &r), TR_UNSUPPORTED);
    o.gpu = &tr_nccl_reducers;
    o.wire_bf16 = true;
    assert_int_equal(tr_reducer_open(c, &o, &r), TR_UNSUPPORTED);
    assert_non_null(strstr(tr_last_error()->text, "use fp32"));
    assert_null(r);
    tr_comm_close(c);
}

/* ---- Choosing ---- */

static struct {
    int count, first; /* devices this process sees, the first one's place */
} pretend;

static int pretend_devices(char *why, size_t size)
{
    if (!pretend.count) snprintf(why, size, "the driver is asleep");
    return pretend.count;
}

static tr_status pretend_id(int device, char *buf, size_t size)
{
    snprintf(buf, size, "0000:%02x:00.0", pretend.first + device);
    return TR_OK;
}

static void test_choose(void **state)
{
    (void)state;
    const tr_backend b = {.name = "x", .devices = pretend_devices, .device_id = pretend_id};
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    int device = -1;
    char want[200];

    pretend.count = 8, pretend.first = 0; /* all see all */
    assert_int_equal(tr_gpu_choose(c, &b, &device), TR_OK);
    assert_int_equal(device, t->local_rank);

    pretend.count = 1, pretend.first = t->rank; /* each sees its own */
    assert_int_equal(tr_gpu_choose(c, &b, &device), TR_OK);
    assert_int_equal(device, 0);

    if (t->size > 1) { /* all see the same ones, too few */
        pretend.count = t->size - 1, pretend.first = 0;
        assert_int_equal(tr_gpu_choose(c, &b, &device), TR_USAGE);
        snprintf(want, sizeof(want),
                 "node %s has %d GPU%s for %d ranks: start %d rank%s on it (mpirun --map-by "
                 "ppr:%d:node), or set device: cpu",
                 t->host, t->size - 1, t->size == 2 ? "" : "s", t->size, t->size - 1,
                 t->size == 2 ? "" : "s", t->size - 1);
        assert_string_equal(tr_last_error()->text, want);
    }
    pretend.count = t->rank == t->size - 1 ? 0 : 8; /* one has none */
    assert_int_equal(tr_gpu_choose(c, &b, &device), TR_KERNEL);
    if (t->size == 1)
        snprintf(want, sizeof(want), "no GPU: the driver is asleep");
    else
        snprintf(want, sizeof(want),
                 "no GPU for 1 of %d ranks, the first of them %d on %s: the driver is asleep",
                 t->size, t->size - 1, t->host);
    assert_string_equal(tr_last_error()->text, want);
    tr_comm_close(c);

    c = open_mode(&modes[3], 30); /* two pretended nodes: as many GPUs as there are ranks on one */
    pretend.count = 2, pretend.first = 0;
    assert_int_equal(tr_gpu_choose(c, &b, &device), TR_OK);
    assert_int_equal(device, tr_comm_topology(c)->local_rank);
    tr_comm_close(c);
}

/* ---- What goes wrong ---- */

/* Where the last rank stays away in the second step; what the others say of where they wait, and of
 * it. */
typedef struct {
    const char *name;
    double timeout;
    int kind;
    bool replayed; /* the second step is issued as a whole */
    bool gathers;  /* the last rank stays away before its gathers, not before its buckets */
    const char *where, *who;
} absence;

static const absence absences[] = {
    {"bucket", 2, 0, false, false, "all-reduce of step 1, bucket 0", ": issued step 0, "},
    {"gather", 2, 0, false, true, "device in step 1, at gather 0, 0 of 3 buckets reduced",
     ": issued step 0, "},
    {"replayed", 2, 0, true, true, "device in step 3, at gather 0, 0 of 3 buckets reduced",
     ": issued step 2, "},
    {"blind", 0.2, 1, false, false, "all-reduce of step 1, bucket 0", "cannot be seen"},
};

/* One whole step; recorded from the second on. */
static tr_status step_of(bench *b, int step, bool gathers, bool recorded)
{
    tr_status st = TR_OK;
    bool replay = false;
    TR_TRY(tr_reducer_step(b->r, (uint64_t)step, 0));
    if (recorded) TR_TRY(gpu->section_begin(b->ctx, 9, &replay));
    if (!replay && gathers) st = run(b, 3);
    if (!replay && !gathers) {
        tr_reducer_ready(b->r, 2);
        st = tr_reducer_finish(b->r, b->n->tally, TALLY, &b->n->squares);
    }
    if (recorded) st = gpu->section_end(b->ctx, st);
    if (st == TR_OK) tr_reducer_issued(b->r);
out:
    return st;
}

static void missed(bench *b, const absence *a, int step)
{
    char name[64];
    double start = tr_now();
    tr_status st = step_of(b, step, a->gathers, a->replayed);
    if (st == TR_OK) st = tr_reducer_wait(b->r, (uint64_t)step, is_done, b);
    assert_int_equal(st, TR_PEER);
    assert_true(tr_now() - start < 20);
    assert_true(tr_comm_broken(b->c));
    const char *text = tr_last_error()->text, *who = strstr(text, "not arrived: ");
    snprintf(name, sizeof(name), "rank %d (pid ", b->t->size - 1);
    /* among the named: a peer that waited and gave up in the same moment may stand beside it */
    if (!who || (a->kind == 0 && !strstr(who, name)) || !strstr(who, a->who) ||
        !strstr(text, a->where))
        fail_msg("%s: %s", a->name, text);
    assert_non_null(strstr(text, b->t->host));
    assert_int_equal(tr_reducer_finish(b->r, NULL, 0, &b->n->squares), TR_PEER);
    assert_int_equal(tr_reducer_step(b->r, 9, 0), TR_PEER);
    /* the device has given up, too */
    check(b, gpu->finish(b->ctx));
}

/* The last rank does not come to a step: the others name it in time. */
static void test_late(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(absences); k++) {
        const absence *a = &absences[k];
        bench b = open_bench(&kinds[a->kind], &layouts[2], a->timeout);
        const int steps = a->replayed ? 3 : 1;
        if (b.t->size == 1) {
            close_bench(&b);
            return;
        }
        for (int step = 0; step < steps; step++) {
            check(&b, feed(&b, step));
            check(&b, step_of(&b, step, true, a->replayed));
            check_step(&b, step);
        }
        check(&b, feed(&b, steps));
        MPI_Barrier(MPI_COMM_WORLD);
        if (b.t->rank != b.t->size - 1) missed(&b, a, steps);
        MPI_Barrier(MPI_COMM_WORLD); /* here the last one waited, beside the reducer */
        if (b.t->rank == b.t->size - 1) {
            if (a->kind == 0) assert_int_equal(tr_comm_barrier(b.c), TR_PEER); /* it is told */
            if (a->kind == 1) tr_comm_break(b.c, TR_FAIL(TR_PEER, "alone"));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        close_bench(&b);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_choose),    cmocka_unit_test(test_refuses),
    cmocka_unit_test(test_sums),      cmocka_unit_test(test_recorded),
    cmocka_unit_test(test_nonfinite), cmocka_unit_test(test_arrays),
    cmocka_unit_test(test_late),
};

/* Steps until something is wrong, recorded from the third on. `victim`: the rank that kills itself.
 */
static tr_status work(bench *b, int steps, int victim)
{
    tr_status st = TR_OK;
    TR_TRY(try_open(b, 20));
    for (int step = 0; step < steps; step++) {
        bool replay = false, recorded = tr_reducer_recordable(b->r);
        TR_TRY(feed(b, step));
        TR_TRY(tr_reducer_step(b->r, (uint64_t)step, 0));
        if (recorded) TR_TRY(gpu->section_begin(b->ctx, 5, &replay));
        if (step == 4 && b->t->rank == victim) raise(SIGKILL);
        if (!replay) st = run(b, b->t->rank % 4);
        if (recorded) st = gpu->section_end(b->ctx, st);
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
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) MPI_Abort(MPI_COMM_WORLD, 1); /* the others may be waiting */
    MPI_Finalize();
    return 0;
}
