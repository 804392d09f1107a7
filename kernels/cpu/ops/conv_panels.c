/* Convolutions that answer, as products of rows with panels of their weight (panels.h): what some
 * positions of the output read is laid out as rows, a block of positions at a time, from a copy of
 * the image with its padding, in float32.
 *
 * For two kinds. Small images with large weights: oneDNN's convolutions read the weight once for
 * each row of the output, from beyond the second-level cache; here a block of positions is all of
 * it. And bfloat16 without AMX, whose products take twice as long as float32's. One thread, 7 x 7,
 * 512 to 512 channels, 3 x 3: 1.7 ms in float32 for 1.9, and in bfloat16 for 2.4. */
#include "kernels/cpu/ops/conv_panels.h"

#include "kernels/cpu/ops/loop_kernel.h"
#include "kernels/cpu/ops/panels.h"

#include <omp.h>
#include <string.h>

enum { X, WEIGHT, BIAS, RESIDUAL };
/* Positions at a time; bytes of a weight that no second-level cache keeps beside all else; channels
 * whose copies are not too short. */
enum { BLOCK = 64, LARGE = 1 << 20, CHANNELS = 16 };

typedef struct {
    tr_panels_kernel w;
    tr_conv2d_attrs a;
    size_t images, C, H, W, OH, OW, padded_h, padded_w;
    size_t blocks;
    int teams; /* that share an image's blocks; 1: a block's panels are shared */
    size_t rows,
        sums; /* in the workspace, behind the image: of each team what positions read, and sums */
} kernel;

bool tr_cpu_takes_conv_panels(const tr_cpu *cpu, const tr_graph *g, const tr_op *op)
{
    const tr_tensor *x = &g->tensors[op->in[X]], *y = &g->tensors[op->out[0]],
                    *weight = &g->tensors[op->in[WEIGHT]];
    const tr_conv2d_attrs *a = op->attrs;
    if (cpu->isa < TR_ISA_AVX512 || g->mode != TR_MODE_INFER || a->groups != 1 ||
        a->dilation[0] != 1 || a->dilation[1] != 1 || a->out % TR_CPU_PANEL != 0 ||
        x->dims[1] < CHANNELS || x->layout != TR_LAYOUT_CHANNELS_LAST ||
        y->layout != TR_LAYOUT_CHANNELS_LAST)
        return false;
    if (x->dtype == TR_BF16) return !cpu->bf16_faster;
    return x->dtype == TR_F32 && y->dims[2] * y->dims[3] <= BLOCK &&
           weight->count * sizeof(float) >= LARGE;
}

/* ---- The weight: (out, C, kernel) as panels of (kernel, C) rows ------------------------------ */

static void move(const tr_panels_kernel *base, bool back, size_t o, size_t at, size_t n,
                 float *rows)
{
    const kernel *k = (const kernel *)base;
    const size_t places = (size_t)(k->a.kernel[0] * k->a.kernel[1]);
    float *weight = base->l.b.in[WEIGHT];
    for (size_t row = at; row < at + n; row++, rows += TR_CPU_PANEL)
        for (size_t i = 0; i < TR_CPU_PANEL; i++) {
            float *w = &weight[((o + i) * k->C + row % k->C) * places + row / k->C];
            if (back)
                *w = rows[i];
            else
                rows[i] = *w;
        }
}

/* ---- Running --------------------------------------------------------------------------------- */

static void pad(const kernel *k, size_t image, float *to)
{
    const size_t row = k->W * k->C, padded = k->padded_w * k->C;
    const size_t side = (size_t)k->a.padding[1] * k->C, above = (size_t)k->a.padding[0];
    const void *x = tr_loop_at(k->w.p.type, k->w.l.b.in[X], image * k->H * row);
    TR_PARALLEL(k->w.l.threads, k->padded_h)
    for (size_t h = 0; h < k->padded_h; h++) {
        float *at = to + h * padded;
        if (h < above || h >= above + k->H) {
            memset(at, 0, padded * sizeof *at);
            continue;
        }
        const void *from = tr_loop_at(k->w.p.type, x, (h - above) * row);
        memset(at, 0, side * sizeof *at);
        if (k->w.p.type == TR_BF16)
            k->w.l.loops->cast_f32(at + side, from, row);
        else
            memcpy(at + side, from, row * sizeof *at);
        memset(at + side + row, 0, (padded - side - row) * sizeof *at);
    }
}

