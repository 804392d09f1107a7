/* Attention and its gradient as operations, without what takes more than one of them to say: no
 * lengths, no dropout, no window. cuDNN has no operation for it that takes a causal mask before
 * 9.21; what it has is engines that know this very pattern and make one kernel of it. So the
 * operations, their order of operands, the types and the strides of what is virtual are those that
 * NVIDIA's cudnn-frontend (1.23) writes down for cuDNN 9.16 and later:
 *
 *   q, k' -> product -> * scale -> [select: row >= column, else minus infinity] -> s
 *   s -> maximum of a row; s - it -> exp -> e; sum of a row; e / it -> p, 16 bits; p, v -> product
 *   -> o log of the sum + maximum -> lse
 *
 *   do * o -> sum of a row -> * 1 -> delta
 *   s - lse -> [select] -> exp -> p; p', do -> product -> dv
 *   do, v' -> product -> - delta -> * p -> * scale -> ds; ds', q -> product -> dk
 *   ds, k -> product -> float32 in `sums` -> dq
 *
 * where ' is a transposed matrix: other strides for an operand, a reshape for what is virtual. The
 * blocks of keys add up `sums` as they come, in no fixed order; a gradient in a fixed one keeps a
 * matrix queries x keys, and is not built. Heads that share keys and values: dk and dv are sums
 * over heads of products that have all of them. */
#include "kernels/cuda/dnn/internal.h"

#include <math.h>

typedef cudnnBackendDescriptor_t tensor;

size_t tr_dnn_attention_sums(const tr_dnn_attention_problem *p)
{
    return (size_t)(p->samples * p->heads * p->queries * p->D) * sizeof(float);
}

/* The engines for an H100 take 256 bytes, and dk and dv of all heads where heads share keys. */
size_t tr_dnn_attention_workspace(const tr_dnn_problem *of)
{
    enum { SOME = 16000000 };
    const tr_dnn_attention_problem *p = &of->attention;
    const size_t all = (size_t)(p->samples * p->heads * p->keys * p->D);
    const bool shared = of->pass == TR_DNN_ATTENTION_GRAD && p->heads != p->kv_heads;
    return SOME + (shared ? 2 * all * tr_dtype_size((tr_dtype)of->type) : 0);
}

void tr_dnn_attention_numbers(const tr_dnn_problem *p, float *numbers)
{
    numbers[TR_DNN_SCALE - TR_DNN_NUMBERS] = (float)p->attention.scale;
    numbers[TR_DNN_ONE - TR_DNN_NUMBERS] = 1;
    numbers[TR_DNN_UNSEEN - TR_DNN_NUMBERS] = -INFINITY;
}

bool tr_dnn_attention_reads(const tr_dnn_problem *p, int64_t number)
{
    if (!tr_dnn_is_attention(p)) return false;
    return number == TR_DNN_SCALE || (number == TR_DNN_ONE && p->pass == TR_DNN_ATTENTION_GRAD) ||
           (number == TR_DNN_UNSEEN && p->attention.causal);
}

/* ---- What a trial runs on ---- */

enum {
    BLOCK_Q,
    BLOCK_K,
    BLOCK_V,
    BLOCK_O,
    BLOCK_LSE,
    BLOCK_DO,
    BLOCK_DQ,
    BLOCK_DK,
    BLOCK_DV,
    BLOCK_SUMS,
    BLOCK_DELTA
};

