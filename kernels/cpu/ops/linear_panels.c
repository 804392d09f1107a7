/* Linear layers that answer: products of some rows with panels of TR_CPU_PANEL outputs
 * (loops/panel.c), the weight packed panel by panel. In bfloat16 the weight stays so, half to read,
 * and is widened on the way, as rows are before: products are of float32, where the CPU's own of
 * bfloat16 take twice as long. Threads share panels. */
#include "kernels/cpu/ops/linear_panels.h"

#include "kernels/cpu/ops/loop_kernel.h"
#include "kernels/cpu/ops/panels.h"

#include <string.h>

enum { LEAST = 8, MOST = 512 };

typedef struct {
    tr_panels_kernel w;
    size_t rows;
    size_t sums; /* in the workspace, behind rows as float32 */
} kernel;

enum { X, WEIGHT, BIAS };

bool tr_cpu_takes_panels(const tr_cpu *cpu, const tr_graph *g, const tr_op *op, int64_t rows)
{
    const tr_tensor *x = &g->tensors[op->in[X]], *weight = &g->tensors[op->in[WEIGHT]];
    const tr_linear_attrs *a = op->attrs;
    const bool plain = !a || a->sketch.side == TR_SKETCH_NONE;
    const bool type = x->dtype == TR_F32 || (x->dtype == TR_BF16 && !cpu->bf16_faster);
    return plain && type && cpu->isa >= TR_ISA_AVX512 && g->mode == TR_MODE_INFER &&
           g->decode.rows == 0 && rows >= LEAST && rows <= MOST && weight->ndim == 2 &&
           weight->dims[0] % TR_CPU_PANEL == 0;
}

static void move(const tr_panels_kernel *k, bool back, size_t o, size_t at, size_t n, float *rows)
{
    const size_t depth = k->p.depth;
    float *weight = (float *)k->l.b.in[WEIGHT] + o * depth + at;
    if (back)
        k->l.loops->transpose_apart(rows, TR_CPU_PANEL, weight, depth, n, TR_CPU_PANEL);
    else
        k->l.loops->transpose_apart(weight, depth, rows, TR_CPU_PANEL, TR_CPU_PANEL, n);
}

static tr_status run(tr_kernel *base, const tr_run *r)
{
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->w.l.b;
    const float *x = b->in[X];
    (void)r;
    if (k->w.p.type == TR_BF16) {
        k->w.l.loops->cast_f32(b->workspace, b->in[X], k->rows * k->w.p.depth);
        x = b->workspace;
    }
    tr_panels_run(&k->w.p, k->rows, x, b->packed[0], b->in[BIAS], NULL, b->out[0],
                  (float *)(void *)((char *)b->workspace + k->sums));
    return TR_OK;
}

tr_status tr_cpu_linear_panels(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = &g->tensors[op->in[X]], *weight = &g->tensors[op->in[WEIGHT]];
    kernel *k;
    const tr_status st = tr_loop_kernel_open(cpu, x, "own: panels", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->w.p = (tr_panels){.loops = cpu->loops,
                         .depth = (size_t)weight->dims[1],
                         .out = (size_t)weight->dims[0],
                         .type = x->dtype,
                         .act = op->act,
                         .threads = cpu->threads};
    k->rows = x->count / k->w.p.depth;
    k->sums = x->dtype == TR_BF16 ? tr_align_up(x->count * sizeof(float), 64) : 0;
    k->w.l.base.workspace =
        k->sums + (size_t)cpu->threads * tr_panels_sums(k->rows) * sizeof(float);
    k->w.move = move;
    tr_panels_kernel_packs(&k->w, weight, "panels");
    *out = &k->w.l.base;
    return TR_OK;
}
