/* What a graph's first nodes do to its inputs: (x - mean) / std, as data.normalize says it. */
#include <stdlib.h>
#include <string.h>

#include "optimize/onnx/reader.h"

/* One number, or one a channel of an image, a feature of anything else. */
static bool fits(const tr_onnx_const *c, const tr_shape *x)
{
    if (!c || !c->f) return false;
    if (c->count == 1) return c->ndim <= x->ndim + 1;
    const bool image = x->layout == TR_LAYOUT_CHANNELS_LAST;
    const int along = c->ndim - (image ? 3 : 1);
    const int64_t n = x->dims[image ? 0 : x->ndim - 1];
    return along >= 0 && c->dims[along] == n && c->count == (size_t)n;
}

static float *copied(tr_onnx_reader *r, const tr_onnx_const *c, bool inverse)
{
    float *v = tr_pool_get(&r->pool, c->count, sizeof *v);
    for (size_t i = 0; v && i < c->count; i++) v[i] = inverse ? 1 / c->f[i] : c->f[i];
    return v;
}

static bool are_positive(const tr_onnx_const *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (!(c->f[i] > 1e-30f && c->f[i] < 1e30f)) return false;
    return true;
}

bool tr_onnx_normalizes(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const int at = s->in[0] >= 0 && r->values[s->in[0]].kind == TR_ONNX_VALUE ? 0 : 1;
    const tr_onnx_value *x = &r->values[s->in[at]];
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 1 - at);
    if (x->kind != TR_ONNX_VALUE || x->input < 0 || s->out[0] < 0) return false;
    if (x->uses != 1) return false; /* data.normalize changes the value for all that read it */
    const int input = x->input;
    const tr_shape shape = tr_onnx_shape(r, x->value);
    const bool scales = *s->type == 'D' || *s->type == 'M';
    if (!fits(c, &shape) || (at == 1 && *s->type != 'M')) return false;
    if (scales ? !are_positive(c) || r->inputs[input].nstd
               : *s->type != 'S' || r->inputs[input].nmean || r->inputs[input].nstd)
        return false;
    float *v = copied(r, c, *s->type == 'M');
    if (scales) {
        r->inputs[input].std = v;
        r->inputs[input].nstd = c->count;
    } else {
        r->inputs[input].mean = v;
        r->inputs[input].nmean = c->count;
    }
    tr_onnx_pass(r, s, at);
    return true;
}

static void write_numbers(FILE *to, const char *key, const float *v, size_t n)
{
    char number[32];
    fprintf(to, "%s: [", key);
    for (size_t i = 0; i < n; i++)
        fprintf(to, "%s%s", i ? ", " : "", tr_format_real(tr_onnx_short((double)v[i]), number));
    fputs("]", to);
}

tr_status tr_onnx_normalize_text(const tr_onnx_reader *r, char **out)
{
    tr_status st = TR_OK;
    char *text = NULL;
    size_t size = 0;
    bool any = false;
    FILE *f = open_memstream(&text, &size);
    TR_NEED(f, TR_MEMORY, "%s: out of memory", r->path);
    for (size_t i = 0; i < TR_MAX_IN; i++) {
        const size_t nmean = r->inputs[i].nmean, nstd = r->inputs[i].nstd;
        if (!nmean && !nstd) continue;
        fprintf(f, "%s%s: {", any ? ", " : "{", r->inputs[i].name);
        if (nmean) write_numbers(f, "mean", r->inputs[i].mean, nmean);
        if (nmean && nstd) fputs(", ", f);
        if (nstd) write_numbers(f, "std", r->inputs[i].std, nstd);
        fputs("}", f);
        any = true;
    }
    if (any) fputs("}", f);
    TR_NEED(fclose(f) == 0, TR_MEMORY, "%s: out of memory", r->path);
    if (any) TR_HAVE(*out = tr_strdup(text));
out:
    free(text);
    return st;
}
