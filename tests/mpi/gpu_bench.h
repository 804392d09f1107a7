/* A reducer of devices with all it needs, and a step whose sums, tallies and gathered pieces can be
 * told from the rank and the step: for the tests of reducers, on the stand-in and on GPUs. */
#ifndef TR_TESTS_GPU_BENCH_H
#define TR_TESTS_GPU_BENCH_H

#include "modes.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include "collectives/nccl/nccl.h"
#include "collectives/reducer/reducer.h"
#include "kernels/cuda/cuda.h"

enum { TALLY = 3, GATHERS = 3, PIECE = 40 };

static const layout layouts[] = {
    {"one unit", 1, {16}},
    {"uneven, some empty", 9, {48, 0, 16, 112, 0, 20016, 32, 1008, 0}},
    {"several chunks", 3, {40000, 16, 25008}},
};

typedef struct {
    const char *name;
    int mode; /* of modes.h */
    bool nccl, shard;
    bool sort;        /* the first of its way to reduce */
    tr_dtype rounded; /* to which some weights are; TR_F32: none */
} kind;

static const kind kinds[] = {{"nccl", 0, true, false, true, TR_F32},
                             {"nccl, no shared memory", 1, true, false, false, TR_F32},
                             {"nccl, 2 nodes", 3, true, false, false, TR_F32},
                             {"mpi", 0, false, false, true, TR_F32},
                             {"mpi in pieces", 2, false, false, false, TR_F32},
                             {"mpi, 2 nodes", 6, false, false, false, TR_F32},
                             {"nccl, sharded", 0, true, true, true, TR_F32},
                             {"nccl, 2 nodes, sharded", 3, true, true, false, TR_F32},
                             {"mpi, sharded", 0, false, true, true, TR_F32},
                             {"nccl, sharded, bf16", 0, true, true, false, TR_BF16},
                             {"nccl, sharded, fp16", 3, true, true, false, TR_F16},
                             {"mpi, sharded, fp16", 0, false, true, false, TR_F16}};

/* Of whichever layout; some buckets have nothing else, some nothing of them. */
static const tr_range rounded_ranges[] = {
    {0, 16}, {48, 160}, {400, 30016}, {40016, 65000 / 16 * 16}};

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
    void *ctx, *sections;
    tr_params *p;
    tr_gpu_link *link;
    tr_reducer *r;
    tr_range buckets[MAX_BUCKETS];
    size_t count;
    float *fresh; /* device: this step's own gradients */
    numbers *n;   /* device */
    float *host;
    double *sums; /* device: what a step sums of owned ranges; NULL: nothing */
    size_t nsums;
} bench;

static const tr_backend *const gpu = &tr_cuda_backend;

static inline tr_status try_open(bench *b, double timeout)
{
    tr_status st = TR_OK;
    char why[256];
    tr_backend_options bo = {.graphs = true, .workspace = 1 << 20};
    b->c = open_mode(&modes[b->k->mode], timeout);
    b->t = tr_comm_topology(b->c);
    for (size_t i = 0; i < b->l->nbuckets; i++) {
        b->buckets[i] = (tr_range){b->count, b->count + b->l->lengths[i]};
        b->count += b->l->lengths[i];
    }
    tr_params_options po = {.count = b->count,
                            .buckets = b->buckets,
                            .nbuckets = b->l->nbuckets,
                            .nslots = 2,
                            .type = b->k->rounded,
                            .backend = gpu};
    while (po.type != TR_F32 && po.nrounded < TR_COUNT(rounded_ranges) &&
           rounded_ranges[po.nrounded].begin < b->count)
        po.nrounded++;
    po.rounded = rounded_ranges;
    tr_reducer_options o = {.shard = b->k->shard, .gpu = &tr_nccl_reducers, .nccl = b->k->nccl};
    const tr_gpu_link_options lo = {.deterministic = true, .recorded = true, .gathers = true};
    tr_gpu_choice choice;
    TR_TRY(tr_gpu_choose(b->c, gpu, 0, &choice));
    bo.device = choice.device;
    /* the ranks of pretended nodes are all on one machine: no two may meet on one of its GPUs */
    if (modes[b->k->mode].nodes > 1) bo.device = b->t->rank % gpu->devices(why, sizeof why);
    st = gpu->open(&bo, &b->ctx);
    TR_TRY(tr_agree(b->c, st, NULL));
    po.backend_ctx = b->ctx;
    TR_TRY(gpu->sections->open(b->ctx, &b->sections));
    if (o.nccl) TR_TRY(tr_gpu_link_open(o.gpu, b->c, &lo, &b->link));
    o.link = b->link;
    TR_TRY(tr_comm_params_open(b->c, &po, &o, &b->p));
    TR_TRY(tr_reducer_open(b->c, b->p, &o, &b->r));
    b->fresh = gpu->memory->alloc(b->ctx, TR_MEM_OTHER, b->count * sizeof(float));
    b->n = gpu->memory->alloc(b->ctx, TR_MEM_OTHER, sizeof(numbers));
    b->host = malloc(b->count * sizeof(float));
    st = b->fresh && b->n && b->host ? TR_OK : TR_MEMORY;
    TR_TRY(tr_agree(b->c, st, NULL));
out:
    return st;
}

