/* Everything in which oneDNN 2.6 and 3.x differ. 2.6 describes an operation by a struct that is
 * then made a primitive descriptor, and memory by a struct; 3.x has one call an operation and
 * opaque memory descriptors. Callers see arrays by value and primitive descriptors. */
#include "kernels/cpu/onednn/onednn.h"

#include <string.h>

#define V3 (DNNL_VERSION_MAJOR >= 3)

#if V3
typedef const_dnnl_memory_desc_t md_ptr;
typedef dnnl_memory_desc_t md_own;
#define MD(own, array) ((array)->ndims ? (own) : NULL)
#else
typedef const dnnl_memory_desc_t *md_ptr;
typedef dnnl_memory_desc_t md_own;
#define MD(own, array) ((array)->ndims ? &(own) : NULL)
#endif

static const tr_dnnl_array absent;

static void md_close(md_own *m)
{
#if V3
    if (*m) dnnl_memory_desc_destroy(*m);
#else
    (void)m;
#endif
}

static dnnl_status_t md_open(const tr_dnnl_array *a, md_own *m)
{
    if (!a->ndims) return dnnl_success;
#if V3
    if (a->any)
        return dnnl_memory_desc_create_with_tag(m, a->ndims, a->dims, a->type, dnnl_format_tag_any);
    return dnnl_memory_desc_create_with_strides(m, a->ndims, a->dims, a->type, a->strides);
#else
    if (a->any)
        return dnnl_memory_desc_init_by_tag(m, a->ndims, a->dims, a->type, dnnl_format_tag_any);
    return dnnl_memory_desc_init_by_strides(m, a->ndims, a->dims, a->type, a->strides);
#endif
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

dnnl_data_type_t tr_dnnl_type(tr_dtype t)
{
    return t == TR_BF16 ? dnnl_bf16 : dnnl_f32;
}

tr_dnnl_array tr_dnnl_matrix(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                             tr_dtype type)
{
    return (tr_dnnl_array){.ndims = 2,
                           .dims = {rows, cols},
                           .strides = {row_stride, col_stride},
                           .type = tr_dnnl_type(type)};
}

tr_dnnl_array tr_dnnl_channels_last(const int64_t nchw[4], tr_dtype type)
{
    int64_t c = nchw[1], h = nchw[2], w = nchw[3];
    return (tr_dnnl_array){.ndims = 4,
                           .dims = {nchw[0], c, h, w},
                           .strides = {h * w * c, 1, w * c, c},
                           .type = tr_dnnl_type(type)};
}

tr_dnnl_array tr_dnnl_dense(int ndims, const int64_t *dims, tr_dtype type)
{
    tr_dnnl_array a = {.ndims = ndims, .type = tr_dnnl_type(type)};
    int64_t stride = 1;
    for (int i = ndims - 1; i >= 0; i--) {
        a.dims[i] = dims[i];
        a.strides[i] = stride;
        stride *= dims[i];
    }
    return a;
}

tr_dnnl_array tr_dnnl_any(tr_dnnl_array a, tr_dtype type)
{
    a.any = true;
    a.type = tr_dnnl_type(type);
    return a;
}

/* ---- Attributes ------------------------------------------------------------------------------ */

static dnnl_status_t append_act(dnnl_post_ops_t ops, tr_act act)
{
    static const struct {
        dnnl_alg_kind_t kind;
        float alpha;
    } table[] = {
        [TR_ACT_RELU] = {dnnl_eltwise_relu, 0},
        [TR_ACT_GELU] = {dnnl_eltwise_gelu_erf, 0},
        [TR_ACT_GELU_TANH] = {dnnl_eltwise_gelu_tanh, 0},
        [TR_ACT_SILU] = {dnnl_eltwise_swish, 1},
        [TR_ACT_SIGMOID] = {dnnl_eltwise_logistic, 0},
        [TR_ACT_TANH] = {dnnl_eltwise_tanh, 0},
    };
    if (act == TR_ACT_NONE) return dnnl_success;
    if ((size_t)act >= TR_COUNT(table)) return dnnl_invalid_arguments;
#if V3
    return dnnl_post_ops_append_eltwise(ops, table[act].kind, table[act].alpha, 0);
#else
    return dnnl_post_ops_append_eltwise(ops, 1, table[act].kind, table[act].alpha, 0);
#endif
}

static dnnl_status_t append_post(dnnl_post_ops_t ops, const tr_dnnl_post *post)
{
    dnnl_status_t st = dnnl_success;
    if (post->sum) {
#if V3
        st = dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
#else
        st = dnnl_post_ops_append_sum(ops, 1);
#endif
    }
    if (post->add && st == dnnl_success) {
        md_own m = {0};
        st = md_open(post->add, &m);
        if (st == dnnl_success)
            st = dnnl_post_ops_append_binary(ops, dnnl_binary_add, MD(m, post->add));
        md_close(&m);
    }
    return st == dnnl_success ? append_act(ops, post->act) : st;
}

static tr_status attr_open(const tr_dnnl_post *post, dnnl_primitive_attr_t *out)
{
    tr_status st = TR_OK;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    TR_DNNL(dnnl_primitive_attr_create(&attr), "create attributes");
    TR_DNNL(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
            "leave the scratchpad to its caller");
    if (post) {
        TR_DNNL(dnnl_post_ops_create(&ops), "create post-ops");
        TR_DNNL(append_post(ops, post), "append a post-op");
        TR_DNNL(dnnl_primitive_attr_set_post_ops(attr, ops), "set post-ops");
    }
out:
    if (ops) dnnl_post_ops_destroy(ops);
    if (st != TR_OK) {
        if (attr) dnnl_primitive_attr_destroy(attr);
        return st;
    }
    *out = attr;
    return TR_OK;
}

/* ---- Primitive descriptors ------------------------------------------------------------------- */

tr_status tr_dnnl_matmul(tr_cpu *cpu, const tr_dnnl_array *a, const tr_dnnl_array *b,
                         const tr_dnnl_array *bias, const tr_dnnl_array *c,
                         const tr_dnnl_post *post, dnnl_primitive_desc_t *out)
{
    tr_status st = TR_OK;
    md_own m[4] = {0};
    dnnl_primitive_attr_t attr = NULL;
    if (!bias) bias = &absent;
    TR_TRY(attr_open(post, &attr));
    TR_DNNL(md_open(a, &m[0]), "describe a matrix");
    TR_DNNL(md_open(b, &m[1]), "describe a matrix");
    TR_DNNL(md_open(bias, &m[2]), "describe a bias");
    TR_DNNL(md_open(c, &m[3]), "describe a matrix");
#if V3
    TR_DNNL(dnnl_matmul_primitive_desc_create(out, cpu->engine, MD(m[0], a), MD(m[1], b),
                                              MD(m[2], bias), MD(m[3], c), attr),
            "multiply these matrices");
#else
    dnnl_matmul_desc_t d;
    TR_DNNL(dnnl_matmul_desc_init(&d, MD(m[0], a), MD(m[1], b), MD(m[2], bias), MD(m[3], c)),
            "describe a matrix product");
    TR_DNNL(dnnl_primitive_desc_create(out, &d, attr, cpu->engine, NULL),
            "multiply these matrices");
#endif
out:
    for (int i = 0; i < 4; i++) md_close(&m[i]);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return st;
}

static bool skipped(dnnl_primitive_desc_t pd, const char *skip)
{
    return skip && strncmp(tr_dnnl_impl(pd), skip, strlen(skip)) == 0;
}

/* Backward descriptors want a forward one as a hint. */
static dnnl_status_t conv_pd(tr_cpu *cpu, tr_conv_kind kind, const tr_dnnl_conv *c, const md_own *m,
                             dnnl_primitive_attr_t attr, dnnl_primitive_desc_t hint,
                             const char *skip, dnnl_primitive_desc_t *out)
{
    md_ptr src = MD(m[0], &c->src), wei = MD(m[1], &c->weights), dst = MD(m[3], &c->dst);
    md_ptr bias = MD(m[2], &c->bias);
    dnnl_prop_kind_t prop = kind == TR_CONV_INFER ? dnnl_forward_inference : dnnl_forward_training;
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
#if V3
    dnnl_status_t st;
    if (kind == TR_CONV_GRAD_INPUT)
        st = dnnl_convolution_backward_data_primitive_desc_create(
            out, cpu->engine, direct, src, wei, dst, c->stride, c->dilation, c->padding,
            c->padding_end, hint, attr);
    else if (kind == TR_CONV_GRAD_WEIGHT)
        st = dnnl_convolution_backward_weights_primitive_desc_create(
            out, cpu->engine, direct, src, wei, bias, dst, c->stride, c->dilation, c->padding,
            c->padding_end, hint, attr);
    else
        st = dnnl_convolution_forward_primitive_desc_create(out, cpu->engine, prop, direct, src,
                                                            wei, bias, dst, c->stride, c->dilation,
                                                            c->padding, c->padding_end, attr);
    while (st == dnnl_success && skipped(*out, skip)) st = dnnl_primitive_desc_next_impl(*out);
    if (st != dnnl_success && *out) {
        dnnl_primitive_desc_destroy(*out);
        *out = NULL;
    }
    return st;
#else
    dnnl_convolution_desc_t d;
    dnnl_status_t st;
    if (kind == TR_CONV_GRAD_INPUT)
        st = dnnl_dilated_convolution_backward_data_desc_init(
            &d, direct, src, wei, dst, c->stride, c->dilation, c->padding, c->padding_end);
    else if (kind == TR_CONV_GRAD_WEIGHT)
        st = dnnl_dilated_convolution_backward_weights_desc_init(
            &d, direct, src, wei, bias, dst, c->stride, c->dilation, c->padding, c->padding_end);
    else
        st = dnnl_dilated_convolution_forward_desc_init(&d, prop, direct, src, wei, bias, dst,
                                                        c->stride, c->dilation, c->padding,
                                                        c->padding_end);
    if (st != dnnl_success) return st;
    dnnl_primitive_desc_iterator_t it;
    st = dnnl_primitive_desc_iterator_create(&it, &d, attr, cpu->engine, hint);
    if (st != dnnl_success) return st;
    *out = dnnl_primitive_desc_iterator_fetch(it);
    while (*out && skipped(*out, skip)) {
        dnnl_primitive_desc_destroy(*out);
        *out = NULL;
        st = dnnl_primitive_desc_iterator_next(it);
        if (st != dnnl_success) break;
        *out = dnnl_primitive_desc_iterator_fetch(it);
    }
    dnnl_primitive_desc_iterator_destroy(it);
    return *out ? dnnl_success : dnnl_unimplemented;
#endif
}

tr_status tr_dnnl_convolution(tr_cpu *cpu, tr_conv_kind kind, const tr_dnnl_conv *c,
                              const tr_dnnl_post *post, const char *skip,
                              dnnl_primitive_desc_t *out)
{
    tr_status st = TR_OK;
    *out = NULL;
    md_own m[4] = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t hint = NULL;
    TR_TRY(attr_open(post, &attr));
    TR_DNNL(md_open(&c->src, &m[0]), "describe an image");
    TR_DNNL(md_open(&c->weights, &m[1]), "describe convolution weights");
    TR_DNNL(md_open(&c->bias, &m[2]), "describe a bias");
    TR_DNNL(md_open(&c->dst, &m[3]), "describe an image");
    if (kind == TR_CONV_GRAD_INPUT || kind == TR_CONV_GRAD_WEIGHT) {
        /* The hint convolves values of the activations' type; a gradient's may differ. */
        tr_dnnl_conv forward = *c;
        md_own none = {0};
        md_own w[4] = {m[0], none, none, m[3]};
        forward.bias = absent;
        forward.weights.type = c->src.type;
        dnnl_status_t dst = md_open(&forward.weights, &w[1]);
        if (dst == dnnl_success)
            dst = conv_pd(cpu, TR_CONV_TRAIN, &forward, w, NULL, NULL, NULL, &hint);
        md_close(&w[1]);
        TR_DNNL(dst, "convolve these shapes");
    }
    TR_DNNL(conv_pd(cpu, kind, c, m, attr, hint, skip, out), "convolve these shapes");
out:
    for (int i = 0; i < 4; i++) md_close(&m[i]);
    if (hint) dnnl_primitive_desc_destroy(hint);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return st;
}

static md_ptr arg_md(dnnl_primitive_desc_t pd, int arg)
{
    return dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, arg);
}

