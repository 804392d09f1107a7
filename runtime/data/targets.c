/* Targets: raw elements to class labels (int32) or values (float32), each checked as it passes. An
 * image among them is compared with an activation, so it is laid out like one: channels-last. */
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <math.h>

bool tr_target_is_image(const tr_model *m)
{
    return m->target_layout == TR_LAYOUT_CHANNELS_LAST || (m->rows > 1 && !tr_is_sequence(m));
}

/* A label must be a whole number in [0, classes). Doubles hold every int64 near that range
 * exactly. */
static tr_status to_labels(const tr_dataset *d, const void *raw, uint64_t first, uint64_t n,
                           int32_t *out)
{
    const tr_array *a = d->targets;
    for (uint64_t i = 0; i < n * d->target_count; i++) {
        double v = tr_elem_value(a->elem, raw, (size_t)i);
        const bool ignored = d->ignores && v == (double)d->ignore_index;
        if (!ignored && (!(v >= 0 && v < (double)d->classes) || v != floor(v))) {
            char where[512], at[48] = "";
            tr_array_where(a, first + i / d->target_count, where, sizeof where);
            if (d->target_count > 1)
                snprintf(at, sizeof at, "element %" PRIu64 ": ", i % d->target_count);
            return TR_FAIL(TR_DATA,
                           "%s: %slabel %.10g, expected a whole number from 0 to %" PRId64
                           " (the model has %" PRId64 " %s)",
                           where, at, v, d->classes - 1, d->classes,
                           d->target_count > 1 ? "classes" : "outputs");
        }
        out[i] = (int32_t)v;
    }
    return TR_OK;
}

/* Probabilities of a row's classes add up to 1, but for what float32, and two decimals, make of
 * them. As in the file: an image's classes are its channels, one plane after the other. */
static tr_status check_whole(const tr_dataset *d, uint64_t first, uint64_t n, const float *v)
{
    const size_t C = (size_t)d->classes, rows = d->target_count / C;
    const size_t apart = d->target_channels > 1 ? rows : 1;
    for (uint64_t i = 0; i < n * rows; i++) {
        const float *p = v + i / rows * d->target_count + (apart > 1 ? i % rows : i % rows * C);
        double sum = 0;
        for (size_t k = 0; k < C; k++) sum += (double)p[k * apart];
        if (fabs(sum - 1) <= 1e-2) continue;
        char where[512];
        tr_array_where(d->targets, first + i / rows, where, sizeof where);
        return TR_FAIL(TR_DATA,
                       "%s: probabilities add up to %.10g, expected 1 (the loss's targets are "
                       "probabilities)",
                       where, sum);
    }
    return TR_OK;
}

static tr_status to_values(const tr_dataset *d, const void *raw, uint64_t first, uint64_t n,
                           float *out)
{
    const tr_array *a = d->targets;
    size_t total = (size_t)n * d->target_count;
    tr_elem_to_f32(a->elem, raw, total, out);
    for (size_t k = 0; k < total; k++) {
        if (d->unit ? out[k] >= 0.0f && out[k] <= 1.0f : isfinite(out[k])) continue;
        char where[512];
        tr_array_where(a, first + k / d->target_count, where, sizeof where);
        return TR_FAIL(TR_DATA, "%s: target %.10g, expected %s", where,
                       tr_elem_value(a->elem, raw, k),
                       d->whole  ? "0 to 1 (a probability)"
                       : d->unit ? "0 to 1 (the loss is of logits)"
                                 : "a finite float32");
    }
    if (d->nstats > 0) {
        tr_elem_minus(a->elem, raw, total, d->mean, d->nstats, d->run, out);
        for (size_t k = 0; k < total; k++) out[k] /= d->std[k / d->run % d->nstats];
    }
    return d->whole ? check_whole(d, first, n, out) : TR_OK;
}

tr_status tr_targets_convert(const tr_dataset *d, const void *raw, uint64_t i, uint64_t n,
                             void *out)
{
    return d->labels ? to_labels(d, raw, i, n, out) : to_values(d, raw, i, n, out);
}

tr_status tr_weights_convert(const tr_dataset *d, const void *raw, uint64_t first, uint64_t n,
                             float *out)
{
    const tr_array *a = d->weights;
    tr_elem_to_f32(a->elem, raw, (size_t)n, out);
    for (size_t i = 0; i < n; i++) {
        if (out[i] >= 0.0f && isfinite(out[i])) continue;
        char where[512];
        tr_array_where(a, first + i, where, sizeof where);
        return TR_FAIL(TR_DATA, "%s: weight %.10g, expected a finite float32 of at least 0", where,
                       tr_elem_value(a->elem, raw, i));
    }
    return TR_OK;
}

tr_status tr_targets_prepare(const tr_dataset *d, const void *raw, uint64_t i, float *scratch,
                             void *out)
{
    const size_t C = d->target_channels, area = d->target_count / C;
    if (d->labels || C == 1 || area == 1) return tr_targets_convert(d, raw, i, 1, out);
    tr_status st = to_values(d, raw, i, 1, scratch);
    if (st != TR_OK) return st;
    float *to = out;
    for (size_t p = 0; p < area; p++)
        for (size_t c = 0; c < C; c++) *to++ = scratch[c * area + p];
    return TR_OK;
}
