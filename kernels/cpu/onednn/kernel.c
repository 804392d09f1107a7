/* A kernel as a short list of primitives. All memory objects and argument lists are made when the
 * kernel is prepared; bind puts addresses into them and run executes the calls whose time it is. */
#include "kernels/cpu/onednn/onednn.h"
#include "kernels/cpu/loops/loops.h"

#include <string.h>

#define SCRATCH SIZE_MAX /* `at` of a scratchpad: behind everything that is reserved */
#define LINE    64

static void close_kernel(tr_kernel *kernel)
{
    tr_dnnl_kernel *k = (tr_dnnl_kernel *)kernel;
    if (!k) return;
    for (int i = 0; i < k->ncalls; i++) {
        tr_dnnl_call *c = &k->calls[i];
        for (int a = 0; a < c->nargs; a++) dnnl_memory_destroy(c->args[a].memory);
        if (c->primitive) dnnl_primitive_destroy(c->primitive);
        if (c->pd) dnnl_primitive_desc_destroy(c->pd);
    }
    tr_free(k);
}

tr_status tr_dnnl_open_more(tr_cpu *cpu, size_t size, void *out)
{
    tr_dnnl_kernel *k = tr_alloc(TR_MEM_OTHER, 1, size);
    if (!k) return tr_last_status();
    k->cpu = cpu;
    *(void **)out = k;
    return TR_OK;
}

tr_status tr_dnnl_open(tr_cpu *cpu, tr_dnnl_kernel **out)
{
    return tr_dnnl_open_more(cpu, sizeof **out, out);
}

size_t tr_dnnl_reserve(tr_dnnl_kernel *k, size_t nbytes)
{
    size_t at = k->reserved;
    k->reserved += tr_align_up(nbytes, LINE);
    return at;
}

tr_status tr_dnnl_call_add(tr_dnnl_kernel *k, tr_call_when when, dnnl_primitive_desc_t pd,
                           tr_dnnl_call **out)
{
    tr_status st = TR_OK;
    if (k->ncalls == TR_DNNL_CALLS) {
        dnnl_primitive_desc_destroy(pd);
        return TR_FAIL(TR_INTERNAL, "a kernel of more than %d primitives", TR_DNNL_CALLS);
    }
    tr_dnnl_call *c = &k->calls[k->ncalls++];
    c->when = when;
    c->pd = pd;
    TR_DNNL(dnnl_primitive_create(&c->primitive, pd), "generate code for a primitive");
    size_t scratch = tr_dnnl_arg_size(pd, DNNL_ARG_SCRATCHPAD);
    if (scratch > k->scratch) k->scratch = scratch;
    if (scratch) TR_TRY(tr_dnnl_arg(k, c, DNNL_ARG_SCRATCHPAD, TR_AT_WORKSPACE, SCRATCH));
    if (out) *out = c;
out:
    return st;
}

tr_status tr_dnnl_arg(tr_dnnl_kernel *k, tr_dnnl_call *c, int arg, tr_call_place place, size_t at)
{
    tr_status st = TR_OK;
    TR_NEED(c->nargs < TR_DNNL_ARGS, TR_INTERNAL, "a primitive of more than %d arguments",
            TR_DNNL_ARGS);
    dnnl_memory_t m = NULL;
    TR_DNNL(dnnl_memory_create(&m, dnnl_primitive_desc_query_md(c->pd, dnnl_query_exec_arg_md, arg),
                               k->cpu->engine, DNNL_MEMORY_NONE),
            "describe an argument");
    c->args[c->nargs] = (dnnl_exec_arg_t){.arg = arg, .memory = m};
    c->where[c->nargs].place = place;
    c->where[c->nargs].at = at;
    c->nargs++;
out:
    return st;
}

tr_status tr_dnnl_arg_part(tr_dnnl_kernel *k, tr_dnnl_call *c, int arg, tr_call_place place,
                           size_t at, size_t offset)
{
    const tr_status st = tr_dnnl_arg(k, c, arg, place, at);
    if (st == TR_OK) c->where[c->nargs - 1].offset = offset;
    return st;
}

/* A packed copy of what lies at `at`, stored as `plain`: one that another call has, if it is the
 * same. */