tr_status tr_dnnl_reorder(tr_cpu *cpu, const tr_dnnl_array *plain, dnnl_primitive_desc_t pd,
                          int arg, bool to_plain, bool sum, dnnl_primitive_desc_t *out)
{
    tr_status st = TR_OK;
    md_own m = {0};
    dnnl_primitive_attr_t attr = NULL;
    const tr_dnnl_post post = {.sum = sum};
    TR_TRY(attr_open(&post, &attr));
    TR_DNNL(md_open(plain, &m), "describe an array");
    md_ptr own = MD(m, plain), other = arg_md(pd, arg);
    TR_DNNL(dnnl_reorder_primitive_desc_create(out, to_plain ? other : own, cpu->engine,
                                               to_plain ? own : other, cpu->engine, attr),
            "reorder weights");
out:
    md_close(&m);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return st;
}

tr_status tr_dnnl_reorder_back(tr_cpu *cpu, dnnl_primitive_desc_t pd, dnnl_primitive_desc_t *out)
{
    tr_status st = TR_OK;
    TR_DNNL(dnnl_reorder_primitive_desc_create(out, arg_md(pd, DNNL_ARG_TO), cpu->engine,
                                               arg_md(pd, DNNL_ARG_FROM), cpu->engine, NULL),
            "reorder weights back");
out:
    return st;
}