static inline bench open_bench(const kind *k, const layout *l, double timeout)
{
    bench b = {.k = k, .l = l};
    tr_status st = try_open(&b, timeout);
    if (st != TR_OK) fail_msg("%s: %s", k->name, tr_last_error()->text);
    return b;
}

static inline void close_bench(bench *b)
{
    tr_reducer_close(b->r);
    tr_gpu_link_close(b->link);
    tr_comm_params_close(b->p);
    if (b->ctx) {
        gpu->sections->close(b->sections);
        gpu->memory->free(b->ctx, b->fresh);
        gpu->memory->free(b->ctx, b->n);
        gpu->close(b->ctx);
    }
    free(b->host);
    tr_comm_close(b->c);
}

/* Magnitudes over many binades: sums in another order differ. */
static inline float gradient(int rank, int step, size_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)step * 97u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return ldexpf((float)(int32_t)h / 2147483648.0f, (int)(h % 13) - 6);
}

static inline char piece(int rank, int step, int i)
{
    return (char)(rank * 31 + step * 7 + i);
}

static inline void check(bench *b, tr_status st)
{
    if (st != TR_OK) fail_msg("%s, %s: %s", b->k->name, b->l->name, tr_last_error()->text);
}

/* Before a step, outside what is recorded: this rank's numbers. */
static inline tr_status feed(bench *b, int step)
{
    tr_status st = TR_OK;
    numbers n;
    memset(&n, 0x55, sizeof n);
    for (size_t i = 0; i < b->count; i++) b->host[i] = gradient(b->t->rank, step, i);
    for (int i = 0; i < PIECE; i++) n.give[i] = piece(b->t->rank, step, i);
    n.tally[0] = b->t->rank + 0.1;
    n.tally[1] = step;
    n.tally[2] = 1;
    TR_TRY(gpu->memory->upload(b->ctx, b->fresh, b->host, b->count * sizeof(float)));
    TR_TRY(gpu->memory->upload(b->ctx, b->n, &n, sizeof n));
out:
    return st;
}

/* Gradients are made (copied) just before they are marked ready. */
static inline tr_status make(bench *b, int from, int to)
{
    size_t begin = b->buckets[from].begin, end = b->buckets[to].end;
    tr_status st = TR_OK;
    if (begin < end)
        st = gpu->memory->copy(b->ctx, b->p->grads + begin, b->fresh + begin,
                               (end - begin) * sizeof(float));
    if (st == TR_OK) tr_reducer_ready(b->r, to);
    return st;
}

/* Ranks differ in how buckets and gathers mingle: an empty share has all ready before it gathers,
 * others some between the gathers, or in jumps. */
