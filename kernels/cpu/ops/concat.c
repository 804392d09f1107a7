/* Concatenation along a dimension and its gradient: copies of row pieces. A row is what is stored
 * from one place of the dimensions before it to the next. */
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

typedef struct {
    tr_loop_kernel k;
    size_t rows, width;     /* bytes from one row of the whole to the next */
    size_t part[TR_MAX_IN]; /* bytes of each piece of it */
    size_t from[TR_MAX_IN]; /* bytes from one row of the piece to the next */
    bool there[TR_MAX_IN];  /* it lies in the whole already */
    int count;
    bool split;
} kernel;

enum { ROWS = 64 };

static void copy_rows(const kernel *k, size_t begin, size_t end)
{
    const tr_binding *b = &k->k.b;
    size_t at = 0;
    for (int i = 0; i < k->count; i++) {
        const size_t n = k->part[i], step = k->from[i];
        if (k->there[i]) {
            at += n;
            continue;
        }
        if (k->split) {
            char *part = b->out[i];
            const char *whole = (const char *)b->in[0] + at;
            for (size_t r = begin; part && r < end; r++)
                memcpy(part + r * step, whole + r * k->width, n);
        } else {
            const char *part = b->in[i];
            char *whole = (char *)b->out[0] + at;
            for (size_t r = begin; r < end; r++) memcpy(whole + r * k->width, part + r * step, n);
        }
        at += n;
    }
}

static tr_status run_concat(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const kernel *k = (const kernel *)base;
    TR_PARALLEL(k->k.threads, tr_chunks(k->rows, ROWS))
    for (size_t i = 0; i < tr_chunks(k->rows, ROWS); i++)
        copy_rows(k, i * ROWS, i * ROWS + tr_chunk_size(k->rows, ROWS, i));
    return TR_OK;
}

static void set_parts(kernel *k, const tr_tensor *whole, const tr_op *op, int count)
{
    const tr_concat_attrs *a = op->attrs;
    const int axis = (int)a->axis;
    const size_t inner = tr_stored_behind(whole, axis), along = (size_t)whole->dims[axis];
    k->rows = whole->count / (inner * along);
    k->width = inner * along * tr_dtype_size(whole->dtype);
    k->count = count;
    for (int i = 0; i < count; i++)
        k->from[i] = k->part[i] = k->width / along * (size_t)a->width[i];
}

/* `whole` side by side from pieces, `count` of them. */
static tr_status open_concat(tr_cpu *cpu, const tr_tensor *whole, const tr_op *op, bool split,
                             int count, tr_kernel **out)
{
    kernel *k = NULL;
    tr_status st = tr_loop_kernel_open(cpu, whole, "own: copies", run_concat, sizeof *k, &k);
    if (st != TR_OK) return st;
    set_parts(k, whole, op, count);
    k->split = split;
    *out = &k->k.base;
    return TR_OK;
}

tr_status tr_cpu_concat(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *y = tr_loop_out(g, op, 0);
    tr_status st = open_concat(cpu, y, op, false, op->nin, out);
    if (st != TR_OK) return st;
    kernel *k = (kernel *)*out;
    const size_t size = tr_dtype_size(y->dtype);
    if (y->pitch > 0) k->width = (size_t)y->pitch * size;
    for (int i = 0; i < op->nin; i++) {
        const tr_tensor *x = tr_loop_in(g, op, i);
        if (x->pitch > 0) k->from[i] = (size_t)x->pitch * size;
        k->there[i] = tr_concat_in_place(g, op, i);
    }
    return TR_OK;
}

tr_status tr_cpu_concat_grad(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return open_concat(cpu, tr_loop_in(g, op, 0), op, true, op->nout, out);
}

/* ---- Of 8 bits: copies where scales are the same ---- */

typedef struct {
    kernel k;
    bool is_signed, from_signed[TR_MAX_IN], same[TR_MAX_IN];
    float factor[TR_MAX_IN]; /* a piece's scale over the whole's */
} steps_kernel;

static void requantize_rows(const steps_kernel *s, size_t begin, size_t end)
{
    const kernel *k = &s->k;
    size_t at = 0;
    for (int i = 0; i < k->count; at += k->part[i++]) {
        const char *part = k->k.b.in[i];
        char *whole = (char *)k->k.b.out[0] + at;
        for (size_t r = begin; r < end; r++)
            if (s->same[i])
                memcpy(whole + r * k->width, part + r * k->part[i], k->part[i]);
            else
                k->k.loops->requantize(s->from_signed[i], s->is_signed, s->factor[i],
                                       part + r * k->part[i], whole + r * k->width, k->part[i]);
    }
}

static tr_status run_steps(tr_kernel *base, const tr_run *run)
{
    (void)run;
    const steps_kernel *s = (const steps_kernel *)base;
    const kernel *k = &s->k;
    TR_PARALLEL(k->k.threads, tr_chunks(k->rows, ROWS))
    for (size_t i = 0; i < tr_chunks(k->rows, ROWS); i++)
        requantize_rows(s, i * ROWS, i * ROWS + tr_chunk_size(k->rows, ROWS, i));
    return TR_OK;
}

tr_status tr_cpu_concat_int8(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *y = tr_loop_out(g, op, 0);
    steps_kernel *s = NULL;
    const tr_status st =
        tr_loop_kernel_open_steps(cpu, y, "own: rounded copies", run_steps, sizeof *s, &s);
    if (st != TR_OK) return st;
    set_parts(&s->k, y, op, op->nin);
    s->is_signed = y->dtype == TR_I8;
    for (int i = 0; i < op->nin; i++) {
        const tr_tensor *x = tr_loop_in(g, op, i);
        s->from_signed[i] = x->dtype == TR_I8;
        s->factor[i] = x->scale / y->scale;
        s->same[i] = x->dtype == y->dtype && x->scale == y->scale;
    }
    *out = &s->k.k.base;
    return TR_OK;
}
