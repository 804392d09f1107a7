/* Gradient all-reduce between the ranks of this job: the shared-memory reducer against
 * MPI_Allreduce, alternating in one run, medians.
 *
 *     mpirun -np 2 bench_allreduce [repetitions]
 *
 * `owned slices`: what training needs. Each rank ends with the sum of its slice (and the sum of
 * squares, which comes with it), updates those weights, and all read the weights where they lie.
 * `equivalent`: as MPI_Allreduce leaves it, every rank holding the whole sum in a buffer of its
 * own: the slices, then publish, then a copy out of the shared weights (slices are written there
 * first, as the optimizer would). MPI_Allreduce computes no squares and is not charged for them. */
#include "collectives/collectives.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { OWNED, EQUIVALENT, MPI, WAYS };
static const char *const names[] = {"owned slices", "equivalent", "MPI_Allreduce"};

typedef struct {
    tr_comm *c;
    tr_params *p;
    tr_reducer *r;
    size_t count, nbuckets;
    float *out;
} bench;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tr_status reduce(bench *b, bool everything)
{
    tr_status st = TR_OK;
    double squares;
    const tr_range *owned = b->p->owned;
    tr_reducer_ready(b->r, (int)b->nbuckets - 1);
    TR_TRY(tr_reducer_finish(b->r, NULL, 0, &squares));
    if (!everything) return TR_OK;
    for (size_t k = 0; k < b->p->nowned; k++)
        memcpy(b->p->weights + owned[k].begin, b->p->grads + owned[k].begin,
               (owned[k].end - owned[k].begin) * sizeof(float));
    TR_TRY(tr_reducer_publish(b->r));
    memcpy(b->out, b->p->weights, b->count * sizeof(float));
out:
    return st;
}

/* Seconds from the moment all are there until the last rank is done, seen by the slowest rank. */
static tr_status timed(bench *b, int way, double *seconds)
{
    tr_status st = TR_OK;
    float *g = b->p->grads;
    const tr_topology *t = tr_comm_topology(b->c);
    for (size_t i = 0; i < b->count; i++) g[i] = (float)(i % 1000) + (float)t->rank;
    if (way == MPI) memset(b->out, 0, b->count * sizeof(float));
    TR_TRY(tr_comm_barrier(b->c));
    double start = tr_now();
    if (way == MPI)
        MPI_Allreduce(g, b->out, (int)b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        TR_TRY(reduce(b, way == EQUIVALENT));
    double mine = tr_now() - start;
    MPI_Allreduce(&mine, seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    float want = 0; /* a result that is wrong is not fast */
    for (int r = 0; r < t->size; r++) want += 7.0f + (float)r;
    if (way != OWNED && b->out[7] != want) st = TR_FAIL(TR_INTERNAL, "wrong sum");
out:
    return st;
}

static tr_status measure(tr_comm *c, size_t nbytes, int repetitions)
{
    tr_status st = TR_OK;
    const tr_topology *t = tr_comm_topology(c);
    enum { BUCKET = 1 << 20 }; /* elements: 4 MB */
    bench b = {.c = c, .count = nbytes / sizeof(float) / 16 * 16};
    b.nbuckets = (b.count + BUCKET - 1) / BUCKET;
    tr_range *buckets = tr_alloc(TR_MEM_OTHER, b.nbuckets, sizeof *buckets);
    double *s = tr_alloc(TR_MEM_OTHER, (size_t)(WAYS * repetitions), sizeof *s), median[WAYS];
    b.out = tr_alloc(TR_MEM_OTHER, b.count, sizeof(float));
    TR_NEED(buckets && s && b.out, TR_MEMORY, "no memory");
    for (size_t i = 0; i < b.nbuckets; i++) {
        size_t end = (i + 1) * BUCKET;
        buckets[i] = (tr_range){i * BUCKET, end < b.count ? end : b.count};
    }
    const tr_params_options o = {.count = b.count, .buckets = buckets, .nbuckets = b.nbuckets};
    const tr_reducer_options ro = {0};
    TR_TRY(tr_comm_params_open(c, &o, &ro, &b.p));
    TR_TRY(tr_reducer_open(c, b.p, &ro, &b.r));
    for (int k = -3; k < repetitions; k++) /* three rounds to warm up */
        for (int way = 0; way < WAYS; way++) {
            double seconds;
            TR_TRY(timed(&b, way, &seconds));
            if (k >= 0) s[way * repetitions + k] = seconds;
        }
    if (t->rank == 0) {
        for (int way = 0; way < WAYS; way++) {
            qsort(s + way * repetitions, (size_t)repetitions, sizeof *s, by_value);
            median[way] = s[way * repetitions + repetitions / 2];
        }
        for (int way = 0; way < WAYS; way++)
            fprintf(stderr, "%8.1f MB  %-14s %9.3f ms   %5.2fx\n", (double)nbytes / 1e6, names[way],
                    median[way] * 1e3, median[MPI] / median[way]);
        printf("{\"bench\":\"allreduce\",\"bytes\":%zu,\"ranks\":%d,\"collectives\":\"%s\","
               "\"owned_ms\":%.4f,\"equivalent_ms\":%.4f,\"mpi_ms\":%.4f,\"owned_ratio\":%.3f,"
               "\"equivalent_ratio\":%.3f}\n",
               nbytes, t->size, t->reason, median[OWNED] * 1e3, median[EQUIVALENT] * 1e3,
               median[MPI] * 1e3, median[MPI] / median[OWNED], median[MPI] / median[EQUIVALENT]);
    }
out:
    tr_reducer_close(b.r);
    tr_comm_params_close(b.p);
    tr_free(b.out);
    tr_free(s);
    tr_free(buckets);
    return st;
}

int main(int argc, char **argv)
{
    int provided;
    tr_status st = TR_OK;
    tr_comm *c = NULL;
    tr_comm_options o = {.mpi = true, .shared_allowed = true, .timeout = 60};
    int repetitions = argc > 1 ? atoi(argv[1]) : 51;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (repetitions < 1) repetitions = 1;
    TR_TRY(tr_comm_open(&o, &c));
    tr_log_init(tr_comm_topology(c)->rank, tr_comm_topology(c)->size, TR_LOG_WARN);
    TR_TRY(measure(c, 1000000, repetitions));
    TR_TRY(measure(c, 40000000, repetitions));
out:
    if (st != TR_OK) {
        fprintf(stderr, "bench_allreduce: %s\n", tr_last_error()->text);
        tr_comm_abort(c, tr_status_exit_code(st));
    }
    tr_comm_close(c);
    MPI_Finalize();
    return 0;
}