void tr_dnn_attention_sizes(const tr_dnn_problem *of, size_t nbytes[TR_CUDA_TRIAL_BLOCKS])
{
    const tr_dnn_attention_problem *p = &of->attention;
    const size_t each = tr_dtype_size((tr_dtype)of->type);
    const size_t q = (size_t)(p->samples * p->queries * p->q_pitch) * each;
    const size_t kv = p->k_at ? 0 : (size_t)(p->samples * p->keys * p->kv_pitch) * each;
    const size_t rows = (size_t)(p->samples * p->heads * p->queries);
    nbytes[BLOCK_Q] = q;
    nbytes[BLOCK_K] = nbytes[BLOCK_V] = kv;
    nbytes[BLOCK_O] = rows * (size_t)p->D * each;
    nbytes[BLOCK_LSE] = p->lse ? rows * sizeof(float) : 0;
    if (of->pass != TR_DNN_ATTENTION_GRAD) return;
    nbytes[BLOCK_DO] = nbytes[BLOCK_O];
    nbytes[BLOCK_DQ] = q;
    nbytes[BLOCK_DK] = nbytes[BLOCK_DV] = kv;
    nbytes[BLOCK_SUMS] = tr_dnn_attention_sums(p);
    nbytes[BLOCK_DELTA] = rows * sizeof(float);
}

static void *at(const tr_dnn_problem *of, void *block, void *packed, int64_t elements)
{
    if (block || !packed) return block;
    return (char *)packed + (size_t)elements * tr_dtype_size((tr_dtype)of->type);
}

tr_dnn_operands tr_dnn_attention_operands(const tr_dnn_problem *of, void *const *block)
{
    const tr_dnn_attention_problem *p = &of->attention;
    return (tr_dnn_operands){.q = block[BLOCK_Q],
                             .k = at(of, block[BLOCK_K], block[BLOCK_Q], p->k_at),
                             .v = at(of, block[BLOCK_V], block[BLOCK_Q], p->v_at),
                             .o = block[BLOCK_O],
                             .lse = block[BLOCK_LSE],
                             .d_o = block[BLOCK_DO],
                             .dq = block[BLOCK_DQ],
                             .dk = at(of, block[BLOCK_DK], block[BLOCK_DQ], p->k_at),
                             .dv = at(of, block[BLOCK_DV], block[BLOCK_DQ], p->v_at),
                             .sums = block[BLOCK_SUMS],
                             .delta = block[BLOCK_DELTA]};
}

/* ---- Tensors: (samples, heads, rows, columns) ---- */

/* (samples, heads, rows, D) of positions' rows of `pitch` elements; id: of one given. */
static tr_status rows(tr_dnn_builder *b, int64_t id, int64_t heads, int64_t n, int64_t pitch,
                      tensor *out)
{
    const tr_dnn_attention_problem *p = &b->p->attention;
    const tr_dnn_tensor t = {.id = id,
                             .type = tr_dnn_type(b->p->type),
                             .dims = {p->samples, heads, n, p->D},
                             .strides = {n * pitch, p->D, pitch, 1}};
    return tr_dnn_add_tensor(b, &t, out);
}

/* The same, read as (samples, heads, D, rows). */
static tr_status columns(tr_dnn_builder *b, int64_t id, int64_t heads, int64_t n, int64_t pitch,
                         tensor *out)
{
    const tr_dnn_attention_problem *p = &b->p->attention;
    const tr_dnn_tensor t = {.id = id,
                             .type = tr_dnn_type(b->p->type),
                             .dims = {p->samples, heads, p->D, n},
                             .strides = {n * pitch, p->D, 1, pitch}};
    return tr_dnn_add_tensor(b, &t, out);
}

static tr_status queries(tr_dnn_builder *b, int64_t id, tensor *out)
{
    const tr_dnn_attention_problem *p = &b->p->attention;
    const bool packed = id == TR_DNN_Q || id == TR_DNN_DQ;
    return rows(b, id, p->heads, p->queries, packed ? p->q_pitch : p->heads * p->D, out);
}

/* Contiguous (samples, heads, n, m), `type`. */
static tr_status matrix(tr_dnn_builder *b, int64_t id, cudnnDataType_t type, int64_t n, int64_t m,
                        tensor *out)
{
    const tr_dnn_attention_problem *p = &b->p->attention;
    const tr_dnn_tensor t = {.id = id,
                             .type = type,
                             .dims = {p->samples, p->heads, n, m},
                             .strides = {p->heads * n * m, n * m, m, 1}};
    return tr_dnn_add_tensor(b, &t, out);
}

