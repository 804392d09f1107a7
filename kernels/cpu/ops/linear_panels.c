/* Linear layers that answer: products of some rows with panels of TR_CPU_PANEL outputs (loops/panel.c), the weight packed
 * panel by panel. In bfloat16 the weight stays so, half to read, and is widened on the way, as rows are before: products
 * are of float32, where the CPU's own of bfloat16 take twice as long. Threads share panels. */
#include "kernels/cpu/ops/linear_panels.h"

#include "kernels/cpu/ops/loop_kernel.h"
#include "kernels/cpu/ops/panels.h"

#include <string.h>

enum { LEAST = 8, MOST = 512, CHUNK = 256 /* elements of outputs that are packed at a time */ };

typedef struct {
    tr_loop_kernel l;
    tr_panels p;
    size_t rows;
    size_t sums; /* in the workspace, behind rows as float32 */
    struct {
        char what[8];
        int32_t type, out;
    } format;
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

/* Elements [at, at + n) of the weight's rows from output `o` on, to their part of a panel, or back. */
static void move(const kernel *k, bool back, size_t o, size_t at, size_t n)
{
    const tr_cpu_loops *loops = k->l.loops;
    const size_t depth = k->p.depth;
    const tr_dtype type = k->p.type;
    float wide[CHUNK * TR_CPU_PANEL], *weight = (float *)k->l.b.in[WEIGHT] + o * depth + at;
    void *panel = tr_loop_to(type, k->l.b.packed[0], o * depth + at * TR_CPU_PANEL);
    float *f = type == TR_F32 ? panel : wide;
    if (back) {
        if (type == TR_BF16)
            loops->cast_f32(wide, panel, n * TR_CPU_PANEL), tr_panels_mix(wide, n, true);
        loops->transpose_apart(f, TR_CPU_PANEL, weight, depth, n, TR_CPU_PANEL);
        return;
    }
    loops->transpose_apart(weight, depth, f, TR_CPU_PANEL, TR_CPU_PANEL, n);
    if (type == TR_BF16)
        tr_panels_mix(wide, n, false), loops->cast_bf16(panel, wide, n * TR_CPU_PANEL);
}

static tr_status move_all(const kernel *k, bool back)
{
    const size_t depth = k->p.depth;
    for (size_t o = 0; o < k->p.out; o += TR_CPU_PANEL)
        for (size_t at = 0; at < depth; at += CHUNK)
            move(k, back, o, at, tr_chunk_size(depth, CHUNK, at / CHUNK));
    return TR_OK;
}

static tr_status pack(tr_kernel *base, int which)
{
    (void)which;
    return move_all((const kernel *)base, false);
}

static tr_status unpack(tr_kernel *base, int which)
{
    (void)which;
    return move_all((const kernel *)base, true);
}

static tr_status run(tr_kernel *base, const tr_run *r)
{
    const kernel *k = (const kernel *)base;
    const tr_binding *b = &k->l.b;
    const float *x = b->in[X];
    (void)r;
    if (k->p.type == TR_BF16) {
        k->l.loops->cast_f32(b->workspace, b->in[X], k->rows * k->p.depth);
        x = b->workspace;
    }
    tr_panels_run(&k->p, k->rows, x, b->packed[0], b->in[BIAS], NULL, b->out[0],
                  (float *)(void *)((char *)b->workspace + k->sums));
    return TR_OK;
}

tr_status tr_cpu_linear_panels(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = &g->tensors[op->in[X]], *weight = &g->tensors[op->in[WEIGHT]];
    kernel *k;
    const tr_status st = tr_loop_kernel_open(cpu, x, "own: panels", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    k->p = (tr_panels){.loops = cpu->loops,
                       .depth = (size_t)weight->dims[1],
                       .out = (size_t)weight->dims[0],
                       .type = x->dtype,
                       .act = op->act,
                       .threads = cpu->threads};
    k->rows = x->count / k->p.depth;
    k->sums = x->dtype == TR_BF16 ? tr_align_up(x->count * sizeof(float), 64) : 0;
    k->l.base.workspace = k->sums + (size_t)cpu->threads * tr_panels_sums(k->rows) * sizeof(float);
    memcpy(k->format.what, "panels", sizeof "panels");
    k->format.type = x->dtype;
    k->format.out = TR_CPU_PANEL;
    k->l.base.npacked = 1;
    k->l.base.packed[0] = (tr_packing){.param = weight->index,
                                       .nbytes = weight->count * tr_dtype_size(x->dtype),
                                       .format = &k->format,
                                       .format_size = sizeof k->format};
    k->l.base.pack = pack;
    k->l.base.unpack = unpack;
    *out = &k->l.base;
    return TR_OK;
}
