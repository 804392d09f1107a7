/* Linear layers in bfloat16 by products of float32, where the CPU's own of bfloat16 are no faster
 * (!tr_cpu.bf16_faster). Of the weight and of a block's values only pieces are ever held in
 * float32: a block of rows is widened, and with it, tile by tile of the outputs,
 *
 *     forward       y tile  = x block  (W tile)^T     W is rounded as it is read, from the master
 *     input         dx block += dy tile  W tile       and sums stay in float32 until the last tile
 *     weight        dW tile (+)= (dy tile)^T x block  written where the gradient lies
 *
 * in the workspace. A tile of the weight is rounded once a block, of as many rows as make that
 * little beside the product; what is to be copied for its product (tr_linear_wants_copy) is copied
 * where it has changed. Blocks and tiles depend on the shapes alone; sums over them are added in
 * their order. */
#include "kernels/cpu/ops/linear.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/ops/loop_kernel.h"

#include <string.h>

/* Of float32 values: x and y of a block, a tile of the weight at the least (half of a second-level
 * cache); outputs of a tile, at the least as many as the rows up to MOST, so that sums are not read
 * and written more often than the weight; rows of a block. */
enum {
    BLOCK = 1 << 22,
    TILE = 1 << 18,
    MOST = 1024,
    LEAST = 512,
    GRAIN = 16,
    PIECE = 65536,
    COPIES = 4
};

typedef struct {
    tr_dnnl_kernel k;
    tr_linear_product which;
    int64_t rows, in, out;   /* of the product */
    int64_t block, tile;     /* rows, outputs */
    int64_t x_row, y_row;    /* elements from row to row of the operands, */
    int64_t x_from, y_from;  /* of which the first is so many before the product's */
    int x_at, y_at;          /* which operand each is */
    size_t x, y, w;          /* places in the workspace */
    int call[2][2][2];       /* of the last, shorter block; tile; adding */
    int copy[TR_DNNL_CALLS]; /* of each call: the one that copies its second factor; -1: none */
    int copied;              /* which did, since that was written; -1: none */
    int ncopies, copies[COPIES];
    tr_dnnl_format formats[COPIES];
    size_t copy_at[COPIES], copy_size; /* of each layout; of the last place */
    tr_act act;
} kernel;

/* ---- Geometry -------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Pieces of at most about `limit`, all but the last of one size. */
static int64_t even(int64_t count, int64_t limit)
{
    const int64_t pieces = (count + limit - 1) / limit;
    if (count < 1) return 1;
    return least(count, ((count + pieces - 1) / pieces + GRAIN - 1) / GRAIN * GRAIN);
}

static void cut(kernel *k)
{
    k->block = even(k->rows, most(LEAST, BLOCK / (k->in + least(k->out, MOST))));
    k->tile = even(k->out, most(least(k->block, MOST), least(TILE / k->in, BLOCK / k->block)));
}

/* ---- Between the operands and the workspace -------------------------------------------------- */

typedef enum { WIDEN, ROUND, NARROW } manner;

typedef struct {
    manner how;
    const void *from;
    void *to;
    int64_t from_row, to_row; /* elements from row to row */
    int64_t rows, columns;
    const float *bias; /* NARROW; NULL: none */
} move;

static void move_row(const kernel *k, const move *m, int64_t from, int64_t to, size_t n)
{
    const tr_cpu_loops *loops = k->k.cpu->loops;
    switch (m->how) {
    case WIDEN:
        loops->cast_f32((float *)m->to + to, (const tr_bf16 *)m->from + from, n);
        break;
    case ROUND:
        loops->round_bf16((float *)m->to + to, (const float *)m->from + from, n);
        break;
    case NARROW:
        loops->add_act(TR_BF16, k->act, (const float *)m->from + from, m->bias,
                       (tr_bf16 *)m->to + to, n);
        break;
    }
}

static void move_all(const kernel *k, move m)
{
    const int64_t count = m.rows * m.columns;
    if (m.from_row == m.columns && m.to_row == m.columns && !m.bias) { /* one long row, in pieces */
        m.columns = m.from_row = m.to_row = least(count, PIECE);
        m.rows = m.columns ? (count + m.columns - 1) / m.columns : 0;
    }
    const size_t each = m.columns < PIECE ? (size_t)(PIECE / most(m.columns, 1)) : 1;
    const size_t rows = (size_t)m.rows, chunks = tr_chunks(rows, each);
    TR_PARALLEL(k->k.cpu->threads, chunks)
    for (size_t c = 0; c < chunks; c++)
        for (size_t i = c * each; i < c * each + tr_chunk_size(rows, each, c); i++) {
            const int64_t r = (int64_t)i, left = count - r * m.columns;
            move_row(k, &m, r * m.from_row, r * m.to_row, (size_t)least(m.columns, left));
        }
}

