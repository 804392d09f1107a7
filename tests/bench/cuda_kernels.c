/* How fast our own CUDA kernels move what they must, beside the device's own copy.
 *
 *     bench_cuda_kernels [divide | devices]
 *
 * For each kernel a case of the size of real models, whose arrays are larger than the second-level
 * cache; before every run 256 MB are overwritten, so that nothing is found there. Bytes are those
 * that any implementation must move (inputs once, outputs once), so that a ratio of 1 means: as
 * good as copying. Times are medians of RUNS runs between two events; the copy is
 * cudaMemcpyAsync within the device. `divide`: so many times fewer elements, to try the program.
 * `devices` only prints how many GPUs a process may use here, as the trainer counts them.
 *
 * Prints one line of JSON a case: {"kernel", "bytes", "us", "gb_per_s", "of_copy", "goal",
 * "tflop_per_s"}; goal is 0 for kernels that have none, the last one but for those that are bound
 * by their products. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/cuda_kernels.h"

enum { RUNS = 15, WARM = 3, FLUSH = 256 << 20, PIECE = 1 << 22 };

static const tr_backend *const b = &tr_cuda_backend;

tr_status bench_put(bench *k, size_t count, size_t size, void *out)
{
    tr_status st = TR_OK;
    char *host = NULL, *device = NULL;
    const size_t nbytes = count * size, piece = nbytes < PIECE ? nbytes : PIECE;
    TR_NEED(k->arrays < ARRAYS, TR_INTERNAL, "more than %d arrays", ARRAYS);
    device = b->memory->alloc(k->cuda, TR_MEM_OTHER, nbytes);
    host = tr_alloc(TR_MEM_OTHER, piece, 1);
    if (!device || !host) TR_TRY(tr_last_error()->status);
    k->array[k->arrays++] = device;
    for (size_t i = 0; i < piece / size; i++) {
        const float v =
            2 * tr_uniform(tr_philox_at((uint64_t)k->arrays, TR_RNG_TEST, 0, i, 0).v[0]) - 1;
        if (size == 2) ((tr_bf16 *)host)[i] = tr_f32_to_bf16(v);
        if (size == 4) ((float *)host)[i] = v;
        if (size == 8) ((double *)host)[i] = v;
    }
    TR_TRY(b->memory->upload(k->cuda, device, host, piece));
    for (size_t at = piece; at < nbytes; at *= 2)
        TR_TRY(b->memory->copy(k->cuda, device + at, device, nbytes - at < at ? nbytes - at : at));
    *(void **)out = device;
out:
    tr_free(host);
    if (st != TR_OK && (k->arrays == 0 || k->array[k->arrays - 1] != device))
        b->memory->free(k->cuda, device);
    return st;
}

tr_status bench_put_all(bench *k, int arrays, size_t count, size_t size)
{
    tr_status st = TR_OK;
    void *p;
    for (int i = 0; i < arrays; i++) TR_TRY(bench_put(k, count, size, &p));
out:
    return st;
}

tr_status bench_open_two(bench *k)
{
    return bench_put_all(k, 2, k->n, 2);
}

static tr_status run_copy(bench *k)
{
    return tr_cuda_check(cudaMemcpyAsync(k->array[1], k->array[0], k->n * 2,
                                         cudaMemcpyDeviceToDevice, k->cuda->stream),
                         "cudaMemcpyAsync");
}

static const bench_case copies[] = {{"copy", 65536, 8192, 4, 0, bench_open_two, run_copy}};
static const bench_subject copying = {copies, TR_COUNT(copies)};
static const bench_subject *const subjects[] = {&copying, &bench_updates, &bench_layers,
                                                &bench_attention};

static int by_size(const void *x, const void *y)
{
    const double p = *(const double *)x, q = *(const double *)y;
    return (p > q) - (p < q);
}

/* The median of RUNS runs, in seconds. */
static tr_status measure(bench *k, const bench_case *c, void *flush, size_t flush_size, double *out)
{
    tr_status st = TR_OK;
    cudaEvent_t begin = NULL, end = NULL;
    double seconds[RUNS];
    TR_CUDA_TRY(cudaEventCreate(&begin));
    TR_CUDA_TRY(cudaEventCreate(&end));
    for (int i = -WARM; i < RUNS; i++) {
        float ms = 0;
        TR_TRY(b->memory->zero(k->cuda, flush, flush_size));
        TR_CUDA_TRY(cudaEventRecord(begin, k->cuda->stream));
        TR_TRY(c->run(k));
        TR_CUDA_TRY(cudaEventRecord(end, k->cuda->stream));
        TR_CUDA_TRY(cudaEventSynchronize(end));
        TR_CUDA_TRY(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0) seconds[i] = ms * 1e-3;
    }
    qsort(seconds, RUNS, sizeof *seconds, by_size);
    *out = seconds[RUNS / 2];
out:
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    return st;
}