/* What positions [first, first + n) read. */
static void lay_out(const kernel *k, const float *image, size_t first, size_t n, float *rows)
{
    const size_t segment = (size_t)k->a.kernel[1] * k->C;
    TR_PARALLEL(k->w.p.threads, n)
    for (size_t i = 0; i < n; i++) {
        const size_t oy = (first + i) / k->OW, ox = (first + i) % k->OW;
        const float *from =
            image +
            (oy * (size_t)k->a.stride[0] * k->padded_w + ox * (size_t)k->a.stride[1]) * k->C;
        float *to = rows + i * k->w.p.depth;
        for (int64_t ky = 0; ky < k->a.kernel[0]; ky++, to += segment, from += k->padded_w * k->C)
            memcpy(to, from, segment * sizeof *to);
    }
}

static void run_block(const kernel *k, const float *padded, size_t image, size_t block)
{
    const tr_binding *b = &k->w.l.b;
    const size_t positions = k->OH * k->OW, first = block * BLOCK,
                 n = tr_chunk_size(positions, BLOCK, block), team = (size_t)omp_get_thread_num(),
                 at = (image * positions + first) * k->w.p.out;
    float *rows = (float *)(void *)((char *)b->workspace + k->rows) + team * BLOCK * k->w.p.depth;
    float *sums = (float *)(void *)((char *)b->workspace + k->sums) + team * tr_panels_sums(BLOCK);
    lay_out(k, padded, first, n, rows);
    tr_panels_run(&k->w.p, n, rows, b->packed[0], b->in[BIAS],
                  tr_loop_at(k->w.p.type, b->in[RESIDUAL], at),
                  tr_loop_to(k->w.p.type, b->out[0], at), sums);
}

static tr_status run(tr_kernel *base, const tr_run *r)
{
    const kernel *k = (const kernel *)base;
    float *padded = k->w.l.b.workspace;
    (void)r;
    for (size_t i = 0; i < k->images; i++) {
        pad(k, i, padded);
        if (k->teams == 1) { /* no region, within which panels' would start threads anew */
            for (size_t block = 0; block < k->blocks; block++) run_block(k, padded, i, block);
            continue;
        }
        TR_PARALLEL(k->teams, k->blocks)
        for (size_t block = 0; block < k->blocks; block++) run_block(k, padded, i, block);
    }
    return TR_OK;
}

static void set_shape(kernel *k, const tr_graph *g, const tr_op *op)
{
    const tr_tensor *x = &g->tensors[op->in[X]], *y = &g->tensors[op->out[0]];
    k->a = *(const tr_conv2d_attrs *)op->attrs;
    k->images = (size_t)x->dims[0], k->C = (size_t)x->dims[1];
    k->H = (size_t)x->dims[2], k->W = (size_t)x->dims[3];
    k->OH = (size_t)y->dims[2], k->OW = (size_t)y->dims[3];
    k->blocks = tr_chunks(k->OH * k->OW, BLOCK);
    k->padded_h = k->H + (size_t)(2 * k->a.padding[0] + k->a.extra[0]);
    k->padded_w = k->W + (size_t)(2 * k->a.padding[1] + k->a.extra[1]);
}

tr_status tr_cpu_conv_panels(tr_cpu *cpu, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    const tr_tensor *x = &g->tensors[op->in[X]], *weight = &g->tensors[op->in[WEIGHT]];
    kernel *k;
    const tr_status st = tr_loop_kernel_open(cpu, x, "own: panels", run, sizeof *k, &k);
    if (st != TR_OK) return st;
    set_shape(k, g, op);
    k->teams = k->blocks >= (size_t)cpu->threads ? cpu->threads : 1;
    k->w.p = (tr_panels){.loops = cpu->loops,
                         .depth = weight->count / (size_t)k->a.out,
                         .out = (size_t)k->a.out,
                         .type = x->dtype,
                         .act = op->act,
                         .threads = k->teams > 1 ? 1 : cpu->threads};
    k->rows = tr_align_up(k->padded_h * k->padded_w * k->C * sizeof(float), 64);
    k->sums = k->rows + tr_align_up((size_t)k->teams * BLOCK * k->w.p.depth * sizeof(float), 64);
    k->w.l.base.workspace = k->sums + (size_t)cpu->threads * tr_panels_sums(BLOCK) * sizeof(float);
    k->w.move = move;
    tr_panels_kernel_packs(&k->w, weight, "conv");
    *out = &k->w.l.base;
    return TR_OK;
}
