/* Moving y = scale * x + shift into the layers before a value or behind it. Each way is walked
 * twice: first only asking, then changing. Layers between are left as they are where scale, or
 * scale and shift, may be taken out of them (tr_layer_commutes).
 *
 *     into its makers:   W' = scale W (rows),
 *                        b' = scale b + shift; of W in 8 bits the scales are multiplied
 *     into its readers:  W' = W scale (columns), b' = b + W shift; no zero padding, or shift = 0 */
#include "optimize/passes/rewrite.h"

#include <string.h>

tr_status tr_affine_open(int64_t count, tr_affine *out)
{
    tr_status st = TR_OK;
    *out = (tr_affine){.count = count};
    out->scale = tr_alloc(TR_MEM_OTHER, (size_t)count, sizeof(double));
    out->shift = tr_alloc(TR_MEM_OTHER, (size_t)count, sizeof(double));
    TR_HAVE(out->scale && out->shift);
    for (int64_t i = 0; i < count; i++) out->scale[i] = 1;
out:
    if (st != TR_OK) tr_affine_close(out);
    return st;
}

void tr_affine_close(tr_affine *a)
{
    tr_free(a->scale);
    tr_free(a->shift);
    *a = (tr_affine){0};
}

tr_status tr_affine_of(tr_rewrite *rw, const tr_layer *l, tr_affine *out)
{
    tr_status st = TR_OK;
    const double *w = NULL, *b = NULL;
    *out = (tr_affine){0};
    if (l->nparams > 0) TR_HAVE((w = tr_rewrite_row(rw, l, 0)) && (b = tr_rewrite_row(rw, l, 1)));
    TR_TRY(tr_affine_open(tr_shape_channels(&l->output), out));
    for (int64_t c = 0; c < out->count; c++) {
        tr_rewrite_affine(rw, l, c, &out->scale[c], &out->shift[c]);
        if (!w) continue;
        out->scale[c] *= w[c];
        out->shift[c] = out->shift[c] * w[c] + b[c];
    }
out:
    return st;
}

static bool shifts(const tr_affine *a)
{
    for (int64_t c = 0; c < a->count; c++)
        if (a->shift[c] != 0) return true;
    return false;
}

static bool passes(const tr_layer *l, const tr_affine *a)
{
    const unsigned may = tr_layer_commutes(l);
    bool positive = true, one = true;
    for (int64_t c = 0; c < a->count; c++) {
        positive = positive && a->scale[c] > 0;
        one = one && a->scale[c] == 1;
    }
    return (one || may & TR_COMMUTES_SCALE || (positive && may & TR_COMMUTES_POSITIVE)) &&
           (!shifts(a) || may & TR_COMMUTES_SHIFT);
}

/* ---- Into what makes a value ----------------------------------------------------------------- */

static tr_status into_product(tr_rewrite *rw, const tr_layer *l, const tr_affine *a)
{
    tr_status st = TR_OK;
    const bool steps = tr_rewrite_owns_steps(rw, l);
    double *w = steps ? tr_rewrite_factor(rw, l) : tr_rewrite_row(rw, l, 0), *b = NULL;
    TR_HAVE(w);
    if (tr_rewrite_has_bias(rw, l) || shifts(a)) TR_HAVE(b = tr_rewrite_bias(rw, l));
    const size_t each = steps ? 1 : tr_rewrite_edit(rw, l)->count[0] / (size_t)a->count;
    for (int64_t o = 0; o < a->count; o++) {
        for (size_t i = 0; i < each; i++) w[(size_t)o * each + i] *= a->scale[o];
        if (b) b[o] = b[o] * a->scale[o] + a->shift[o];
    }
out:
    return st;
}

/* It has parameters that can take it. */
static bool can_take(const tr_rewrite *rw, const tr_layer *l)
{
    return l->nparams > 0 && tr_rewrite_owns(rw, l);
}

static tr_status into_affine(tr_rewrite *rw, const tr_layer *l, const tr_affine *a)
{
    double *w = tr_rewrite_row(rw, l, 0), *b = tr_rewrite_row(rw, l, 1);
    if (!w || !b) return tr_last_status();
    for (int64_t c = 0; c < a->count; c++) {
        w[c] *= a->scale[c];
        b[c] = b[c] * a->scale[c] + a->shift[c];
    }
    return TR_OK;
}