/* One value a row of queries. */
static tr_status of_rows(tr_dnn_builder *b, int64_t id, tensor *out)
{
    const int64_t n = b->p->attention.queries;
    const tr_dnn_attention_problem *p = &b->p->attention;
    const tr_dnn_tensor t = {.id = id,
                             .type = CUDNN_DATA_FLOAT,
                             .dims = {p->samples, p->heads, n, 1},
                             .strides = {p->heads * n, n, 1, 1}};
    return tr_dnn_add_tensor(b, &t, out);
}

static tr_status number(tr_dnn_builder *b, int64_t id, tensor *out)
{
    const tr_dnn_tensor t = {.id = id,
                             .type = CUDNN_DATA_FLOAT,
                             .dims = {1, 1, 1, 1},
                             .strides = {1, 1, 1, 1},
                             .by_value = true};
    return tr_dnn_add_tensor(b, &t, out);
}

/* ---- Operations ---- */

/* *out: a virtual matrix queries x keys, mode(x[, y]). */
static tr_status each(tr_dnn_builder *b, cudnnPointwiseMode_t mode, tensor x, tensor y, tensor *out)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    TR_TRY(matrix(b, tr_dnn_virtual(b), CUDNN_DATA_FLOAT, p->queries, p->keys, out));
    TR_TRY(tr_dnn_add_pointwise(
        b, &(tr_dnn_pointwise){.mode = mode, .math = CUDNN_DATA_FLOAT, .x = x, .b = y, .y = *out}));
out:
    return st;
}

/* y = mode(x[, by]), float32. */
static tr_status into(tr_dnn_builder *b, cudnnPointwiseMode_t mode, tensor x, tensor by, tensor y)
{
    return tr_dnn_add_pointwise(
        b, &(tr_dnn_pointwise){.mode = mode, .math = CUDNN_DATA_FLOAT, .x = x, .b = by, .y = y});
}

static tr_status scaled(tr_dnn_builder *b, tensor scale, tensor *at)
{
    return each(b, CUDNN_POINTWISE_MUL, *at, scale, at);
}

static tr_status place(tr_dnn_builder *b, tensor like, int64_t axis, tensor *out)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    TR_TRY(matrix(b, tr_dnn_virtual(b), CUDNN_DATA_INT32, p->queries, p->keys, out));
    TR_TRY(tr_dnn_add_pointwise(b, &(tr_dnn_pointwise){.mode = CUDNN_POINTWISE_GEN_INDEX,
                                                       .math = CUDNN_DATA_FLOAT,
                                                       .axis = axis,
                                                       .x = like,
                                                       .y = *out}));
out:
    return st;
}

/* Minus infinity where a query does not see a key. */
static tr_status mask(tr_dnn_builder *b, tensor *at)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    tensor row, column, sees, unseen, y;
    if (!p->causal) return TR_OK;
    TR_TRY(number(b, TR_DNN_UNSEEN, &unseen));
    TR_TRY(place(b, *at, 2, &row));
    TR_TRY(place(b, *at, 3, &column));
    TR_TRY(matrix(b, tr_dnn_virtual(b), CUDNN_DATA_BOOLEAN, p->queries, p->keys, &sees));
    TR_TRY(tr_dnn_add_pointwise(b, &(tr_dnn_pointwise){.mode = CUDNN_POINTWISE_CMP_GE,
                                                       .math = CUDNN_DATA_BOOLEAN,
                                                       .x = row,
                                                       .b = column,
                                                       .y = sees}));
    TR_TRY(matrix(b, tr_dnn_virtual(b), CUDNN_DATA_FLOAT, p->queries, p->keys, &y));
    TR_TRY(tr_dnn_add_pointwise(b, &(tr_dnn_pointwise){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                                       .math = CUDNN_DATA_FLOAT,
                                                       .x = *at,
                                                       .b = unseen,
                                                       .t = sees,
                                                       .y = y}));
    *at = y;
out:
    return st;
}

