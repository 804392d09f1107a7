/* oneDNN for kernels: primitives described the same way for versions 2.6 and 3.x, and a kernel made
 * of a few primitives whose arguments are operands of the op, its packed weights or its workspace.
 *
 *     tr_dnnl_kernel *k;
 *     TR_TRY(tr_dnnl_open(cpu, &k));
 *     TR_TRY(tr_dnnl_matmul(cpu, &a, &b, &bias, &c, &post, &pd));
 *     TR_TRY(tr_dnnl_call_add(k, TR_CALL_ALWAYS, pd, &call));      // takes pd
 *     TR_TRY(tr_dnnl_arg(k, call, DNNL_ARG_SRC, TR_AT_IN, 0));     // ... every argument
 *     tr_dnnl_finish(k, tr_dnnl_impl(pd));
 * out:
 *     return tr_dnnl_hand_over(k, st, out);
 *
 * bind gives the memory objects their addresses; run only executes. Scratchpads lie in the
 * workspace, behind what the kernel reserved there. */
#ifndef TR_CPU_ONEDNN_H
#define TR_CPU_ONEDNN_H

#include "kernels/cpu/internal.h"

#include <oneapi/dnnl/dnnl.h>

/* oneDNN's status as ours; `what` completes "oneDNN could not ...". Needs `st` and `out`. */
#define TR_DNNL(expr, what)                                                                        \
    do {                                                                                           \
        dnnl_status_t dnnl_st_ = (expr);                                                           \
        if (dnnl_st_ != dnnl_success) {                                                            \
            st = tr_dnnl_fail(__FILE__, __LINE__, dnnl_st_, (what));                               \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)
tr_status tr_dnnl_fail(const char *file, int line, dnnl_status_t status, const char *what);

bool tr_dnnl_has_bf16(tr_cpu *cpu); /* this CPU has bf16 products and convolutions */
bool tr_dnnl_has_amx(void);
bool tr_dnnl_bf16_faster(void);       /* in less time than those of float32 */
const char *tr_dnnl_isa_extras(void); /* " BF16 AMX": what oneDNN uses beyond the vector width */
/* To be called before oneDNN makes or runs a primitive: on how many threads. */
void tr_dnnl_use(const tr_cpu *cpu);
/* Primitives that oneDNN keeps in case they are wanted again, up to 1024 of them, some 60 kB each.
 */
void tr_dnnl_forget(void);
void tr_dnnl_limit_isa(int isa); /* an upper bound, before the process's first primitive */

/* ---- Arrays and primitives: compat.c --------------------------------------------------------- */

/* An array as oneDNN sees it: plain strides (elements), or `any`: the primitive chooses the
 * layout. */
typedef struct {
    int ndims; /* 0: absent */
    dnnl_dims_t dims, strides;
    dnnl_data_type_t type;
    bool any;
} tr_dnnl_array;

dnnl_data_type_t tr_dnnl_type(tr_dtype t);
/* A rows x cols matrix with the given distances between rows and between columns. */
tr_dnnl_array tr_dnnl_matrix(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                             tr_dtype type);
tr_dnnl_array tr_dnnl_channels_last(const int64_t nchw[4], tr_dtype type);
tr_dnnl_array tr_dnnl_dense(int ndims, const int64_t *dims, tr_dtype type); /* row major */
tr_dnnl_array tr_dnnl_any(tr_dnnl_array a, tr_dtype type);                  /* layout left open */

/* What happens to a result before it is stored, in this order. */
typedef struct {
    bool sum;                 /* + what the destination holds */
    const tr_dnnl_array *add; /* + an array of the destination's shape, argument TR_DNNL_ARG_ADD */
    tr_act act;
} tr_dnnl_post;
#define TR_DNNL_ARG_ADD (DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1)

typedef enum { TR_CONV_TRAIN, TR_CONV_INFER, TR_CONV_GRAD_INPUT, TR_CONV_GRAD_WEIGHT } tr_conv_kind;
typedef struct {
    tr_dnnl_array src, weights, bias, dst; /* or their gradients */
    dnnl_dims_t stride, dilation;          /* dilation as oneDNN counts it: 0 is dense */
    dnnl_dims_t padding, padding_end;
} tr_dnnl_conv;

/* Each gives a primitive descriptor with the scratchpad left to the caller. */
tr_status tr_dnnl_matmul(tr_cpu *cpu, const tr_dnnl_array *a, const tr_dnnl_array *b,
                         const tr_dnnl_array *bias, const tr_dnnl_array *c,
                         const tr_dnnl_post *post, dnnl_primitive_desc_t *out);
/* `skip`: implementations whose names begin so are passed over; NULL: none. */
tr_status tr_dnnl_convolution(tr_cpu *cpu, tr_conv_kind kind, const tr_dnnl_conv *c,
                              const tr_dnnl_post *post, const char *skip,
                              dnnl_primitive_desc_t *out);
/* A copy between a plain array and the layout that `pd` wants for its argument `arg`; `to_plain`
 * tells the direction, `sum` adds to the destination. */
tr_status tr_dnnl_reorder(tr_cpu *cpu, const tr_dnnl_array *plain, dnnl_primitive_desc_t pd,
                          int arg, bool to_plain, bool sum, dnnl_primitive_desc_t *out);

/* The copy back of what the reorder `pd` copies. It takes its scratchpad itself. */
tr_status tr_dnnl_reorder_back(tr_cpu *cpu, dnnl_primitive_desc_t pd, dnnl_primitive_desc_t *out);

size_t tr_dnnl_arg_size(dnnl_primitive_desc_t pd, int arg);
bool tr_dnnl_arg_is(dnnl_primitive_desc_t pd, int arg, const tr_dnnl_array *plain);
const char *tr_dnnl_impl(dnnl_primitive_desc_t pd); /* "brgconv:avx512_core"; lives as long as pd */
bool tr_dnnl_is_reference(
    dnnl_primitive_desc_t pd); /* oneDNN's plain loops: 10 to 100 times slower */

/* The layout of an argument, comparable as bytes over primitives and plans. */
typedef struct {
    int32_t type, ndims, nblocks, opaque;
    int64_t dims[6], padded[6], strides[6], blocks[12], block_dims[12];
    const void *unique; /* of layouts that cannot be compared */
    int64_t rounded;    /* float32, of values that bfloat16 has */
} tr_dnnl_format;
void tr_dnnl_format_of(dnnl_primitive_desc_t pd, int arg, tr_dnnl_format *out);

/* ---- Products of sub-matrices: tiles.c ---------------------------------------------------------
 * Products of fixed shapes that several threads of one parallel region run at the same time, each
 * on addresses of its own. `thread`: which one, below those the set was opened for. */

typedef struct tr_dnnl_tiles tr_dnnl_tiles;
tr_status tr_dnnl_tiles_open(tr_cpu *cpu, int count, tr_dnnl_tiles **out);
void tr_dnnl_tiles_close(tr_dnnl_tiles *t);
/* Product i: c = a b, or with `sum` c += a b. */
tr_status tr_dnnl_tiles_add(tr_dnnl_tiles *t, int i, const tr_dnnl_array *a, const tr_dnnl_array *b,
                            const tr_dnnl_array *c, bool sum);
size_t tr_dnnl_tiles_scratch(const tr_dnnl_tiles *t);   /* bytes a thread, aligned to 64 */
const char *tr_dnnl_tiles_impl(const tr_dnnl_tiles *t); /* of the first; lives as long as t */
/* To be called by each thread of the region before its first product. */
void tr_dnnl_tiles_enter(void);
dnnl_status_t tr_dnnl_tiles_run(const tr_dnnl_tiles *t, int i, int thread, const void *a,
                                const void *b, void *c, void *scratch);

/* ---- Kernels: kernel.c ----------------------------------------------------------------------- */

typedef enum { TR_CALL_PACK, TR_CALL_ALWAYS, TR_CALL_OVERWRITE, TR_CALL_ADD } tr_call_when;
typedef enum { TR_AT_IN, TR_AT_OUT, TR_AT_PACKED, TR_AT_WORKSPACE } tr_call_place;

#define TR_DNNL_CALLS 10
#define TR_DNNL_ARGS  6

typedef struct {
    tr_call_when when;
    int packed; /* TR_CALL_PACK: which copy it makes */
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    int nargs;
    dnnl_exec_arg_t args[TR_DNNL_ARGS];
    struct {
        tr_call_place place;
        size_t at;     /* operand, packed copy, or offset in the workspace; TR_DNNL_SCRATCH */
        size_t offset; /* bytes behind it: of a part of an operand */
    } where[TR_DNNL_ARGS];
} tr_dnnl_call;

/* What a made matrix is, comparable as bytes. */
typedef struct {
    int64_t type, side, terms, rank, seed;
} tr_sketch_format;

typedef struct tr_dnnl_kernel tr_dnnl_kernel;
struct tr_dnnl_kernel {
    tr_kernel base;
    tr_cpu *cpu;
    tr_binding bound;
    size_t reserved,
        scratch; /* bytes of the workspace: the kernel's own, then the largest scratchpad */
    tr_dnnl_format formats[TR_MAX_PACKED]; /* of the packed copies */
    int ncalls;
    tr_dnnl_call calls[TR_DNNL_CALLS];
    bool sketched; /* the packed copy is a matrix made of a parameter and signs: */
    bool signed_once;
    size_t plain; /* offset in the workspace: the matrix that a layout of the library's own is a
                     copy of */
    tr_linear_matrix matrix;
    tr_sketch sketch;
    tr_sketch_format made;
    int rounded; /* operand, of `nrounded` elements, that is rounded at `plain` before it is packed;
                    0: none */
    size_t nrounded;
    size_t gradient, gradient_size; /* of the workspace: where calls leave a parameter's gradient */
    size_t preload; /* bytes of in[3] to copy to out[0] before each run: what a sum adds to */
    /* Runs after the primitives; NULL: nothing. */
    void (*after)(tr_dnnl_kernel *k, const tr_run *run);
    tr_dtype type;      /* for `after`: */
    int64_t rows, cols; /* the bias gradient's sums */
    size_t partials;    /* offset of its partial sums in the workspace */
    tr_act act;         /* the activation, of `count` elements */
    size_t count;
};

tr_status tr_dnnl_open(tr_cpu *cpu, tr_dnnl_kernel **out);
/* One of `size` bytes that starts with it; for kernels that set base.run themselves, after
 * tr_dnnl_finish: it begins with tr_dnnl_use, and executes calls. Written to the pointer at
 * `out`. */
tr_status tr_dnnl_open_more(tr_cpu *cpu, size_t size, void *out);
tr_status tr_dnnl_execute(tr_dnnl_kernel *k, const tr_dnnl_call *call);
size_t tr_dnnl_reserve(tr_dnnl_kernel *k, size_t nbytes); /* offset in the workspace */
/* Takes `pd`, also on failure. */
tr_status tr_dnnl_call_add(tr_dnnl_kernel *k, tr_call_when when, dnnl_primitive_desc_t pd,
                           tr_dnnl_call **out);
tr_status tr_dnnl_arg(tr_dnnl_kernel *k, tr_dnnl_call *call, int arg, tr_call_place place,
                      size_t at);
/* An operand's part, from so many bytes on. */
tr_status tr_dnnl_arg_part(tr_dnnl_kernel *k, tr_dnnl_call *call, int arg, tr_call_place place,
                           size_t at, size_t offset);
/* Gives argument `arg` of `call` the matrix that `op` makes of its second operand
 * (tr_sketch_matrix), stored as `plain` in the type of activations or otherwise: a packed copy, one
 * for all calls. */
tr_status tr_dnnl_sketch(tr_dnnl_kernel *k, tr_dnnl_call *call, int arg, const tr_dnnl_array *plain,
                         const tr_op *op, const tr_tensor *weight);
/* The same for a kernel that reads packed[0] itself: row after row. */
void tr_dnnl_sketch_plain(tr_dnnl_kernel *k, tr_dtype type, const tr_op *op,
                          const tr_tensor *weight);
/* Gives argument `arg` of `call` the parameter `param` (row; operand `operand`; stored as `plain`)
 * in the layout it wants: in place where that is the stored one, else as a packed copy. */
tr_status tr_dnnl_weights(tr_dnnl_kernel *k, tr_dnnl_call *call, int arg,
                          const tr_dnnl_array *plain, int operand, int param);
/* The same, a packed copy always, of the operand's values rounded to what bfloat16 has, in float32
 * (`plain` and the layout): for products of bfloat16 in float32 (wide.c). One such weight a kernel,
 * for any number of calls. */
tr_status tr_dnnl_weights_rounded(tr_dnnl_kernel *k, tr_dnnl_call *call, int arg,
                                  const tr_dnnl_array *plain, int operand, const tr_tensor *weight);
tr_status tr_dnnl_pack_sketch(tr_dnnl_kernel *k, int which);
/* Gives argument `arg` of `call`, which writes a parameter's gradient, to output `operand` (stored
 * as `plain`) through the workspace: copied out, or added where tr_run_adds. Several calls have one
 * place there. */
tr_status tr_dnnl_gradient(tr_dnnl_kernel *k, tr_dnnl_call *call, int arg,
                           const tr_dnnl_array *plain, int operand);
/* out[1] = column sums of in[1] (rows x cols) after each run: the bias gradient. */
void tr_dnnl_bias_gradient(tr_dnnl_kernel *k, int64_t rows, int64_t cols, tr_dtype type);
/* What of the activation of `op` a post-op may do: all or none. oneDNN's post-ops lose NaN,
 * which would hide a run that went wrong: relu turns it into 0 everywhere, and so does the float32
 * sigmoid of its matrix-product convolutions, whose gelu spreads it with AVX. So tr_dnnl_activate
 * does all in float32, where a second pass rounds nothing, and relu in bfloat16 too. But in an
 * infer graph a post-op does relu: there is no run to go wrong, and the pass takes up to a tenth of
 * the time. */
tr_act tr_dnnl_post_act(const tr_graph *g, const tr_op *op);
/* out[0] = act(out[0]) after each run, unless a post-op does it. */
void tr_dnnl_activate(tr_dnnl_kernel *k, const tr_graph *g, const tr_op *op);
/* Fills in the backend's interface; `impl` lives as long as the kernel. */
void tr_dnnl_finish(tr_dnnl_kernel *k, const char *impl);
/* Last: the kernel to its caller when `st` is TR_OK, else closed (NULL is fine). Returns st. */
tr_status tr_dnnl_hand_over(tr_dnnl_kernel *k, tr_status st, tr_kernel **out);

/* to = from, rounded to what bfloat16 has. */
void tr_dnnl_round(const tr_cpu *cpu, const float *from, float *to, size_t count);

/* ---- Convolutions of bfloat16 in float32: wide.c -----------------------------------------------
 * A kernel whose samples go a block at a time, copied to float32 in the workspace, to primitives of
 * float32, and their results back, where those of bfloat16 are no faster (tr_cpu.bf16_faster). A
 * weight's gradient is an operand as it is. */

typedef struct {
    bool result;
    int operand;
    int64_t columns;
    size_t at;
} tr_dnnl_wide_array;

typedef struct {
    tr_dnnl_kernel k;
    int64_t rows, block; /* samples: all, and of a block */
    int narrays;
    tr_dnnl_wide_array arrays[2];
    bool last[TR_DNNL_CALLS]; /* which calls are the last block's, if that is shorter */
    tr_act act;               /* of results, before they are rounded */
} tr_dnnl_wide;

/* `columns`: values of a sample in all arrays, which says how many samples a block has; no fewer
 * than `least`. */
tr_status tr_dnnl_wide_open(tr_cpu *cpu, int64_t rows, int64_t columns, int64_t least,
                            tr_dnnl_wide **out);
/* Samples of a block, or of the last one: 0 if that is whole. */
int64_t tr_dnnl_wide_rows(const tr_dnnl_wide *w, bool last);
/* Rows of operand in[operand], or with TR_AT_OUT out[operand], go through the place in the
 * workspace that comes back. */
size_t tr_dnnl_wide_place(tr_dnnl_wide *w, tr_call_place place, int operand, int64_t columns);
/* As tr_dnnl_finish. */
void tr_dnnl_wide_finish(tr_dnnl_wide *w, const char *impl);

#endif
