/* Tensors of a file as constants: floats of any width as float32, whole numbers as int64. */
#include <string.h>

#include "optimize/onnx/reader.h"

tr_onnx_const *tr_onnx_const_new(tr_onnx_reader *r, int ndim, const int64_t *dims, float **f,
                                 int64_t **i)
{
    tr_onnx_const *c = tr_pool_get(&r->pool, 1, sizeof *c);
    size_t n = 1;
    for (int d = 0; d < ndim; d++)
        if (dims[d] < 0 || !tr_mul_size(n, (size_t)dims[d], &n)) return NULL;
    if (!c) return NULL;
    c->ndim = ndim;
    c->count = n;
    if (ndim) memcpy(c->dims, dims, (size_t)ndim * sizeof *dims);
    if (f) c->f = *f = tr_pool_get(&r->pool, n, sizeof **f);
    if (i) c->i = *i = tr_pool_get(&r->pool, n, sizeof **i);
    return r->pool.st == TR_OK ? c : NULL;
}

/* The bytes of an element in raw data; 0: no number that we know. */
static size_t size_of(int type)
{
    switch (type) {
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT:
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT32:
    case ONNX__TENSOR_PROTO__DATA_TYPE__UINT32:
        return 4;
    case ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE:
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT64:
        return 8;
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16:
    case ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16:
        return 2;
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT8:
    case ONNX__TENSOR_PROTO__DATA_TYPE__UINT8:
    case ONNX__TENSOR_PROTO__DATA_TYPE__BOOL:
        return 1;
    default:
        return 0;
    }
}

static bool is_float(int type)
{
    return type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT ||
           type == ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE ||
           type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16 ||
           type == ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16;
}

static float float_at(int type, const unsigned char *p)
{
    uint16_t half;
    double wide;
    float v;
    switch (type) {
    case ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE:
        memcpy(&wide, p, sizeof wide);
        return (float)wide;
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16:
        memcpy(&half, p, sizeof half);
        return tr_f16_to_f32(half);
    case ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16:
        memcpy(&half, p, sizeof half);
        return tr_bf16_to_f32(half);
    default:
        memcpy(&v, p, sizeof v);
        return v;
    }
}

static int64_t whole_at(int type, const unsigned char *p)
{
    int64_t wide;
    int32_t v;
    uint32_t u;
    switch (type) {
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT64:
        memcpy(&wide, p, sizeof wide);
        return wide;
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT32:
        memcpy(&v, p, sizeof v);
        return v;
    case ONNX__TENSOR_PROTO__DATA_TYPE__UINT32:
        memcpy(&u, p, sizeof u);
        return u;
    case ONNX__TENSOR_PROTO__DATA_TYPE__INT8:
        return (int8_t)*p;
    default:
        return *p;
    }
}

static void take_bytes(int type, const unsigned char *bytes, size_t n, float *f, int64_t *w)
{
    const size_t size = size_of(type);
    for (size_t i = 0; i < n; i++)
        if (f)
            f[i] = float_at(type, bytes + i * size);
        else
            w[i] = whole_at(type, bytes + i * size);
}

/* The fields that hold one number each, for who writes no raw data. False: not as many as
 * needed. */
static bool take_fields(const Onnx__TensorProto *t, size_t n, float *f, int64_t *w)
{
    const int type = t->data_type;
    for (size_t i = 0; i < n; i++) {
        if (type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT && t->n_float_data == n) {
            f[i] = t->float_data[i];
        } else if (type == ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE && t->n_double_data == n) {
            f[i] = (float)t->double_data[i];
        } else if (type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16 && t->n_int32_data == n) {
            f[i] = tr_f16_to_f32((tr_f16)t->int32_data[i]); /* its bits */
        } else if (type == ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16 && t->n_int32_data == n) {
            f[i] = tr_bf16_to_f32((tr_bf16)t->int32_data[i]);
        } else if (type == ONNX__TENSOR_PROTO__DATA_TYPE__INT64 && t->n_int64_data == n) {
            w[i] = t->int64_data[i];
        } else if (type == ONNX__TENSOR_PROTO__DATA_TYPE__UINT32 && t->n_uint64_data == n) {
            w[i] = (int64_t)(uint32_t)t->uint64_data[i];
        } else if (w && type != ONNX__TENSOR_PROTO__DATA_TYPE__INT64 &&
                   type != ONNX__TENSOR_PROTO__DATA_TYPE__UINT32 && t->n_int32_data == n) {
            w[i] = t->int32_data[i];
        } else {
            return false;
        }
    }
    return true;
}

static const tr_onnx_const *damaged(tr_onnx_reader *r, const Onnx__TensorProto *t, const char *what)
{
    if (r->pool.st == TR_OK)
        r->pool.st =
            TR_FAIL(TR_DATA, "%s: tensor \"%s\": %s", r->path, t->name ? t->name : "", what);
    return NULL;
}

/* float32 stays where it was unpacked to. */
const tr_onnx_const *tr_onnx_tensor(tr_onnx_reader *r, const Onnx__TensorProto *t)
{
    const int type = t->has_data_type ? t->data_type : 0;
    const size_t size = size_of(type);
    const bool out = t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    size_t n = 1, nbytes;
    if (!size) return damaged(r, t, "its type is none of numbers that can be read");
    if (t->n_dims > TR_ONNX_RANK) return damaged(r, t, "too many dimensions");
    for (size_t d = 0; d < t->n_dims; d++)
        if (t->dims[d] < 0 || !tr_mul_size(n, (size_t)t->dims[d], &n))
            return damaged(r, t, "its dimensions are not possible");
    if (t->segment || !tr_mul_size(n, size, &nbytes)) return damaged(r, t, "it is in pieces");
    const bool raw = out || t->has_raw_data;
    if (!out && t->has_raw_data && t->raw_data.len != nbytes)
        return damaged(r, t, "its bytes are not as many as its dimensions say");
    if (!raw && n > (size_t)r->file_bytes) return damaged(r, t, "it has no values");
    const void *bytes = out ? tr_onnx_external(r, t, nbytes) : raw ? t->raw_data.data : NULL;
    if (r->pool.st != TR_OK) return NULL;
    if (raw && type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT && n &&
        (uintptr_t)bytes % sizeof(float) == 0) {
        tr_onnx_const *c = tr_pool_get(&r->pool, 1, sizeof *c);
        if (!c) return NULL;
        *c = (tr_onnx_const){.ndim = (int)t->n_dims, .count = n, .f = bytes};
        if (t->n_dims) memcpy(c->dims, t->dims, t->n_dims * sizeof *t->dims);
        return c;
    }
    float *f = NULL;
    int64_t *w = NULL;
    /* its values are in a file, so what they are converted to is bounded by that: up to 8 bytes for
     * one */
    if (r->pool.most) r->pool.most += n * (is_float(type) ? sizeof *f : sizeof *w);
    tr_onnx_const *c = tr_onnx_const_new(r, (int)t->n_dims, t->dims, is_float(type) ? &f : NULL,
                                         is_float(type) ? NULL : &w);
    if (!c) return damaged(r, t, "it is too large");
    c->type = type;
    if (raw)
        take_bytes(type, bytes, n, f, w);
    else if (!take_fields(t, n, f, w))
        return damaged(r, t, "its values are not as many as its dimensions say");
    return c;
}