static inline tr_status run(bench *b, int way)
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
    if (b->sums) TR_TRY(tr_reducer_sum_owned(b->r, b->sums, b->nsums));
    for (size_t i = 0; i < b->p->nowned; i++) { /* the owner's sums become everybody's weights */
        const tr_range own = b->p->owned[i];
        TR_TRY(gpu->memory->copy(b->ctx, b->p->weights + own.begin, b->p->grads + own.begin,
                                 tr_range_count(own) * sizeof(float)));
    }
    TR_TRY(tr_reducer_publish(b->r));
out:
    return st;
}

static inline tr_status is_done(void *ctx, bool *done)
{
    cudaError_t e =
        cudaStreamQuery(((bench *)ctx)->t ? gpu->stream->handle(((bench *)ctx)->ctx) : NULL);
    *done = e == cudaSuccess;
    if (e == cudaErrorNotReady) (void)cudaGetLastError();
    return e == cudaSuccess || e == cudaErrorNotReady ? TR_OK
                                                      : TR_FAIL(TR_KERNEL, "cudaStreamQuery");
}

static inline void same_everywhere(bench *b, const void *v, size_t nbytes)
{
    char mine[65], all[8][65];
    tr_sha256_hex(v, nbytes, mine);
    assert_int_equal(tr_comm_all_gather(b->c, mine, all, sizeof mine), TR_OK);
    for (int r = 0; r < b->t->size; r++) assert_string_equal(all[r], mine);
}

static inline float rounded_to(tr_dtype type, float v)
{
    return type == TR_BF16 ? tr_bf16_to_f32(tr_f32_to_bf16(v)) : tr_f16_to_f32(tr_f32_to_f16(v));
}

/* Of others' weights this rank has what its kernels would read of them; b->host: as owners have
 * them. */
static inline void check_rounded(bench *b)
{
    float *mine = malloc(b->count * sizeof *mine);
    check(b, gpu->memory->download(b->ctx, mine, b->p->weights, b->count * sizeof *mine));
    for (size_t i = 0, k = 0, r = 0; i < b->count; i++) {
        while (k < b->p->nowned && b->p->owned[k].end <= i) k++;
        while (r < b->p->o.nrounded && b->p->o.rounded[r].end <= i) r++;
        const bool own = k < b->p->nowned && b->p->owned[k].begin <= i;
        const bool rounds = r < b->p->o.nrounded && b->p->o.rounded[r].begin <= i;
        if (own || !rounds)
            assert_true(mine[i] == b->host[i]);
        else /* what is small against its bucket, or in a bucket not worth it, comes whole */
            assert_true(mine[i] == rounded_to(b->k->rounded, b->host[i]) || mine[i] == b->host[i]);
    }
    check(b, gpu->memory->download(b->ctx, mine, b->p->grads, b->count * sizeof *mine));
    for (size_t k = 0; b->k->nccl && b->k->shard && k < b->l->nbuckets; k++) {
        /* messages are not left among the gradients, whose padding must be zero */
        const size_t n = tr_even_nbytes(&b->p->o, b->buckets[k], b->t->size);
        const size_t whole = tr_range_count(tr_even_share(b->buckets[k], 0, b->t->size));
        for (size_t i = 0; n < whole * sizeof(float) && b->t->size > 1 &&
                           i < n * (size_t)b->t->size / sizeof(float);
             i++)
            assert_true(mine[b->buckets[k].begin + i] == 0);
    }
    free(mine);
}

static inline void check_gradients(bench *b, int step, double squares)
{
    double want_squares = 0;
    size_t nbytes = b->count * sizeof(float);
    check(b, tr_comm_params_weights(b->p, b->host));
    check(b, tr_comm_broadcast(b->c, b->host, nbytes, 0));
    check_rounded(b);
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

static inline void check_step(bench *b, int step)
{
    numbers n;
    check(b, tr_reducer_wait(b->r, (uint64_t)step, is_done, b));
    check(b, gpu->memory->download(b->ctx, &n, b->n, sizeof n));
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

#endif