static tr_status add_packed(tr_dnnl_kernel *k, tr_dnnl_call *c, int arg, const tr_dnnl_array *plain,
                            tr_call_place place, size_t at, int param, bool rounded)
{
    tr_status st = TR_OK;
    dnnl_primitive_desc_t pd = NULL;
    tr_dnnl_call *pack;
    tr_dnnl_format format;
    const int which = k->base.npacked;
    tr_dnnl_format_of(c->pd, arg, &format);
    format.rounded = rounded;
    for (int i = 0; i < which; i++)
        if (k->base.packed[i].param == param && memcmp(&k->formats[i], &format, sizeof format) == 0)
            return tr_dnnl_arg(k, c, arg, TR_AT_PACKED, (size_t)i);
    TR_NEED(which < TR_MAX_PACKED, TR_INTERNAL, "a kernel of more than %d packed copies", which);
    TR_TRY(tr_dnnl_arg(k, c, arg, TR_AT_PACKED, (size_t)which));
    TR_TRY(tr_dnnl_reorder(k->cpu, plain, c->pd, arg, false, false, &pd));
    k->formats[which] = format;
    k->base.packed[k->base.npacked++] = (tr_packing){.param = param,
                                                     .nbytes = tr_dnnl_arg_size(c->pd, arg),
                                                     .format = &k->formats[which],
                                                     .format_size = sizeof k->formats[which]};
    TR_TRY(tr_dnnl_call_add(k, TR_CALL_PACK, pd, &pack));
    pack->packed = which;
    TR_TRY(tr_dnnl_arg(k, pack, DNNL_ARG_FROM, place, at));
    TR_TRY(tr_dnnl_arg(k, pack, DNNL_ARG_TO, TR_AT_PACKED, (size_t)which));
out:
    return st;
}

tr_status tr_dnnl_weights(tr_dnnl_kernel *k, tr_dnnl_call *c, int arg, const tr_dnnl_array *plain,
                          int operand, int param)
{
    if (tr_dnnl_arg_is(c->pd, arg, plain)) return tr_dnnl_arg(k, c, arg, TR_AT_IN, (size_t)operand);
    return add_packed(k, c, arg, plain, TR_AT_IN, (size_t)operand, param, false);
}

tr_status tr_dnnl_weights_rounded(tr_dnnl_kernel *k, tr_dnnl_call *c, int arg,
                                  const tr_dnnl_array *plain, int operand, const tr_tensor *weight)
{
    if (k->nrounded == 0) k->plain = tr_dnnl_reserve(k, weight->count * sizeof(float));
    k->rounded = operand;
    k->nrounded = weight->count;
    return add_packed(k, c, arg, plain, TR_AT_WORKSPACE, k->plain, weight->index, true);
}

tr_status tr_dnnl_gradient(tr_dnnl_kernel *k, tr_dnnl_call *c, int arg, const tr_dnnl_array *plain,
                           int operand)
{
    tr_status st = TR_OK;
    const size_t size = tr_dnnl_arg_size(c->pd, arg);
    if (size > k->gradient_size) k->gradient = tr_dnnl_reserve(k, k->gradient_size = size);
    const size_t at = k->gradient;
    TR_TRY(tr_dnnl_arg(k, c, arg, TR_AT_WORKSPACE, at));
    for (int add = 0; add < 2; add++) {
        dnnl_primitive_desc_t pd = NULL;
        tr_dnnl_call *copy;
        TR_TRY(tr_dnnl_reorder(k->cpu, plain, c->pd, arg, true, add, &pd));
        TR_TRY(tr_dnnl_call_add(k, add ? TR_CALL_ADD : TR_CALL_OVERWRITE, pd, &copy));
        TR_TRY(tr_dnnl_arg(k, copy, DNNL_ARG_FROM, TR_AT_WORKSPACE, at));
        TR_TRY(tr_dnnl_arg(k, copy, DNNL_ARG_TO, TR_AT_OUT, (size_t)operand));
    }
out:
    return st;
}

/* ---- The bias gradient -------------------------------------------------------------------------
 * Sums in float32 over short blocks of rows, in float64 over blocks and pieces. The pieces do not
 * depend on the number of threads, so neither does the result. */

enum { BLOCK_ROWS = 256, PIECES = 32 };

