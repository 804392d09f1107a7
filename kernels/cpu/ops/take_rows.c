/* One row made of a sample's: the mean of those that are taken, which may be one alone. Of each
 * sample they are an image, which the loops of pooling have one window over; zeros where there are
 * none, and at rows that are not taken. */
#include "kernels/cpu/ops/loop_kernel.h"
#include "runtime/graph/rows.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    tr_rows_attrs a;
    size_t samples, rows, row; /* row: its bytes */
    tr_cpu_pool pool;          /* of one sample, but for its height */
} kernel;

static tr_row_range range_of(const kernel *k, size_t sample)
{
    return tr_rows_taken(k->a.mean, k->a.at, k->k.b.in[1], sample, (int64_t)k->rows);
}

static tr_cpu_pool window(const kernel *k, tr_row_range taken)
{
    tr_cpu_pool p = k->pool;
    p.H = p.kernel[0] = p.stride[0] = taken.end - taken.begin;
    return p;
}

static tr_status run_take(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    TR_PARALLEL(k->k.threads, k->samples)
    for (size_t i = 0; i < k->samples; i++) {
        const tr_row_range taken = range_of(k, i);
        const tr_cpu_pool p = window(k, taken);
        const char *x = (const char *)k->k.b.in[0] + (i * k->rows + (size_t)taken.begin) * k->row;
        char *y = (char *)k->k.b.out[0] + i * k->row;
        if (p.H == 0)
            memset(y, 0, k->row);
        else
            k->k.loops->avg_pool(&p, x, y, 0, 1);
    }
    return TR_OK;
}

static tr_status run_grad(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    TR_PARALLEL(k->k.threads, k->samples)
    for (size_t i = 0; i < k->samples; i++) {
        const tr_row_range taken = range_of(k, i);
        const tr_cpu_pool p = window(k, taken);
        const char *dy = (const char *)k->k.b.in[0] + i * k->row;
        char *dx = (char *)k->k.b.out[0] + i * k->rows * k->row;
        memset(dx, 0, (size_t)taken.begin * k->row);
        if (p.H > 0)
            k->k.loops->avg_pool_grad(&p, dy, dx + (size_t)taken.begin * k->row, 0, (size_t)p.H);
        memset(dx + (size_t)taken.end * k->row, 0, (k->rows - (size_t)taken.end) * k->row);
    }
    return TR_OK;
}

static tr_status prepare(tr_cpu *cpu, const tr_op *op, const tr_tensor *x,
                         tr_status (*run)(tr_kernel *, const tr_run *), tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_loop_kernel_open(cpu, x, "own: by samples", run, sizeof *k, &k));
    k->a = *(const tr_rows_attrs *)op->attrs;
    k->samples = (size_t)x->dims[0];
    k->rows = (size_t)x->dims[1];
    k->row = (size_t)x->dims[2] * tr_dtype_size(x->dtype);
    k->pool = (tr_cpu_pool){.type = x->dtype,
                            .C = (size_t)x->dims[2],
                            .W = 1,
                            .OH = 1,
                            .OW = 1,
                            .kernel = {1, 1},
                            .stride = {1, 1}};
    *out = &k->k.base;
out:
    return st;
}

tr_status tr_cpu_take_rows(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cpu, op, tr_loop_in(g, op, 0), run_take, out);
}

tr_status tr_cpu_take_rows_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return prepare(cpu, op, tr_loop_out(g, op, 0), run_grad, out);
}