/* ---- Questions ------------------------------------------------------------------------------- */

size_t tr_dnnl_arg_size(dnnl_primitive_desc_t pd, int arg)
{
    return dnnl_memory_desc_get_size(arg_md(pd, arg));
}

bool tr_dnnl_arg_is(dnnl_primitive_desc_t pd, int arg, const tr_dnnl_array *plain)
{
    md_own m = {0};
    bool same =
        md_open(plain, &m) == dnnl_success && dnnl_memory_desc_equal(arg_md(pd, arg), MD(m, plain));
    md_close(&m);
    return same;
}

const char *tr_dnnl_impl(dnnl_primitive_desc_t pd)
{
    const char *s = "unknown";
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &s);
    return s;
}

bool tr_dnnl_is_reference(dnnl_primitive_desc_t pd)
{
    return strncmp(tr_dnnl_impl(pd), "ref", 3) == 0;
}

/* Plain layouts are told apart by what lies in memory: a matrix and its transpose's transpose
 * agree. */
static void sort_plain(tr_dnnl_format *f)
{
    for (int i = 1; i < f->ndims; i++)
        for (int j = i; j > 0 && f->strides[j] > f->strides[j - 1]; j--) {
            int64_t *const arrays[] = {f->dims, f->padded, f->strides};
            for (int a = 0; a < 3; a++) {
                int64_t t = arrays[a][j];
                arrays[a][j] = arrays[a][j - 1];
                arrays[a][j - 1] = t;
            }
        }
}

