/* All-reduce of one bucket of gradients between the GPUs of this job, over NCCL, by the reducer
 * that training uses: as it is without sharding (all-reduce), and with it (reduce-scatter, then
 * all-gather of the updated weights). Time between two events of the stream, the slowest rank's,
 * median.
 *
 * Bus bandwidth as NVIDIA's nccl-tests have it (PERFORMANCE.md there): 2 (n - 1) / n * bytes /
 * time, which is what a link carries whatever the number of ranks. The reducer sums the gradient's
 * squares and the tallies beside it: the rate is what training gets, a little under NCCL's own. */
#include "tests/bench/gpu.h"

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdlib.h>

#include "collectives/nccl/nccl.h"
#include "kernels/cuda/cuda.h"

enum { RUNS = 15, WARM = 3 };

static const tr_backend *const gpu = &tr_cuda_backend;

typedef struct {
    tr_comm *comm;
    void *ctx;
    tr_params *p;
    tr_reducer *r;
    double *squares; /* on the device */
    cudaEvent_t from, to;
} bench;

#define CUDA(call) TR_NEED((call) == cudaSuccess, TR_KERNEL, "%s failed", #call)

static tr_status is_done(void *ctx, bool *done)
{
    const cudaError_t e = cudaEventQuery(((bench *)ctx)->to);
    *done = e == cudaSuccess;
    if (e == cudaErrorNotReady) (void)cudaGetLastError();
    return e == cudaSuccess || e == cudaErrorNotReady ? TR_OK
                                                      : TR_FAIL(TR_KERNEL, "cudaEventQuery");
}

/* One step's reduction; *ms by the slowest rank's device. */
static tr_status once(bench *b, uint64_t step, double *ms)
{
    tr_status st = TR_OK;
    cudaStream_t stream = gpu->stream->handle(b->ctx);
    float mine = 0;
    double seen;
    TR_TRY(tr_comm_barrier(b->comm));
    CUDA(cudaEventRecord(b->from, stream));
    tr_reducer_ready(b->r, -1);
    tr_reducer_ready(b->r, 0);
    TR_TRY(tr_reducer_poll(b->r));
    TR_TRY(tr_reducer_finish(b->r, NULL, 0, b->squares));
    TR_TRY(tr_reducer_publish(b->r));
    CUDA(cudaEventRecord(b->to, stream));
    TR_TRY(tr_reducer_wait(b->r, step, is_done, b));
    CUDA(cudaEventElapsedTime(&mine, b->from, b->to));
    seen = mine;
    MPI_Allreduce(&seen, ms, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
out:
    return st;
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* With a communicator of its own: one's operations all go into one stream, which is a reducer's. */
static tr_status measure(bench *b, size_t nbytes, bool shard)
{
    tr_status st = TR_OK;
    const tr_gpu_link_options lo = {.deterministic = false}; /* as training has it */
    tr_gpu_link *link = NULL;
    const tr_topology *t = tr_comm_topology(b->comm);
    const tr_range bucket = {0, nbytes / sizeof(float) / 16 * 16};
    const tr_params_options po = {.count = bucket.end,
                                  .buckets = &bucket,
                                  .nbuckets = 1,
                                  .nslots = 1,
                                  .type = TR_F32,
                                  .backend = gpu,
                                  .backend_ctx = b->ctx};
    tr_reducer_options o = {.gpu = &tr_nccl_reducers, .nccl = true, .shard = shard};
    double ms[RUNS];
    TR_TRY(tr_gpu_link_open(&tr_nccl_reducers, b->comm, &lo, &link));
    o.link = link;
    TR_TRY(tr_comm_params_open(b->comm, &po, &o, &b->p));
    TR_TRY(tr_reducer_open(b->comm, b->p, &o, &b->r));
    for (int i = -WARM; i < RUNS; i++) {
        double took;
        TR_TRY(once(b, (uint64_t)(i + WARM), &took));
        if (i >= 0) ms[i] = took;
    }
    qsort(ms, RUNS, sizeof *ms, by_value);
    if (t->rank == 0) {
        const double bytes = (double)(bucket.end * sizeof(float)), n = t->size;
        const double seconds = ms[RUNS / 2] * 1e-3;
        printf("{\"way\":\"%s\",\"reducer\":\"%s\",\"ranks\":%d,\"nodes\":%d,\"bytes\":%.0f,"
               "\"ms\":%.4f,\"bus_gb_per_s\":%.3f}\n",
               shard ? "reduce-scatter and all-gather" : "all-reduce", tr_reducer_name(b->r),
               t->size, t->nodes, bytes, ms[RUNS / 2],
               seconds > 0 ? 2 * (n - 1) / n * bytes / seconds * 1e-9 : 0);
        fflush(stdout);
    }
out:
    tr_reducer_close(b->r);
    tr_gpu_link_close(link);
    tr_comm_params_close(b->p);
    b->r = NULL;
    b->p = NULL;
    return st;
}

tr_status bench_allreduce(int argc, char **argv)
{
    tr_status st = TR_OK;
    static const double common[] = {1, 4, 16, 64, 256};
    const int sizes = argc > 1 ? argc - 1 : (int)TR_COUNT(common);
    const tr_comm_options co = {.mpi = true, .shared_allowed = true, .timeout = 60};
    tr_backend_options bo = {.workspace = 1 << 20};
    tr_gpu_choice choice;
    bench b = {.comm = NULL};
    TR_TRY(tr_comm_open(&co, &b.comm));
    tr_log_init(tr_comm_topology(b.comm)->rank, tr_comm_topology(b.comm)->size, TR_LOG_WARN);
    TR_TRY(tr_gpu_choose(b.comm, gpu, 0, &choice));
    bo.device = choice.device;
    st = gpu->open(&bo, &b.ctx);
    TR_TRY(tr_agree(b.comm, st, NULL));
    CUDA(cudaEventCreate(&b.from));
    CUDA(cudaEventCreate(&b.to));
    b.squares = gpu->memory->alloc(b.ctx, TR_MEM_OTHER, sizeof *b.squares);
    TR_HAVE(b.squares);
    for (int i = 0; i < sizes; i++) {
        const double mb = argc > 1 ? atof(argv[1 + i]) : common[i];
        TR_NEED(mb > 0 && mb < 65536, TR_CONFIG, "%s is no size in MB", argv[1 + i]);
        TR_TRY(measure(&b, (size_t)(mb * 1e6), false));
        TR_TRY(measure(&b, (size_t)(mb * 1e6), true));
    }
out:
    if (b.ctx) {
        gpu->memory->free(b.ctx, b.squares);
        if (b.from) (void)cudaEventDestroy(b.from);
        if (b.to) (void)cudaEventDestroy(b.to);
        gpu->close(b.ctx);
    }
    if (st == TR_OK) tr_comm_close(b.comm);
    return st;
}
