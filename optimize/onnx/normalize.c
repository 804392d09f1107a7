/* What a graph's first nodes do to its inputs: (x - mean) / std, as data.normalize says it; and its
 * last ones to what it gives: the inverse, as data.normalize_targets. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/onnx/reader.h"
#include "runtime/base/numbers.h"

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

/* As somebody wrote it, so that 0.224 times 255 is 57.12. */
static double place(const float *v, size_t n, size_t i, double otherwise)
{
    return n == 0 ? otherwise : tr_onnx_short((double)v[n == 1 ? 0 : i]);
}

/* ((x - mean) / std) op c is such a thing again: with c > 0 a product has another std, a sum
 * another mean. False: c is none such. */
static bool compose(tr_onnx_reader *r, tr_onnx_stats *t, char op, const tr_onnx_const *c)
{
    const bool scales = op == 'M' || op == 'D';
    size_t n = scales ? t->nstd : t->nmean > t->nstd ? t->nmean : t->nstd;
    if (n < c->count) n = c->count;
    float *v = tr_pool_get(&r->pool, n, sizeof *v);
    for (size_t i = 0; v && i < n; i++) {
        const double by = place(c->f, c->count, i, 1), std = place(t->std, t->nstd, i, 1);
        const double mean = place(t->mean, t->nmean, i, 0);
        const double made = op == 'M'   ? std / by
                            : op == 'D' ? std * by
                            : op == 'S' ? mean + std * by
                                        : mean - std * by;
        if (scales ? !(made > 1e-30 && made < 1e30) : !(fabs(made) < 1e30)) return false;
        v[i] = (float)made;
    }
    if (scales)
        t->std = v, t->nstd = n;
    else
        t->mean = v, t->nmean = n;
    return v != NULL;
}

bool tr_onnx_normalizes(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const int at = s->in[0] >= 0 && r->values[s->in[0]].kind == TR_ONNX_VALUE ? 0 : 1;
    const tr_onnx_value *x = &r->values[s->in[at]];
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 1 - at);
    if (x->kind != TR_ONNX_VALUE || x->input < 0 || s->out[0] < 0) return false;
    if (x->uses != 1) return false; /* data.normalize changes the value for all that read it */
    const tr_shape shape = tr_onnx_shape(r, x->value);
    if (!fits(c, &shape) || (at == 1 && *s->type != 'M' && *s->type != 'A')) return false;
    if (!compose(r, &r->inputs[x->input], *s->type, c)) return false;
    tr_onnx_pass(r, s, at);
    return true;
}

/* ---- What it gives --------------------------------------------------------------------------- */

static bool says_targets(const tr_onnx_reader *r)
{
    for (size_t i = 0; i < r->model->n_metadata_props; i++) {
        const Onnx__StringStringEntryProto *e = r->model->metadata_props[i];
        if (e->key && e->value && strcmp(e->key, "trireme.outputs") == 0)
            return strcmp(e->value, TR_ONNX_TARGETS) == 0;
    }
    return false;
}

/* The constant that the step of this type has, whose other operand nobody else reads. */
static const tr_onnx_const *undone(const tr_onnx_reader *r, int value, const char *type, int *inner)
{
    const tr_onnx_step *s = tr_onnx_made_by(r, value, type);
    if (!s || s->nin != 2 || s->in[0] < 0) return NULL;
    const tr_onnx_const *c = tr_onnx_const_in(r, s, 1);
    *inner = s->in[0];
    return c && c->f && r->values[*inner].kind != TR_ONNX_CONST && r->values[*inner].uses == 1
               ? c
               : NULL;
}

void tr_onnx_denormalizes(tr_onnx_reader *r, int *output)
{
    int scaled, inner;
    if (!says_targets(r)) return;
    const tr_onnx_const *mean = undone(r, *output, "Add", &scaled);
    const tr_onnx_const *std = mean ? undone(r, scaled, "Mul", &inner) : NULL;
    if (!std) return;
    r->targets =
        (tr_onnx_stats){.mean = mean->f, .std = std->f, .nmean = mean->count, .nstd = std->count};
    r->values[*output].needed = false;
    r->values[inner].needed = true;
    *output = inner;
}

/* ---- As texts -------------------------------------------------------------------------------- */

static void write_numbers(FILE *to, const char *key, const float *v, size_t n)
{
    char number[32];
    fprintf(to, "%s: [", key);
    for (size_t i = 0; i < n; i++)
        fprintf(to, "%s%s", i ? ", " : "", tr_format_real(tr_onnx_short((double)v[i]), number));
    fputs("]", to);
}

/* {mean: [0.5], std: [0.25]} */
static void write_stats(FILE *to, const tr_onnx_stats *t)
{
    fputs("{", to);
    if (t->nmean) write_numbers(to, "mean", t->mean, t->nmean);
    if (t->nmean && t->nstd) fputs(", ", to);
    if (t->nstd) write_numbers(to, "std", t->std, t->nstd);
    fputs("}", to);
}

static bool is_said(const tr_onnx_stats *t)
{
    return t->nmean || t->nstd;
}

tr_status tr_onnx_normalize_text(const tr_onnx_reader *r, char **inputs, char **targets)
{
    tr_status st = TR_OK;
    char *text[2] = {NULL, NULL};
    size_t size, n = 0;
    FILE *f = open_memstream(&text[0], &size);
    TR_NEED(f, TR_MEMORY, "%s: out of memory", r->path);
    for (size_t i = 0; i < TR_MAX_IN; i++) {
        if (!is_said(&r->inputs[i])) continue;
        fprintf(f, "%s%s: ", n++ ? ", " : "{", r->inputs[i].name);
        write_stats(f, &r->inputs[i]);
    }
    if (n) fputs("}", f);
    TR_NEED(fclose(f) == 0, TR_MEMORY, "%s: out of memory", r->path);
    if (n) TR_HAVE(*inputs = tr_strdup(text[0]));
    if (!is_said(&r->targets)) goto out;
    TR_NEED(f = open_memstream(&text[1], &size), TR_MEMORY, "%s: out of memory", r->path);
    write_stats(f, &r->targets);
    TR_NEED(fclose(f) == 0, TR_MEMORY, "%s: out of memory", r->path);
    TR_HAVE(*targets = tr_strdup(text[1]));
out:
    free(text[0]);
    free(text[1]);
    return st;
}
