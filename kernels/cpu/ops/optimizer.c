/* The optimizer sweep and the gradient's sum of squares, shared out over the threads in chunks. */
#include "kernels/cpu/ops/loop_kernel.h"

void tr_cpu_update(void *ctx, const tr_update *u)
{
    const tr_cpu *cpu = ctx;
    const tr_cpu_loops *loops = cpu->loops;
    TR_PARALLEL(cpu->threads)
    for (size_t i = 0; i < tr_chunks(u->count, TR_CHUNK); i++)
        loops->update(u, i * TR_CHUNK, i * TR_CHUNK + tr_chunk_size(u->count, TR_CHUNK, i));
}

/* Partial sums live on the stack: a wave of at most PARTS chunks at a time. */
double tr_cpu_sum_squares(void *ctx, const float *g, size_t count)
{
    enum { PARTS = 256 };
    const tr_cpu *cpu = ctx;
    const tr_cpu_loops *loops = cpu->loops;
    const size_t chunks = tr_chunks(count, TR_CHUNK);
    double total = 0.0, parts[PARTS];
    for (size_t first = 0; first < chunks; first += PARTS) {
        const size_t n = chunks - first < PARTS ? chunks - first : PARTS;
        TR_PARALLEL(cpu->threads)
        for (size_t i = 0; i < n; i++)
            parts[i] = loops->sum_squares(g + (first + i) * TR_CHUNK,
                                          tr_chunk_size(count, TR_CHUNK, first + i));
        for (size_t i = 0; i < n; i++) total += parts[i];
    }
    return total;
}