/* Products of queries and keys, scaled. */
static tr_status scores(tr_dnn_builder *b, tensor q, tensor k, tensor scale, tensor *out)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    TR_TRY(matrix(b, tr_dnn_virtual(b), CUDNN_DATA_FLOAT, p->queries, p->keys, out));
    TR_TRY(tr_dnn_add_matmul(b, q, k, *out));
    TR_TRY(scaled(b, scale, out));
out:
    return st;
}

/* Probabilities of scores, 16 bits, and lse: without its operations nothing knows the pattern, so
 * where it is not wanted it is virtual. */
static tr_status softmax(tr_dnn_builder *b, tensor s, tensor *p16)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    tensor most, e, sum, log, lse;
    TR_TRY(of_rows(b, tr_dnn_virtual(b), &most));
    TR_TRY(tr_dnn_add_reduction(b, CUDNN_REDUCE_TENSOR_MAX, s, most));
    TR_TRY(each(b, CUDNN_POINTWISE_SUB, s, most, &e));
    TR_TRY(each(b, CUDNN_POINTWISE_EXP, e, NULL, &e));
    TR_TRY(of_rows(b, tr_dnn_virtual(b), &sum));
    TR_TRY(tr_dnn_add_reduction(b, CUDNN_REDUCE_TENSOR_ADD, e, sum));
    TR_TRY(of_rows(b, tr_dnn_virtual(b), &log));
    TR_TRY(into(b, CUDNN_POINTWISE_LOG, sum, NULL, log));
    TR_TRY(of_rows(b, p->lse ? TR_DNN_LSE : tr_dnn_virtual(b), &lse));
    TR_TRY(into(b, CUDNN_POINTWISE_ADD, most, log, lse));
    TR_TRY(matrix(b, tr_dnn_virtual(b), tr_dnn_type(b->p->type), p->queries, p->keys, p16));
    TR_TRY(into(b, CUDNN_POINTWISE_DIV, e, sum, *p16));
out:
    return st;
}

static tr_status forward(tr_dnn_builder *b)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    tensor q, k, v, o, scale, at;
    TR_TRY(queries(b, TR_DNN_Q, &q));
    TR_TRY(columns(b, TR_DNN_K, p->kv_heads, p->keys, p->kv_pitch, &k));
    TR_TRY(rows(b, TR_DNN_V, p->kv_heads, p->keys, p->kv_pitch, &v));
    TR_TRY(queries(b, TR_DNN_O, &o));
    TR_TRY(number(b, TR_DNN_SCALE, &scale));
    TR_TRY(scores(b, q, k, scale, &at));
    TR_TRY(mask(b, &at));
    TR_TRY(softmax(b, at, &at));
    TR_TRY(tr_dnn_add_matmul(b, at, v, o));
out:
    return st;
}

/* ---- Backward ---- */

/* Sums of do * o a row. */
static tr_status row_sums(tr_dnn_builder *b, tensor d_o, tensor *delta)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    const tr_dnn_tensor product = {
        .id = tr_dnn_virtual(b),
        .type = CUDNN_DATA_FLOAT,
        .dims = {p->samples, p->heads, p->queries, p->D},
        .strides = {p->heads * p->queries * p->D, p->queries * p->D, p->heads * p->D, 1}};
    tensor o, at, sum, one;
    TR_TRY(queries(b, TR_DNN_O, &o));
    TR_TRY(tr_dnn_add_tensor(b, &product, &at));
    TR_TRY(into(b, CUDNN_POINTWISE_MUL, d_o, o, at));
    TR_TRY(of_rows(b, tr_dnn_virtual(b), &sum));
    TR_TRY(tr_dnn_add_reduction(b, CUDNN_REDUCE_TENSOR_ADD, at, sum));
    TR_TRY(number(b, TR_DNN_ONE, &one));
    TR_TRY(of_rows(b, TR_DNN_DELTA, delta));
    TR_TRY(into(b, CUDNN_POINTWISE_MUL, sum, one, *delta));
out:
    return st;
}