void tr_dnnl_format_of(dnnl_primitive_desc_t pd, int arg, tr_dnnl_format *f)
{
    md_ptr m = arg_md(pd, arg);
    memset(f, 0, sizeof *f);
#if V3
    dnnl_format_kind_t kind = dnnl_format_kind_undef;
    dnnl_data_type_t type = dnnl_data_type_undef;
    const dnnl_dims_t *dims = NULL, *padded = NULL, *strides = NULL, *blocks = NULL, *idxs = NULL;
    int ndims = 0, nblocks = 0;
    dnnl_memory_desc_query(m, dnnl_query_format_kind, &kind);
    dnnl_memory_desc_query(m, dnnl_query_data_type, &type);
    dnnl_memory_desc_query(m, dnnl_query_ndims_s32, &ndims);
    if (kind != dnnl_blocked) {
        f->opaque = 1;
        f->unique = pd;
        return;
    }
    dnnl_memory_desc_query(m, dnnl_query_dims, &dims);
    dnnl_memory_desc_query(m, dnnl_query_padded_dims, &padded);
    dnnl_memory_desc_query(m, dnnl_query_strides, &strides);
    dnnl_memory_desc_query(m, dnnl_query_inner_nblks_s32, &nblocks);
    dnnl_memory_desc_query(m, dnnl_query_inner_blks, &blocks);
    dnnl_memory_desc_query(m, dnnl_query_inner_idxs, &idxs);
#else
    const dnnl_blocking_desc_t *b = &m->format_desc.blocking;
    const dnnl_dims_t *dims = &m->dims, *padded = &m->padded_dims, *strides = &b->strides;
    const dnnl_dims_t *blocks = &b->inner_blks, *idxs = &b->inner_idxs;
    int ndims = m->ndims, nblocks = b->inner_nblks;
    dnnl_data_type_t type = m->data_type;
    if (m->format_kind != dnnl_blocked || m->extra.flags) {
        f->opaque = 1;
        f->unique = pd;
        return;
    }
#endif
    f->type = (int32_t)type;
    f->ndims = ndims;
    f->nblocks = nblocks;
    for (int i = 0; i < ndims; i++) {
        f->dims[i] = (*dims)[i];
        f->padded[i] = (*padded)[i];
        f->strides[i] = (*strides)[i];
    }
    for (int i = 0; i < nblocks; i++) {
        f->blocks[i] = (*blocks)[i];
        f->block_dims[i] = (*idxs)[i];
    }
    if (!nblocks) sort_plain(f);
}