static int64_t piece_count(const tr_dnnl_kernel *k)
{
    int64_t blocks = (k->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    return blocks < PIECES ? blocks : PIECES;
}

static size_t piece_size(const tr_dnnl_kernel *k)
{
    return tr_align_up((size_t)k->cols * (sizeof(double) + sizeof(float)), LINE);
}

static double *piece_sum(const tr_dnnl_kernel *k, int64_t piece)
{
    char *base = (char *)k->bound.workspace + k->partials;
    return (double *)(base + (size_t)piece * piece_size(k));
}

static void sum_piece(const tr_dnnl_kernel *k, int64_t begin, int64_t end, double *sum)
{
    const size_t cols = (size_t)k->cols, row_size = cols * tr_dtype_size(k->type);
    const char *dy = k->bound.in[1];
    float *block = (float *)(sum + cols);
    memset(sum, 0, cols * sizeof *sum);
    for (int64_t r = begin; r < end; r += BLOCK_ROWS) {
        size_t n = (size_t)(end - r < BLOCK_ROWS ? end - r : BLOCK_ROWS);
        k->cpu->loops->column_sums(k->type, dy + (size_t)r * row_size, n, cols, cols, block, false);
        for (size_t c = 0; c < cols; c++) sum[c] += block[c];
    }
}

static void bias_gradient(tr_dnnl_kernel *k, const tr_run *run)
{
    const int64_t pieces = piece_count(k), rows = k->rows;
    const int threads = k->cpu->threads;
    const bool add = tr_run_adds(run, &k->bound, 1);
    float *out = k->bound.out[1];
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && pieces > 1)
    for (int64_t p = 0; p < pieces; p++)
        sum_piece(k, rows * p / pieces, rows * (p + 1) / pieces, piece_sum(k, p));
    for (int64_t c = 0; c < k->cols; c++) {
        double sum = add ? out[c] : 0;
        for (int64_t p = 0; p < pieces; p++) sum += piece_sum(k, p)[c];
        out[c] = (float)sum;
    }
}

void tr_dnnl_bias_gradient(tr_dnnl_kernel *k, int64_t rows, int64_t cols, tr_dtype type)
{
    k->rows = rows;
    k->cols = cols;
    k->type = type;
    k->partials = tr_dnnl_reserve(k, piece_size(k) * (size_t)piece_count(k));
    k->after = bias_gradient;
}

/* ---- The activation ----------------------------------------------------------------------------
 * In place, in pieces of what is still in the second-level cache when the product was small. */

enum { ACT_PIECE = 65536 };

static void activate(tr_dnnl_kernel *k, const tr_run *run)
{
    (void)run;
    const size_t pieces = (k->count + ACT_PIECE - 1) / ACT_PIECE, esize = tr_dtype_size(k->type);
    const int threads = k->cpu->threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const size_t left = k->count - i * ACT_PIECE;
        void *y = (char *)k->bound.out[0] + i * ACT_PIECE * esize;
        k->cpu->loops->act(k->type, k->act, y, y, left < ACT_PIECE ? left : ACT_PIECE);
    }
}

tr_act tr_dnnl_post_act(const tr_graph *g, const tr_op *op)
{
    if (op->act == TR_ACT_RELU) return g->mode == TR_MODE_INFER ? op->act : TR_ACT_NONE;
    return g->tensors[op->out[0]].dtype == TR_F32 ? TR_ACT_NONE : op->act;
}

void tr_dnnl_activate(tr_dnnl_kernel *k, const tr_graph *g, const tr_op *op)
{
    const tr_tensor *y = &g->tensors[op->out[0]];
    if (tr_dnnl_post_act(g, op) == op->act) return;
    k->act = op->act;
    k->count = y->count;
    k->type = y->dtype;
    k->after = activate;
}

/* ---- The backend's interface ----------------------------------------------------------------- */

static void *address(const tr_dnnl_kernel *k, tr_call_place place, size_t at)
{
    const tr_binding *b = &k->bound;
    switch (place) {
    case TR_AT_IN:
        return b->in[at];
    case TR_AT_OUT:
        return b->out[at];
    case TR_AT_PACKED:
        return b->packed[at];
    case TR_AT_WORKSPACE:
        break;
    }
    return (char *)b->workspace + (at == SCRATCH ? k->reserved : at);
}

static tr_status bind(tr_kernel *kernel, const tr_binding *b)
{
    tr_status st = TR_OK;
    tr_dnnl_kernel *k = (tr_dnnl_kernel *)kernel;
    k->bound = *b;
    for (int i = 0; i < k->ncalls; i++) {
        tr_dnnl_call *c = &k->calls[i];
        for (int a = 0; a < c->nargs; a++)
            TR_DNNL(dnnl_memory_set_data_handle(
                        c->args[a].memory,
                        (char *)address(k, c->where[a].place, c->where[a].at) + c->where[a].offset),
                    "take an address");
    }
out:
    return st;
}

