/* Threads share panels; sums that are not yet what is stored go through a buffer of each thread. */
#include "kernels/cpu/ops/panels.h"

#include <omp.h>
#include <string.h>

/* n rows of TR_CPU_PANEL floats as outputs have them, in the order in which a panel of bfloat16 has
 * them, or back. */
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

enum { WEIGHT = 1 };

static void move(const tr_panels_kernel *k, bool back, size_t o, size_t at, size_t n)
{
    const tr_cpu_loops *loops = k->l.loops;
    const tr_dtype type = k->p.type;
    float wide[TR_CPU_PANEL_ROWS * TR_CPU_PANEL];
    void *panel = tr_loop_to(type, k->l.b.packed[0], o * k->p.depth + at * TR_CPU_PANEL);
    float *rows = type == TR_F32 ? panel : wide;
    if (back && type == TR_BF16) {
        loops->cast_f32(wide, panel, n * TR_CPU_PANEL);
        mix(wide, n, true);
    }
    k->move(k, back, o, at, n, rows);
    if (back || type == TR_F32) return;
    mix(wide, n, false);
    loops->cast_bf16(panel, wide, n * TR_CPU_PANEL);
}

static tr_status move_all(tr_kernel *base, bool back)
{
    const tr_panels_kernel *k = (const tr_panels_kernel *)base;
    const size_t depth = k->p.depth;
    for (size_t o = 0; o < k->p.out; o += TR_CPU_PANEL)
        for (size_t at = 0; at < depth; at += TR_CPU_PANEL_ROWS)
            move(k, back, o, at, tr_chunk_size(depth, TR_CPU_PANEL_ROWS, at / TR_CPU_PANEL_ROWS));
    return TR_OK;
}

static tr_status pack(tr_kernel *base, int which)
{
    (void)which;
    return move_all(base, false);
}

static tr_status unpack(tr_kernel *base, int which)
{
    (void)which;
    return move_all(base, true);
}

void tr_panels_kernel_packs(tr_panels_kernel *k, const tr_tensor *weight, const char *what)
{
    snprintf(k->format.what, sizeof k->format.what, "%s", what);
    k->format.type = k->p.type;
    k->format.out = TR_CPU_PANEL;
    k->l.base.npacked = 1;
    k->l.base.packed[0] = (tr_packing){.param = weight->index,
                                       .nbytes = weight->count * tr_dtype_size(k->p.type),
                                       .format = &k->format,
                                       .format_size = sizeof k->format};
    k->l.base.pack = pack;
    k->l.base.unpack = unpack;
}

/* ---- Products -------------------------------------------------------------------------------- */

enum { DEPTH = 288 };

/* The sums of one row. */
static void store(const tr_panels *p, const float *sums, const void *residual, void *y)
{
    float wide[TR_CPU_PANEL];
    const void *in[] = {sums, residual};
    if (!residual) {
        p->loops->add_act(p->type, p->act, sums, NULL, y, TR_CPU_PANEL);
        return;
    }
    if (p->type == TR_F32) {
        p->loops->add(TR_F32, p->act, 2, in, y, TR_CPU_PANEL);
        return;
    }
    p->loops->cast_f32(wide, residual, TR_CPU_PANEL);
    in[1] = wide;
    p->loops->add(TR_F32, p->act, 2, in, wide, TR_CPU_PANEL);
    p->loops->cast_bf16(y, wide, TR_CPU_PANEL);
}

/* One panel's sums, by parts of its depth that stay in a first-level cache while rows go by. */
static void sum_up(const tr_panels *p, size_t rows, const float *x, const void *w,
                   const float *bias, bool relu, float *y, size_t y_pitch)
{
    const size_t parts = tr_chunks(p->depth, DEPTH),
                 each = tr_align_up(tr_chunks(p->depth, parts), 2);
    tr_cpu_panel shape = {.rows = rows, .x_pitch = p->depth, .y_pitch = y_pitch, .type = p->type};
    for (size_t at = 0; at < p->depth; at += each) {
        shape.depth = p->depth - at < each ? p->depth - at : each;
        shape.add = at > 0;
        shape.relu = relu && at + each >= p->depth;
        p->loops->panel(&shape, x + at, tr_loop_at(p->type, w, at * TR_CPU_PANEL), bias, y);
    }
}

void tr_panels_run(const tr_panels *p, size_t rows, const float *x, const void *packed,
                   const float *bias, const void *residual, void *y, float *sums)
{
    const size_t panels = p->out / TR_CPU_PANEL;
    const bool direct =
        p->type == TR_F32 && !residual && (p->act == TR_ACT_NONE || p->act == TR_ACT_RELU);
    TR_PARALLEL(p->threads, panels)
    for (size_t i = 0; i < panels; i++) {
        const size_t o = i * TR_CPU_PANEL;
        float *own =
            direct ? (float *)y + o : sums + (size_t)omp_get_thread_num() * tr_panels_sums(rows);
        sum_up(p, rows, x, tr_loop_at(p->type, packed, o * p->depth), bias ? bias + o : NULL,
               direct && p->act == TR_ACT_RELU, own, direct ? p->out : TR_CPU_PANEL);
        for (size_t r = 0; r < rows && !direct; r++)
            store(p, own + r * TR_CPU_PANEL, tr_loop_at(p->type, residual, r * p->out + o),
                  tr_loop_to(p->type, y, r * p->out + o));
    }
}
