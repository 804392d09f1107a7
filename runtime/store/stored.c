/* A row's values in the type that its file keeps: only what comes back bit for bit is written. */
#include "runtime/store/internal.h"

#include <math.h>
#include <string.h>

float tr_stored_value(tr_dtype type, const void *bytes, size_t i)
{
    if (type == TR_BF16) return tr_bf16_to_f32(((const tr_bf16 *)bytes)[i]);
    if (type == TR_F16) return tr_f16_to_f32(((const tr_f16 *)bytes)[i]);
    return ((const int8_t *)bytes)[i];
}

static void put(tr_dtype type, void *bytes, size_t i, float v)
{
    if (type == TR_BF16)
        ((tr_bf16 *)bytes)[i] = tr_f32_to_bf16(v);
    else if (type == TR_F16)
        ((tr_f16 *)bytes)[i] = tr_f32_to_f16(v);
    else
        ((int8_t *)bytes)[i] = (int8_t)(fabsf(rintf(v)) <= 127 ? rintf(v) : 0); /* else missed */
}

/* Elements that share a scale. */
static size_t span(const tr_param *p)
{
    return p->dims[0] > 0 ? p->count / (size_t)p->dims[0] : 1;
}

void tr_stored_unpack(const tr_param *p, const void *bytes, const float *scale, float *values)
{
    const size_t n = span(p);
    for (size_t i = 0; i < p->count; i++)
        values[i] = tr_stored_value(p->stored, bytes, i) * (scale ? scale[i / n] : 1.0f);
}

tr_status tr_stored_pack(const char *path, const tr_param *p, const float *values,
                         const float *scale, void **out)
{
    tr_status st = TR_OK;
    const size_t n = span(p);
    void *bytes = tr_alloc(TR_MEM_OTHER, p->count, tr_dtype_size(p->stored));
    TR_HAVE(bytes);
    for (size_t i = 0; i < p->count; i++) {
        const float s = scale ? scale[i / n] : 1.0f;
        TR_NEED(s > 0 && isfinite(s), TR_FILE, "%s: %s/%s: %g is no scale of int8 values", path,
                p->layer, TR_SCALE_STATE, (double)s);
        put(p->stored, bytes, i, values[i] / s);
        const float back = tr_stored_value(p->stored, bytes, i) * s;
        TR_NEED(memcmp(&back, &values[i], sizeof back) == 0, TR_FILE,
                "%s: %s/%s: element %zu is %.9g, which %s does not hold%s", path, p->layer, p->name,
                i, (double)values[i], tr_dtype_name(p->stored),
                scale ? " with the scale of its channel" : "");
    }
    *out = bytes;
    bytes = NULL;
out:
    tr_free(bytes);
    return st;
}