static float *place(const kernel *k, size_t at)
{
    return (float *)(void *)((char *)k->k.bound.workspace + at);
}

/* Rows [row, row + rows) of x, or of its gradient. */
static void move_x(kernel *k, int64_t row, int64_t rows)
{
    const tr_binding *b = &k->k.bound;
    const bool back = k->which == TR_LINEAR_GRAD_INPUT;
    tr_bf16 *x = (tr_bf16 *)(back ? b->out : b->in)[k->x_at] + row * k->x_row + k->x_from;
    float *wide = place(k, k->x);
    k->copied = -1;
    move_all(k, back ? (move){NARROW, wide, x, k->in, k->x_row, rows, k->in, NULL}
                     : (move){WIDEN, x, wide, k->x_row, k->in, rows, k->in, NULL});
}

/* Outputs [o, o + outputs) of these rows of y, or of its gradient. */
static void move_y(const kernel *k, int64_t row, int64_t rows, int64_t o, int64_t outputs)
{
    const tr_binding *b = &k->k.bound;
    const bool back = k->which == TR_LINEAR_FORWARD;
    const float *bias = back && b->in[2] ? (const float *)b->in[2] + o : NULL;
    tr_bf16 *y = (tr_bf16 *)(back ? b->out : b->in)[k->y_at] + row * k->y_row + k->y_from + o;
    float *wide = place(k, k->y);
    move_all(k, back ? (move){NARROW, wide, y, outputs, k->y_row, rows, outputs, bias}
                     : (move){WIDEN, y, wide, k->y_row, outputs, rows, outputs, NULL});
}

/* Rows of the weight, or of the matrix that is made of it. */
static void move_weight(kernel *k, int64_t o, int64_t outputs)
{
    const tr_binding *b = &k->k.bound;
    const float *weight = k->k.base.npacked ? b->packed[0] : b->in[1];
    k->copied = -1;
    move_all(k,
             (move){ROUND, weight + o * k->in, place(k, k->w), k->in, k->in, outputs, k->in, NULL});
}

/* ---- Running --------------------------------------------------------------------------------- */

/* The second factor in the layout that the call wants it in, unless it is there. */
static tr_status copy_factor(kernel *k, int call)
{
    const int copy = k->copy[call];
    if (copy < 0 || copy == k->copied) return TR_OK;
    k->copied = copy;
    return tr_dnnl_execute(&k->k, &k->k.calls[copy]);
}

static tr_status run_tile(kernel *k, int64_t row, int64_t rows, int64_t o, bool add)
{
    const int64_t outputs = least(k->tile, k->out - o);
    const int call = k->call[rows < k->block][outputs < k->tile][add];
    const tr_dnnl_call *c = &k->k.calls[call];
    tr_status st = TR_OK;
    if (k->which != TR_LINEAR_GRAD_WEIGHT) move_weight(k, o, outputs);
    if (k->which != TR_LINEAR_FORWARD) move_y(k, row, rows, o, outputs);
    if (k->which == TR_LINEAR_GRAD_WEIGHT) {
        float *to = (float *)k->k.bound.out[0] + o * k->in;
        TR_DNNL(dnnl_memory_set_data_handle(c->args[c->nargs - 1].memory, to), "take an address");
    }
    TR_TRY(copy_factor(k, call));
    TR_TRY(tr_dnnl_execute(&k->k, c));
    if (k->which == TR_LINEAR_FORWARD) move_y(k, row, rows, o, outputs);
out:
    return st;
}

static tr_status run(tr_kernel *base, const tr_run *run)
{
    kernel *k = (kernel *)base;
    const bool weight = k->which == TR_LINEAR_GRAD_WEIGHT, input = k->which == TR_LINEAR_GRAD_INPUT;
    const bool adds = tr_run_adds(run, &k->k.bound, 0);
    tr_status st = TR_OK;
    tr_dnnl_use(k->k.cpu);
    for (int64_t row = 0; row < k->rows; row += k->block) {
        const int64_t rows = least(k->block, k->rows - row);
        if (!input) move_x(k, row, rows);
        for (int64_t o = 0; o < k->out; o += k->tile)
            TR_TRY(run_tile(k, row, rows, o, weight ? adds || row > 0 : input && o > 0));
        if (input) move_x(k, row, rows);
    }
    if (k->k.after) k->k.after(&k->k, run);
out:
    return st;
}

