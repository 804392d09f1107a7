/* What kernels made of our own loops share: the struct's head, the cut of the work into chunks, and
 * look-ups in the graph.
 *
 * Chunks have a fixed size that does not depend on the number of threads, and partial results are
 * merged in chunk order: the results are bitwise the same for any number of threads. */
#ifndef TR_CPU_LOOP_KERNEL_H
#define TR_CPU_LOOP_KERNEL_H

#include "kernels/cpu/internal.h"
#include "kernels/cpu/loops/loops.h"

/* Elements of a chunk: 128 KiB of bf16, 256 KiB of float32, about half of a second-level cache with
 * the other operands. */
enum { TR_CHUNK = 65536 };

/* Head of every kernel struct here. */
typedef struct {
    tr_kernel base;
    tr_binding b;
    const tr_cpu_loops *loops;
    int threads;
    tr_dtype dtype; /* of the activations */
} tr_loop_kernel;

/* Before a for loop over that many chunks: shares them out over the threads. A single chunk wakes
 * nobody. */
#define TR_OMP(text) _Pragma(#text)
#define TR_PARALLEL(threads, chunks)                                                               \
    TR_OMP(omp parallel for num_threads(threads) schedule(static) if ((chunks) > 1 && (threads) > 1))

/* A kernel of `size` bytes that starts with tr_loop_kernel, zeroed but for that head: its
 * activations are of the type of `like`; no workspace, nothing packed; every operand can be
 * rebound. Written to the pointer at `out`. */
tr_status tr_loop_kernel_open(tr_cpu *cpu, const tr_tensor *like, const char *impl,
                              tr_status (*run)(tr_kernel *, const tr_run *), size_t size,
                              void *out);

/* The same of values of 8 bits, too. */
tr_status tr_loop_kernel_open_steps(tr_cpu *cpu, const tr_tensor *like, const char *impl,
                                    tr_status (*run)(tr_kernel *, const tr_run *), size_t size,
                                    void *out);

/* Operand i; NULL when absent. */
static inline const tr_tensor *tr_loop_in(const tr_graph *g, const tr_op *op, int i)
{
    return i < op->nin && op->in[i] >= 0 ? &g->tensors[op->in[i]] : NULL;
}

static inline const tr_tensor *tr_loop_out(const tr_graph *g, const tr_op *op, int i)
{
    return i < op->nout && op->out[i] >= 0 ? &g->tensors[op->out[i]] : NULL;
}

/* Element i of an array of type t on. */
static inline const void *tr_loop_at(tr_dtype t, const void *p, size_t i)
{
    return p ? (const char *)p + i * (t == TR_BF16 ? 2 : 4) : NULL;
}

static inline void *tr_loop_to(tr_dtype t, void *p, size_t i)
{
    return p ? (char *)p + i * (t == TR_BF16 ? 2 : 4) : NULL;
}

static inline size_t tr_chunks(size_t count, size_t chunk)
{
    return (count + chunk - 1) / chunk;
}

static inline size_t tr_chunk_size(size_t count, size_t chunk, size_t i)
{
    return count - i * chunk < chunk ? count - i * chunk : chunk;
}

/* Rows of a chunk of rows of `width`: at least 64, so that partial sums stay few. */
static inline size_t tr_chunk_rows(size_t width)
{
    size_t rows = TR_CHUNK / (width ? width : 1);
    return rows < 64 ? 64 : rows;
}

#endif
