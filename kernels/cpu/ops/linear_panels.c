/* Linear layers that answer: products of some rows with panels of TR_CPU_PANEL outputs (loops/panel.c), the weight packed
 * panel by panel. In bfloat16 the weight stays so, half to read, and is widened on the way, as rows are before: products
 * are of float32, where the CPU's own of bfloat16 take twice as long. Threads share panels. */
#include "kernels/cpu/ops/linear_panels.h"

#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/ops/loop_kernel.h"

#include <omp.h>
#include <string.h>

enum { LEAST = 8, MOST = 512, CHUNK = 256 /* elements of outputs that are packed at a time */ };

typedef struct {
    tr_loop_kernel l;
    tr_cpu_panel shape;
    tr_act act;
    size_t out;
    bool direct; /* sums go to y as they are */
    size_t wide,
        sums; /* in the workspace: rows as float32; of each thread (rows, TR_CPU_PANEL) sums */
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

static size_t panel_bytes(const kernel *k)
{
    return k->shape.depth * TR_CPU_PANEL * tr_dtype_size(k->shape.type);
}

/* Rows of a panel in the order of bfloat16's (loops.h), or back. */
static void mix(float *rows, size_t n, bool back)
{
    enum { HALF = TR_CPU_PANEL / 2 };
    for (size_t i = 0; i < n; i++, rows += TR_CPU_PANEL) {
        float was[TR_CPU_PANEL];
        memcpy(was, rows, sizeof was);
        for (size_t o = 0; o < HALF; o++) {
            rows[back ? o : 2 * o] = was[back ? 2 * o : o];
            rows[back ? HALF + o : 2 * o + 1] = was[back ? 2 * o + 1 : HALF + o];
        }
    }
}

/* Elements [at, at + n) of the weight's rows from output `o` on, to their part of a panel, or back. */
static void move(const kernel *k, bool back, size_t o, size_t at, size_t n)
{
    const tr_cpu_loops *loops = k->l.loops;
    const size_t depth = k->shape.depth;
    const tr_dtype type = k->shape.type;
    float wide[CHUNK * TR_CPU_PANEL], *weight = (float *)k->l.b.in[WEIGHT] + o * depth + at;
    void *panel = tr_loop_to(type, k->l.b.packed[0], o * depth + at * TR_CPU_PANEL);
    float *f = type == TR_F32 ? panel : wide;
    if (back) {
        if (type == TR_BF16) loops->cast_f32(wide, panel, n * TR_CPU_PANEL), mix(wide, n, true);
        loops->transpose_apart(f, TR_CPU_PANEL, weight, depth, n, TR_CPU_PANEL);
        return;
    }
    loops->transpose_apart(weight, depth, f, TR_CPU_PANEL, TR_CPU_PANEL, n);
    if (type == TR_BF16) mix(wide, n, false), loops->cast_bf16(panel, wide, n * TR_CPU_PANEL);
}

static tr_status move_all(const kernel *k, bool back)
{
    const size_t depth = k->shape.depth;
    for (size_t o = 0; o < k->out; o += TR_CPU_PANEL)
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

static void run_panel(const kernel *k, const float *x, size_t panel)
{
    const tr_binding *b = &k->l.b;
    const size_t o = panel * TR_CPU_PANEL;
    const void *w = (const char *)b->packed[0] + panel * panel_bytes(k);
    const float *bias = b->in[BIAS] ? (const float *)b->in[BIAS] + o : NULL;
    if (k->direct) {
        k->l.loops->panel(&k->shape, x, w, bias, (float *)b->out[0] + o);
        return;
    }
    float *sums = (float *)(void *)((char *)b->workspace + k->sums) +
                  (size_t)omp_get_thread_num() * k->shape.rows * TR_CPU_PANEL;
    k->l.loops->panel(&k->shape, x, w, bias, sums);
    for (size_t r = 0; r < k->shape.rows; r++)
        k->l.loops->add_act(k->l.dtype, k->act, sums + r * TR_CPU_PANEL, NULL,
                            tr_loop_to(k->l.dtype, b->out[0], r * k->out + o), TR_CPU_PANEL);
}

static tr_status run(tr_kernel *base, const tr_run *r)
{
    const kernel *k = (const kernel *)base;
    const size_t panels = k->out / TR_CPU_PANEL;
    const float *x = k->l.b.in[X];
    (void)r;
    if (k->l.dtype == TR_BF16) {
        float *wide = (float *)(void *)((char *)k->l.b.workspace + k->wide);
        k->l.loops->cast_f32(wide, k->l.b.in[X], k->shape.rows * k->shape.depth);
        x = wide;
    }
    TR_PARALLEL(k->l.threads, panels)
    for (size_t i = 0; i < panels; i++) run_panel(k, x, i);
    return TR_OK;
}

tr_status tr_cpu_linear_panels(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = &g->tensors[op->in[X]], *weight = &g->tensors[op->in[WEIGHT]];
    kernel *k;
    const tr_status st = tr_loop_kernel_open(cpu, x, "own: panels", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    const size_t depth = (size_t)weight->dims[1], rows = x->count / depth;
    k->out = (size_t)weight->dims[0];
    k->act = op->act;
    k->direct = x->dtype == TR_F32 && (op->act == TR_ACT_NONE || op->act == TR_ACT_RELU);
    k->shape = (tr_cpu_panel){.rows = rows,
                              .depth = depth,
                              .x_pitch = depth,
                              .y_pitch = k->direct ? k->out : TR_CPU_PANEL,
                              .type = x->dtype,
                              .relu = k->direct && op->act == TR_ACT_RELU};
    k->sums = x->dtype == TR_BF16 ? tr_align_up(rows * depth * sizeof(float), 64) : 0;
    if (!k->direct)
        k->l.base.workspace = k->sums + (size_t)cpu->threads * rows * TR_CPU_PANEL * sizeof(float);
    memcpy(k->format.what, "panels", sizeof "panels");
    k->format.type = x->dtype;
    k->format.out = TR_CPU_PANEL;
    k->l.base.npacked = 1;
    k->l.base.packed[0] = (tr_packing){.param = weight->index,
                                       .nbytes = k->out * depth * tr_dtype_size(x->dtype),
                                       .format = &k->format,
                                       .format_size = sizeof k->format};
    k->l.base.pack = pack;
    k->l.base.unpack = unpack;
    *out = &k->l.base;
    return TR_OK;
}
