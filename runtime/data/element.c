/* Elements as files hold them: names, sizes, byte order, and the loops that turn them into float32
 * or bfloat16. These loops see every byte of the training set once an epoch; they are plain so that
 * the compiler vectorizes them (-O2 alone does not with gcc 12, hence TR_HOT). */
#include "runtime/data/internal.h"

#include <math.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#define TR_HOT __attribute__((optimize("O3")))
#else
#define TR_HOT
#endif

static const struct {
    const char *name;
    size_t size;
} elems[TR_ELEMS] = {
    [TR_ELEM_U8] = {"uint8", 1},    [TR_ELEM_I8] = {"int8", 1},     [TR_ELEM_U16] = {"uint16", 2},
    [TR_ELEM_I16] = {"int16", 2},   [TR_ELEM_U32] = {"uint32", 4},  [TR_ELEM_I32] = {"int32", 4},
    [TR_ELEM_U64] = {"uint64", 8},  [TR_ELEM_I64] = {"int64", 8},   [TR_ELEM_F32] = {"float32", 4},
    [TR_ELEM_F64] = {"float64", 8}, [TR_ELEM_F16] = {"float16", 2},
};

size_t tr_elem_size(tr_elem e)
{
    return elems[e].size;
}

const char *tr_elem_name(tr_elem e)
{
    return elems[e].name;
}

/* X(elem, type) over every element type that C has */
#define ELEM_TYPES(X)                                                                              \
    X(TR_ELEM_U8, uint8_t)                                                                         \
    X(TR_ELEM_I8, int8_t)                                                                          \
    X(TR_ELEM_U16, uint16_t)                                                                       \
    X(TR_ELEM_I16, int16_t)                                                                        \
    X(TR_ELEM_U32, uint32_t)                                                                       \
    X(TR_ELEM_I32, int32_t)                                                                        \
    X(TR_ELEM_U64, uint64_t)                                                                       \
    X(TR_ELEM_I64, int64_t)                                                                        \
    X(TR_ELEM_F32, float)                                                                          \
    X(TR_ELEM_F64, double)

double tr_elem_value(tr_elem e, const void *raw, size_t k)
{
    switch (e) {
#define X(elem, type)                                                                              \
    case elem:                                                                                     \
        return (double)((const type *)raw)[k];
        ELEM_TYPES(X)
#undef X
    case TR_ELEM_F16:
        return (double)tr_f16_to_f32(((const tr_f16 *)raw)[k]);
    case TR_ELEMS:
        break;
    }
    return NAN;
}

TR_HOT void tr_elem_to_f32(tr_elem e, const void *raw, size_t count, float *out)
{
    switch (e) {
    case TR_ELEM_F32:
        memcpy(out, raw, count * sizeof(float));
        break;
#define X(elem, type)                                                                              \
    case elem:                                                                                     \
        for (size_t k = 0; k < count; k++) out[k] = (float)((const type *)raw)[k];                 \
        break;
        X(TR_ELEM_U8, uint8_t)
        X(TR_ELEM_I8, int8_t)
        X(TR_ELEM_U16, uint16_t)
        X(TR_ELEM_I16, int16_t)
        X(TR_ELEM_U32, uint32_t)
        X(TR_ELEM_I32, int32_t)
        X(TR_ELEM_U64, uint64_t)
        X(TR_ELEM_I64, int64_t)
        X(TR_ELEM_F64, double)
#undef X
    case TR_ELEM_F16:
        for (size_t k = 0; k < count; k++) out[k] = tr_f16_to_f32(((const tr_f16 *)raw)[k]);
        break;
    case TR_ELEMS:
        break;
    }
}

bool tr_elem_wide(tr_elem e)
{
    return tr_elem_size(e) >= 4 && e != TR_ELEM_F32;
}

void tr_elem_minus(tr_elem e, const void *raw, size_t count, const double *mean, size_t n,
                   size_t run, float *out)
{
    if (!tr_elem_wide(e)) tr_elem_to_f32(e, raw, count, out);
    for (size_t k = 0, p = 0; k < count; p = p + 1 < n ? p + 1 : 0)
        for (const size_t end = k + run < count ? k + run : count; k < end; k++)
            out[k] = tr_elem_wide(e) ? (float)(tr_elem_value(e, raw, k) - mean[p])
                                     : out[k] - (float)mean[p];
}