/* The gradient of keys or values: the transposed matrix by rows of queries. */
static tr_status keys_gradient(tr_dnn_builder *b, tensor at, tensor by, int64_t id)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    const int64_t n = p->queries, m = p->keys;
    const tr_dnn_tensor turned = {.id = tr_dnn_virtual(b),
                                  .type = tr_dnn_type(b->p->type),
                                  .dims = {p->samples, p->heads, m, n},
                                  .strides = {p->heads * n * m, n * m, 1, m}};
    tensor t, all, y;
    TR_TRY(tr_dnn_add_tensor(b, &turned, &t));
    TR_TRY(tr_dnn_add_reshape(b, at, t));
    TR_TRY(rows(b, id, p->kv_heads, m, p->kv_pitch, &y));
    if (p->heads == p->kv_heads) {
        TR_TRY(tr_dnn_add_matmul(b, t, by, y));
        goto out;
    }
    TR_TRY(matrix(b, tr_dnn_virtual(b), tr_dnn_type(b->p->type), m, p->D, &all));
    TR_TRY(tr_dnn_add_matmul(b, t, by, all));
    TR_TRY(tr_dnn_add_reduction(b, CUDNN_REDUCE_TENSOR_ADD, all, y));
out:
    return st;
}

static tr_status queries_gradient(tr_dnn_builder *b, tensor ds, tensor k)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    tensor turned, sums, dq;
    TR_TRY(rows(b, tr_dnn_virtual(b), p->kv_heads, p->keys, p->kv_pitch, &turned));
    TR_TRY(tr_dnn_add_reshape(b, k, turned));
    TR_TRY(queries(b, TR_DNN_DQ, &dq));
    TR_TRY(matrix(b, TR_DNN_SUMS, CUDNN_DATA_FLOAT, p->queries, p->D, &sums));
    TR_TRY(tr_dnn_add_matmul(b, ds, turned, sums));
    TR_TRY(into(b, CUDNN_POINTWISE_IDENTITY, sums, NULL, dq));
out:
    return st;
}

static tr_status backward(tr_dnn_builder *b)
{
    tr_status st = TR_OK;
    const tr_dnn_attention_problem *p = &b->p->attention;
    tensor q, k, v, d_o, lse, scale, delta, at, probabilities;
    TR_TRY(queries(b, TR_DNN_Q, &q));
    TR_TRY(columns(b, TR_DNN_K, p->kv_heads, p->keys, p->kv_pitch, &k));
    TR_TRY(columns(b, TR_DNN_V, p->kv_heads, p->keys, p->kv_pitch, &v));
    TR_TRY(queries(b, TR_DNN_DO, &d_o));
    TR_TRY(of_rows(b, TR_DNN_LSE, &lse));
    TR_TRY(number(b, TR_DNN_SCALE, &scale));
    TR_TRY(row_sums(b, d_o, &delta));
    TR_TRY(scores(b, q, k, scale, &at));
    TR_TRY(each(b, CUDNN_POINTWISE_SUB, at, lse, &at));
    TR_TRY(mask(b, &at));
    TR_TRY(each(b, CUDNN_POINTWISE_EXP, at, NULL, &probabilities));
    TR_TRY(keys_gradient(b, probabilities, d_o, TR_DNN_DV));
    TR_TRY(matrix(b, tr_dnn_virtual(b), CUDNN_DATA_FLOAT, p->queries, p->keys, &at));
    TR_TRY(tr_dnn_add_matmul(b, d_o, v, at));
    TR_TRY(each(b, CUDNN_POINTWISE_SUB, at, delta, &at));
    TR_TRY(each(b, CUDNN_POINTWISE_MUL, at, probabilities, &at));
    TR_TRY(scaled(b, scale, &at));
    TR_TRY(keys_gradient(b, at, q, TR_DNN_DK));
    TR_TRY(queries_gradient(b, at, k));
out:
    return st;
}

tr_status tr_dnn_attention(tr_dnn_builder *b)
{
    return b->p->pass == TR_DNN_ATTENTION ? forward(b) : backward(b);
}
