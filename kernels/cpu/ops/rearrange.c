/* Reshape, permute and their gradients: a transposition of each sample where it is one, a plain
 * copy where the graph did not make it a view, else a gathering by a table of places that is made
 * when the kernel is prepared. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    tr_transposition t;
    size_t size, count; /* bytes of an element; elements of a sample */
    int32_t *table;     /* NULL: a transposition */
} kernel;

#define GATHER(type)                                                                               \
    for (size_t i = 0; i < k->count; i++) ((type *)y)[i] = ((const type *)x)[k->table[i]]

static void gather(const kernel *k, const void *x, void *y)
{
    if (k->size == 4)
        GATHER(uint32_t);
    else if (k->size == 2)
        GATHER(uint16_t);
    else
        GATHER(uint8_t);
}

static tr_status run_rearrange(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    const char *x = k->k.b.in[0];
    char *y = k->k.b.out[0];
    const size_t nbytes = k->count * k->size;
    if (!k->table && (k->t.rows == 1 || k->t.cols == 1)) {
        memcpy(y, x, k->t.samples * nbytes);
        return TR_OK;
    }
    TR_PARALLEL(k->k.threads, k->t.samples)
    for (size_t i = 0; i < k->t.samples; i++)
        if (k->table)
            gather(k, x + i * nbytes, y + i * nbytes);
        else
            k->k.loops->transpose(k->size, x + i * nbytes, y + i * nbytes, k->t.rows, k->t.cols);
    return TR_OK;
}

static void close_rearrange(tr_kernel *base)
{
    kernel *k = (kernel *)base;
    tr_free(k->table);
    tr_free(k);
}

tr_status tr_cpu_rearrange(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = tr_loop_in(g, op, 0);
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_loop_kernel_open_steps(cpu, x, "own", run_rearrange, sizeof *k, &k));
    k->k.base.close = close_rearrange;
    k->size = tr_dtype_size(x->dtype);
    k->count = x->dims[0] ? x->count / (size_t)x->dims[0] : 0;
    if (!tr_rearrange_of(g, op, &k->t)) {
        k->table = tr_alloc(TR_MEM_OTHER, k->count, sizeof *k->table);
        TR_HAVE(k->table);
        tr_rearrange_table(g, op, k->table);
    }
    *out = &k->k.base;
out:
    if (st != TR_OK && k) close_rearrange(&k->k.base);
    return st;
}