TR_HOT void tr_elem_swap(tr_elem e, void *raw, size_t count)
{
    switch (tr_elem_size(e)) {
    case 2:
        for (size_t k = 0; k < count; k++)
            ((uint16_t *)raw)[k] = __builtin_bswap16(((uint16_t *)raw)[k]);
        break;
    case 4:
        for (size_t k = 0; k < count; k++)
            ((uint32_t *)raw)[k] = __builtin_bswap32(((uint32_t *)raw)[k]);
        break;
    case 8:
        for (size_t k = 0; k < count; k++)
            ((uint64_t *)raw)[k] = __builtin_bswap64(((uint64_t *)raw)[k]);
        break;
    default:
        break;
    }
}

TR_HOT static void scale_u8(const uint8_t *restrict in, size_t count, float mean, float std,
                            float *restrict out)
{
    for (size_t k = 0; k < count; k++) out[k] = ((float)in[k] - mean) / std;
}

/* in == out is allowed */
TR_HOT static void scale_f32(const float *in, size_t count, float mean, float std, float *out)
{
    if (mean == 0.0f && std == 1.0f) {
        if (in != out) memcpy(out, in, count * sizeof(float));
        return;
    }
    for (size_t k = 0; k < count; k++) out[k] = (in[k] - mean) / std;
}

TR_HOT static void scale_u8_bf16(const uint8_t *restrict in, size_t count, float mean, float std,
                                 tr_bf16 *restrict out)
{
    for (size_t k = 0; k < count; k++) out[k] = tr_f32_to_bf16(((float)in[k] - mean) / std);
}

TR_HOT static void scale_f32_bf16(const float *restrict in, size_t count, float mean, float std,
                                  tr_bf16 *restrict out)
{
    for (size_t k = 0; k < count; k++) out[k] = tr_f32_to_bf16((in[k] - mean) / std);
}

TR_HOT void tr_round_bf16(const float *restrict in, size_t count, tr_bf16 *restrict out)
{
    for (size_t k = 0; k < count; k++) out[k] = tr_f32_to_bf16(in[k]);
}

TR_HOT void tr_round_f16(const float *restrict in, size_t count, tr_f16 *restrict out)
{
    for (size_t k = 0; k < count; k++) out[k] = tr_f32_to_f16(in[k]);
}

void tr_round_to(tr_dtype type, const float *in, size_t count, void *out)
{
    if (type == TR_BF16)
        tr_round_bf16(in, count, out);
    else
        tr_round_f16(in, count, out);
}

/* of other types than these two; in double where float32 does not hold the type's values */
static void shift(tr_elem e, const void *raw, size_t count, double mean, float *out)
{
    if (mean == 0)
        tr_elem_to_f32(e, raw, count, out);
    else
        tr_elem_minus(e, raw, count, &mean, 1, count, out);
}

void tr_normalize_f32(tr_elem e, const void *raw, size_t count, double mean, float std, float *out)
{
    switch (e) {
    case TR_ELEM_U8:
        scale_u8(raw, count, (float)mean, std, out);
        break;
    case TR_ELEM_F32:
        scale_f32(raw, count, (float)mean, std, out);
        break;
    default:
        shift(e, raw, count, mean, out);
        scale_f32(out, count, 0, std, out);
    }
}

void tr_normalize_bf16(tr_elem e, const void *raw, size_t count, double mean, float std,
                       float *scratch, tr_bf16 *out)
{
    bool same = mean == 0 && std == 1.0f;
    switch (e) {
    case TR_ELEM_U8:
        scale_u8_bf16(raw, count, (float)mean, std, out);
        break;
    case TR_ELEM_F32:
        if (same)
            tr_round_bf16(raw, count, out);
        else
            scale_f32_bf16(raw, count, (float)mean, std, out);
        break;
    default:
        shift(e, raw, count, mean, scratch);
        scale_f32_bf16(scratch, count, 0, std, out);
    }
}