static tr_status rebind(tr_kernel *kernel, int operand, void *data)
{
    tr_status st = TR_OK;
    tr_dnnl_kernel *k = (tr_dnnl_kernel *)kernel;
    k->bound.in[operand] = data;
    for (int i = 0; i < k->ncalls; i++) {
        tr_dnnl_call *c = &k->calls[i];
        for (int a = 0; a < c->nargs; a++)
            if (c->where[a].place == TR_AT_IN && c->where[a].at == (size_t)operand)
                TR_DNNL(dnnl_memory_set_data_handle(c->args[a].memory,
                                                    (char *)data + c->where[a].offset),
                        "take an address");
    }
out:
    return st;
}

tr_status tr_dnnl_execute(tr_dnnl_kernel *k, const tr_dnnl_call *c)
{
    tr_status st = TR_OK;
    TR_DNNL(dnnl_primitive_execute(c->primitive, k->cpu->stream, c->nargs, c->args),
            "run a primitive");
out:
    return st;
}

static tr_status pack(tr_kernel *kernel, int which)
{
    tr_status st = TR_OK;
    tr_dnnl_kernel *k = (tr_dnnl_kernel *)kernel;
    tr_dnnl_use(k->cpu);
    if (k->sketched) return tr_dnnl_pack_sketch(k, which);
    if (k->nrounded > 0)
        tr_dnnl_round(k->cpu, k->bound.in[k->rounded],
                      (float *)(void *)((char *)k->bound.workspace + k->plain), k->nrounded);
    for (int i = 0; i < k->ncalls && st == TR_OK; i++)
        if (k->calls[i].when == TR_CALL_PACK && k->calls[i].packed == which)
            st = tr_dnnl_execute(k, &k->calls[i]);
    return st;
}

/* Made when it is needed: few kernels ever are asked. */
static tr_status unpack_call(tr_dnnl_kernel *k, const tr_dnnl_call *c)
{
    tr_status st = TR_OK;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t back = NULL;
    dnnl_exec_arg_t args[] = {{.arg = DNNL_ARG_TO}, {.arg = DNNL_ARG_FROM}};
    for (int a = 0; a < c->nargs; a++) {
        if (c->args[a].arg == DNNL_ARG_FROM) args[0].memory = c->args[a].memory;
        if (c->args[a].arg == DNNL_ARG_TO) args[1].memory = c->args[a].memory;
    }
    tr_dnnl_use(k->cpu);
    TR_TRY(tr_dnnl_reorder_back(k->cpu, c->pd, &pd));
    TR_DNNL(dnnl_primitive_create(&back, pd), "generate code for a primitive");
    TR_DNNL(dnnl_primitive_execute(back, k->cpu->stream, 2, args), "reorder weights back");
out:
    if (back) dnnl_primitive_destroy(back);
    if (pd) dnnl_primitive_desc_destroy(pd);
    return st;
}

static tr_status unpack(tr_kernel *kernel, int which)
{
    tr_dnnl_kernel *k = (tr_dnnl_kernel *)kernel;
    tr_status st = TR_OK;
    for (int i = 0; i < k->ncalls && st == TR_OK; i++)
        if (k->calls[i].when == TR_CALL_PACK && k->calls[i].packed == which)
            st = unpack_call(k, &k->calls[i]);
    return st;
}

static tr_status run_calls(tr_kernel *kernel, const tr_run *run)
{
    tr_dnnl_kernel *k = (tr_dnnl_kernel *)kernel;
    if (k->preload && k->bound.out[0] != k->bound.in[3])
        memcpy(k->bound.out[0], k->bound.in[3], k->preload);
    const tr_call_when when = tr_run_adds(run, &k->bound, 0) ? TR_CALL_ADD : TR_CALL_OVERWRITE;
    tr_status st = TR_OK;
    tr_dnnl_use(k->cpu);
    for (int i = 0; i < k->ncalls && st == TR_OK; i++)
        if (k->calls[i].when == when || k->calls[i].when == TR_CALL_ALWAYS)
            st = tr_dnnl_execute(k, &k->calls[i]);
    if (st == TR_OK && k->after) k->after(k, run);
    return st;
}

void tr_dnnl_finish(tr_dnnl_kernel *k, const char *impl)
{
    k->base.impl = impl;
    k->base.workspace = k->reserved + k->scratch;
    k->base.bind = bind;
    k->base.pack = k->base.npacked ? pack : NULL;
    k->base.unpack = k->base.npacked && !k->sketched && !k->nrounded ? unpack : NULL;
    k->base.rebind = rebind;
    k->base.run = run_calls;
    k->base.close = close_kernel;
}

tr_status tr_dnnl_hand_over(tr_dnnl_kernel *k, tr_status st, tr_kernel **out)
{
    if (st == TR_OK)
        *out = &k->base;
    else
        close_kernel((tr_kernel *)k);
    return st;
}