/* ---- Preparing ------------------------------------------------------------------------------- */

/* A product's matrices, and where the first two lie. */
typedef struct {
    tr_dnnl_array a, b, c;
    size_t a_at, b_at;
} product;

static product product_of(const kernel *k, int64_t rows, int64_t outputs)
{
    const int64_t in = k->in;
    product p = {.a_at = k->y, .b_at = k->w};
    switch (k->which) {
    case TR_LINEAR_FORWARD:
        p.a = tr_dnnl_matrix(rows, in, in, 1, TR_F32);
        p.b = tr_dnnl_matrix(in, outputs, 1, in, TR_F32);
        p.c = tr_dnnl_matrix(rows, outputs, outputs, 1, TR_F32);
        p.a_at = k->x;
        break;
    case TR_LINEAR_GRAD_INPUT:
        p.a = tr_dnnl_matrix(rows, outputs, outputs, 1, TR_F32);
        p.b = tr_dnnl_matrix(outputs, in, in, 1, TR_F32);
        p.c = tr_dnnl_matrix(rows, in, in, 1, TR_F32);
        break;
    case TR_LINEAR_GRAD_WEIGHT:
        p.a = tr_dnnl_matrix(outputs, rows, 1, outputs, TR_F32);
        p.b = tr_dnnl_matrix(rows, in, in, 1, TR_F32);
        p.c = tr_dnnl_matrix(outputs, in, in, 1, TR_F32);
        p.b_at = k->x;
        break;
    }
    return p;
}

/* Which call copies the second factor of `pd`, and where to: one that is there, or a new one. They
 * share a place, but for a layout that needs more room than those before: the first, whose factor
 * is whole, is wont to need the most. */
static tr_status find_copy(kernel *k, dnnl_primitive_desc_t pd, const product *p, int *out,
                           size_t *at)
{
    tr_dnnl_format wanted;
    tr_dnnl_call *call;
    tr_status st = TR_OK;
    tr_dnnl_format_of(pd, DNNL_ARG_WEIGHTS, &wanted);
    for (int i = 0; i < k->ncopies; i++)
        if (memcmp(&k->formats[i], &wanted, sizeof wanted) == 0) {
            *out = k->copies[i];
            *at = k->copy_at[i];
            return TR_OK;
        }
    TR_NEED(k->ncopies < COPIES, TR_INTERNAL, "a product of more than %d layouts", COPIES);
    const size_t size = tr_dnnl_arg_size(pd, DNNL_ARG_WEIGHTS);
    *at = k->ncopies > 0 && size <= k->copy_size ? k->copy_at[k->ncopies - 1]
                                                 : tr_dnnl_reserve(&k->k, k->copy_size = size);
    k->copy_at[k->ncopies] = *at;
    *out = k->copies[k->ncopies] = k->k.ncalls;
    k->formats[k->ncopies++] = wanted;
    TR_TRY(tr_linear_copy(&k->k, TR_CALL_ALWAYS, pd, &p->b, *at, &call));
    TR_TRY(tr_dnnl_arg(&k->k, call, DNNL_ARG_FROM, TR_AT_WORKSPACE, p->b_at));
out:
    return st;
}