/* *copy: the copy's rate; that of the first case. */
static tr_status one(tr_cuda *cuda, const bench_case *c, size_t divide, void *flush, double *copy)
{
    tr_status st = TR_OK;
    double seconds = 0;
    bench k = {.cuda = cuda, .rows = c->rows / divide + 1, .width = c->width};
    if (divide == 1) k.rows = c->rows;
    k.n = k.rows * k.width;
    TR_TRY(c->open(&k));
    if (k.left_out) goto out;
    TR_TRY(measure(&k, c, flush, FLUSH / divide, &seconds));
    const double bytes = c->per_element * (double)k.n, rate = seconds > 0 ? bytes / seconds : 0;
    if (*copy == 0) *copy = rate;
    printf("{\"kernel\":\"%s\",\"bytes\":%.0f,\"us\":%.1f,\"gb_per_s\":%.0f,\"of_copy\":%.3f,"
           "\"goal\":%.2f,\"tflop_per_s\":%.1f}\n",
           c->name, bytes, seconds * 1e6, rate * 1e-9, *copy > 0 ? rate / *copy : 0, c->goal,
           seconds > 0 ? k.flops / seconds * 1e-12 : 0);
    fflush(stdout);
out:
    (void)b->stream->finish(cuda);
    tr_dnn_call_close(&k.call);
    b->training->updater_close(k.updater);
    b->training->close(k.training);
    b->memory->free(cuda, k.control);
    for (int i = 0; i < k.arrays; i++) b->memory->free(cuda, k.array[i]);
    return st;
}

int main(int argc, char **argv)
{
    tr_status st = TR_OK;
    if (argc == 2 && strcmp(argv[1], "devices") == 0) {
        char why[256] = "";
        printf("{\"devices\":%d}\n", b->devices(why, sizeof why));
        if (why[0]) fprintf(stderr, "bench_cuda_kernels: %s\n", why);
        return 0;
    }
    const size_t divide = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const tr_backend_options o = {.workspace = 32 << 20};
    void *cuda = NULL, *flush = NULL;
    double copy = 0;
    TR_NEED(argc <= 2 && divide > 0, TR_CONFIG, "usage: bench_cuda_kernels [divide | devices]");
    TR_TRY(b->open(&o, &cuda));
    flush = b->memory->alloc(cuda, TR_MEM_OTHER, FLUSH);
    if (!flush) TR_TRY(tr_last_error()->status);
    for (size_t s = 0; s < TR_COUNT(subjects); s++)
        for (size_t i = 0; i < subjects[s]->count; i++)
            TR_TRY(one(cuda, &subjects[s]->cases[i], divide, flush, &copy));
out:
    if (st != TR_OK) fprintf(stderr, "bench_cuda_kernels: %s\n", tr_last_error()->text);
    if (cuda) b->memory->free(cuda, flush);
    b->close(cuda);
    return st == TR_OK ? 0 : 1;
}