static tr_status into_makers(tr_rewrite *rw, int value, const tr_affine *a, bool change, bool *can);

/* Each of several inputs its part: of a sum, the first one gets the shift; joined, its channels. */
static tr_status into_inputs(tr_rewrite *rw, const tr_layer *l, const tr_affine *a, bool change,
                             bool *can)
{
    const tr_edit *e = tr_rewrite_edit(rw, l);
    const bool joined = tr_layer_channels(l) == TR_CHANNELS_JOINED;
    int64_t at = 0;
    tr_status st = TR_OK;
    *can = true;
    for (int k = 0; k < e->nin && *can && st == TR_OK; k++) {
        tr_affine part;
        TR_TRY(tr_affine_open(tr_shape_channels(&l->inputs[k]), &part));
        for (int64_t c = 0; c < part.count; c++) {
            part.scale[c] = a->scale[at + c];
            part.shift[c] = k && tr_layer_sums(l) ? 0 : a->shift[at + c];
        }
        if (joined) at += part.count;
        st = into_makers(rw, tr_rewrite_input(rw, l, k), &part, change, can);
        tr_affine_close(&part);
    }
out:
    return st;
}

/* Several channels of the output are one of the input: what they get must be the same. */
static tr_status into_spread(tr_rewrite *rw, const tr_layer *l, const tr_affine *a, bool change,
                             bool *can)
{
    tr_affine part;
    tr_status st = TR_OK;
    TR_TRY(tr_affine_open(tr_shape_channels(&l->inputs[0]), &part));
    *can = true;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t c = 0; c < a->count; c++) {
            const int64_t from = tr_layer_source_channel(l, c);
            if (pass == 0)
                part.scale[from] = a->scale[c], part.shift[from] = a->shift[c];
            else
                *can = *can && part.scale[from] == a->scale[c] && part.shift[from] == a->shift[c];
        }
    if (*can) st = into_makers(rw, tr_rewrite_input(rw, l, 0), &part, change, can);
    tr_affine_close(&part);
out:
    return st;
}

static tr_status into_makers(tr_rewrite *rw, int value, const tr_affine *a, bool change, bool *can)
{
    const tr_layer *l = tr_rewrite_maker(rw, value);
    *can = false;
    if (!l || tr_rewrite_edit(rw, l)->uses > 1) return TR_OK;
    if (tr_layer_product(l, NULL) || tr_layer_is_affine(l)) {
        *can = can_take(rw, l) || tr_rewrite_owns_steps(rw, l);
        if (!*can || !change) return TR_OK;
        return tr_layer_is_affine(l) ? into_affine(rw, l, a) : into_product(rw, l, a);
    }
    if (tr_layer_channels(l) == TR_CHANNELS_SPREAD) return into_spread(rw, l, a, change, can);
    if (tr_layer_sums(l) || passes(l, a)) return into_inputs(rw, l, a, change, can);
    return TR_OK;
}

tr_status tr_affine_into_makers(tr_rewrite *rw, int value, const tr_affine *a, bool *done)
{
    const tr_status st = into_makers(rw, value, a, false, done);
    return st == TR_OK && *done ? into_makers(rw, value, a, true, done) : st;
}

/* ---- Into what reads a value ----------------------------------------------------------------- */

static bool pads(const tr_layer *l)
{
    tr_product p;
    return tr_layer_product(l, &p) && tr_product_pads(&p);
}

/* W' = W scale, b' = b + W shift. */
static tr_status before_product(tr_rewrite *rw, const tr_layer *l, const tr_affine *a)
{
    tr_status st = TR_OK;
    tr_product p;
    double *w = tr_rewrite_row(rw, l, 0), *b = NULL;
    TR_HAVE(w);
    if (shifts(a)) TR_HAVE(b = tr_rewrite_bias(rw, l));
    tr_layer_product(l, &p);
    const int64_t out = tr_rewrite_out(rw, l), in = a->count / p.groups;
    const int64_t window = (int64_t)tr_rewrite_edit(rw, l)->count[0] / out / in;
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            const int64_t c = o / (out / p.groups) * in + i;
            double *k = w + (o * in + i) * window, sum = 0;
            for (int64_t j = 0; j < window; j++) {
                sum += k[j];
                k[j] *= a->scale[c];
            }
            if (b) b[o] += sum * a->shift[c];
        }