/* The destination is its call's last argument. */
static tr_status add_call(kernel *k, int64_t rows, int64_t outputs, bool add, int *out)
{
    const bool weight = k->which == TR_LINEAR_GRAD_WEIGHT, back = k->which != TR_LINEAR_FORWARD;
    const product p = product_of(k, rows, outputs);
    const bool wants = back && tr_linear_wants_copy(p.a.dims[0], p.b.dims[0], k->in, TR_F32);
    const tr_dnnl_array b = tr_linear_factor(wants, &p.b, TR_F32);
    const tr_dnnl_post post = {.sum = add};
    tr_dnnl_kernel *d = &k->k;
    dnnl_primitive_desc_t pd = NULL, own = NULL;
    tr_dnnl_call *call;
    int copy = -1;
    size_t copy_at = 0;
    tr_status st = TR_OK;
    TR_TRY(tr_dnnl_matmul(d->cpu, &p.a, &b, NULL, &p.c, &post, &pd));
    own = pd;
    if (!tr_dnnl_arg_is(pd, DNNL_ARG_WEIGHTS, &p.b)) TR_TRY(find_copy(k, pd, &p, &copy, &copy_at));
    own = NULL;
    TR_TRY(tr_dnnl_call_add(d, TR_CALL_ALWAYS, pd, &call));
    *out = d->ncalls - 1;
    k->copy[*out] = copy;
    TR_TRY(tr_dnnl_arg(d, call, DNNL_ARG_SRC, TR_AT_WORKSPACE, p.a_at));
    TR_TRY(tr_dnnl_arg(d, call, DNNL_ARG_WEIGHTS, TR_AT_WORKSPACE, copy < 0 ? p.b_at : copy_at));
    TR_TRY(weight ? tr_dnnl_arg(d, call, DNNL_ARG_DST, TR_AT_OUT, 0)
                  : tr_dnnl_arg(d, call, DNNL_ARG_DST, TR_AT_WORKSPACE, back ? k->x : k->y));
out:
    if (own) dnnl_primitive_desc_destroy(own);
    return st;
}

/* Whether a product of the last block, or tile, that adds or does not, will be run: the first of
 * both are whole. */
static bool happens(const kernel *k, bool last_block, bool last_tile, bool add)
{
    if ((last_block && k->rows % k->block == 0) || (last_tile && k->out % k->tile == 0))
        return false;
    switch (k->which) {
    case TR_LINEAR_FORWARD:
        return !add;
    case TR_LINEAR_GRAD_INPUT:
        return add ? k->out > k->tile : !last_tile;
    case TR_LINEAR_GRAD_WEIGHT:
        break;
    }
    return add || !last_block;
}

static tr_status add_calls(kernel *k)
{
    tr_status st = TR_OK;
    for (int i = 0; i < 8; i++) {
        const bool block = i & 1, tile = i & 2, add = i & 4;
        if (!happens(k, block, tile, add)) continue;
        TR_TRY(add_call(k, block ? k->rows % k->block : k->block, tile ? k->out % k->tile : k->tile,
                        add, &k->call[block][tile][add]));
    }
out:
    return st;
}

static size_t reserve(kernel *k, int64_t rows, int64_t columns)
{
    return tr_dnnl_reserve(&k->k, (size_t)(rows * columns) * sizeof(float));
}

/* Its operands, and which part of them it is of. */
static void describe(kernel *k, const tr_linear_matrix *m)
{
    const bool weight = k->which == TR_LINEAR_GRAD_WEIGHT;
    k->in = weight ? m->learned[1] : m->in;
    k->out = weight ? m->learned[0] : m->out;
    k->x_row = m->in;
    k->y_row = m->out;
    k->x_from = weight ? m->at[1] : 0;
    k->y_from = weight ? m->at[0] : 0;
    k->y_at = weight;
}

tr_status tr_cpu_linear_wide(tr_cpu *cpu, const tr_op *op, tr_linear_product which, int64_t rows,
                             const tr_linear_matrix *matrix, const tr_tensor *weight,
                             tr_kernel **out)
{
    const tr_linear_attrs *a = op->attrs;
    const bool grad_weight = which == TR_LINEAR_GRAD_WEIGHT;
    kernel *k = NULL;
    tr_status st = TR_OK;
    TR_TRY(tr_dnnl_open_more(cpu, sizeof *k, &k));
    k->which = which;
    k->rows = rows;
    if (which == TR_LINEAR_FORWARD) k->act = op->act;
    describe(k, matrix);
    cut(k);
    if (grad_weight && op->nout > 1 && op->out[1] >= 0)
        tr_dnnl_bias_gradient(&k->k, rows, matrix->out, TR_BF16);
    k->x = reserve(k, k->block, k->in);
    k->y = reserve(k, k->block, k->tile);
    if (!grad_weight) {
        k->w = reserve(k, k->tile, k->in);
        if (a && a->sketch.side != TR_SKETCH_NONE)
            tr_dnnl_sketch_plain(&k->k, TR_F32, op, weight);
        else
            k->k.base.rounds = 1u << 1;
    }
    TR_TRY(add_calls(k));
    tr_dnnl_finish(&k->k, tr_dnnl_impl(k->k.calls[k->call[0][0][0]].pd));
    k->k.base.run = run;
out:
    return tr_dnnl_hand_over(k ? &k->k : NULL, st, out);
}