out:
    return st;
}

/* w (s (S x + T) + t) + b = w S (s x + t) + b + w (s T + t - S t) */
static tr_status before_affine(tr_rewrite *rw, const tr_layer *l, const tr_affine *a)
{
    double *w = tr_rewrite_row(rw, l, 0), *b = tr_rewrite_row(rw, l, 1), s, t;
    if (!w || !b) return tr_last_status();
    for (int64_t c = 0; c < a->count; c++) {
        tr_rewrite_affine(rw, l, c, &s, &t);
        b[c] += w[c] * (s * a->shift[c] + t - a->scale[c] * t);
        w[c] *= a->scale[c];
    }
    return TR_OK;
}

static tr_status into_readers(tr_rewrite *rw, int value, const tr_affine *a, bool change,
                              bool *can);

/* Operand k of `l` is `value`: what its output then is. Other inputs that are joined stay. */
static tr_status behind(tr_rewrite *rw, const tr_layer *l, int value, const tr_affine *a,
                        bool change, bool *can)
{
    const tr_channels how = tr_layer_channels(l);
    tr_affine next;
    int64_t at = 0;
    tr_status st = TR_OK;
    TR_TRY(tr_affine_open(tr_shape_channels(&l->output), &next));
    if (how == TR_CHANNELS_SPREAD)
        for (int64_t c = 0; c < next.count; c++) {
            next.scale[c] = a->scale[tr_layer_source_channel(l, c)];
            next.shift[c] = a->shift[tr_layer_source_channel(l, c)];
        }
    for (int k = 0; how != TR_CHANNELS_SPREAD && k < tr_rewrite_edit(rw, l)->nin; k++) {
        if (tr_rewrite_input(rw, l, k) == value) {
            memcpy(next.scale + at, a->scale, sizeof(double) * (size_t)a->count);
            memcpy(next.shift + at, a->shift, sizeof(double) * (size_t)a->count);
        } else if (how != TR_CHANNELS_JOINED)
            *can = false; /* another input in the same channels */
        if (how == TR_CHANNELS_JOINED) at += tr_shape_channels(&l->inputs[k]);
    }
    if (*can) st = into_readers(rw, tr_rewrite_output(rw, l), &next, change, can);
    tr_affine_close(&next);
out:
    return st;
}

static tr_status into_reader(tr_rewrite *rw, const tr_layer *l, int value, const tr_affine *a,
                             bool change, bool *can)
{
    if (tr_layer_product(l, NULL) || tr_layer_is_affine(l)) {
        *can = can_take(rw, l) ||
               tr_rewrite_note(rw, "\"%s\" has no weights of its own, or stores them in fewer bits",
                               l->name);
        if (*can && pads(l) && shifts(a))
            *can = tr_rewrite_note(rw, "\"%s\" pads with zeros, which a mean would move", l->name);
        if (!*can || !change) return TR_OK;
        return tr_layer_is_affine(l) ? before_affine(rw, l, a) : before_product(rw, l, a);
    }
    *can = passes(l, a) || tr_layer_channels(l) == TR_CHANNELS_SPREAD ||
           tr_rewrite_note(rw, "\"%s\" stands between", l->name);
    return *can ? behind(rw, l, value, a, change, can) : TR_OK;
}

static tr_status into_readers(tr_rewrite *rw, int value, const tr_affine *a, bool change, bool *can)
{
    tr_status st = TR_OK;
    *can = value != tr_rewrite_last(rw) || tr_rewrite_note(rw, "it leads to the output");
    for (size_t i = 0; i < rw->m->nlayers && *can && st == TR_OK; i++) {
        const tr_layer *l = &rw->m->layers[i];
        bool reads = false;
        for (int k = 0; k < rw->edits[i].nin; k++)
            reads = reads || tr_rewrite_input(rw, l, k) == value;
        if (reads && rw->edits[i].stays) st = into_reader(rw, l, value, a, change, can);
    }
    return st;
}

tr_status tr_affine_into_readers(tr_rewrite *rw, int value, const tr_affine *a, bool *done)
{
    const tr_status st = into_readers(rw, value, a, false, done);
    return st == TR_OK && *done ? into_readers(rw, value, a, true, done) : st;
}
