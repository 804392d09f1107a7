/* Attention as other exporters write it: products of queries and keys, scaled, masked, through a
 * softmax, times values. Where heads stand and how they come out of features is what views say;
 * which products they are is seen forwards. Scores are values that only their own steps read; the
 * layer is made by the product with values. */
#include <math.h>
#include <string.h>

#include "optimize/onnx/ops/ops.h"
#include "optimize/onnx/view.h"
#include "runtime/base/numbers.h"

/* Below it a score counts for nothing. */
#define FAR_BELOW (-1e4)

/* Rows of heads: (..., rows, D), the features `from` on of a value, head by head. */
typedef struct {
    const tr_onnx_view *v;
    int64_t from, heads, D, rows;
} heads;

/* Which dimensions are rows and features; the others are batch and heads, once each. */
static bool heads_of(const tr_onnx_reader *r, const tr_onnx_view *v, int rows, int features,
                     heads *h)
{
    if (v->of < 0 || v->ndim < 3 || tr_onnx_shape(r, v->of).ndim != 2 || v->offset[1] != 0 ||
        v->count[features] > 1 || !tr_onnx_view_is_axis(r, v, rows, 1))
        return false;
    const tr_onnx_atom *last = tr_onnx_view_atoms(v, features);
    *h = (heads){.v = v, .from = v->offset[2], .heads = 1, .D = 1};
    h->rows = tr_onnx_view_axis(r, v, 1);
    if (v->count[features] && (last->axis != 2 || last->stride != 1)) return false;
    if (v->count[features]) h->D = last->size;
    int batches = 0, parts = 0;
    for (int d = 0; d < v->ndim - 2; d++)
        for (int i = 0; i < v->count[d]; i++) {
            const tr_onnx_atom *a = tr_onnx_view_atoms(v, d) + i;
            if (a->axis == 1 || (a->axis == 2 && a->stride != h->D)) return false;
            batches += a->axis == 0;
            parts += a->axis == 2;
            if (a->axis == 2) h->heads = a->size;
        }
    return batches == 1 && parts <= 1;
}

/* The dimensions before the last two, of heads as they are and of scores, and back. */
static bool put_leading(tr_onnx_view *to, const tr_onnx_view *from, int axis, int64_t stride)
{
    to->ndim = from->ndim - 2;
    to->natoms = (int)(tr_onnx_view_atoms(from, to->ndim) - from->atoms);
    memcpy(to->atoms, from->atoms, sizeof to->atoms);
    memcpy(to->count, from->count, sizeof to->count);
    for (int i = 0; i < to->natoms; i++)
        if (to->atoms[i].axis) to->atoms[i] = (tr_onnx_atom){axis, stride, to->atoms[i].size};
    return true;
}

/* ---- The layer ------------------------------------------------------------------------------- */

/* Whole values, or three parts of one, one behind the other. False: refused. */
static bool inputs_of(tr_onnx_reader *r, const tr_onnx_step *s, const tr_onnx_scores *c,
                      const heads *v, int in[3], int *n)
{
    const int64_t q = c->heads * c->D, kv = v->heads * v->D;
    const int of[3] = {c->q, c->k, v->v->of};
    const int64_t from[3] = {c->q_from, c->k_from, v->from}, size[3] = {q, kv, kv};
    bool whole = true;
    for (int i = 0; i < 3; i++) {
        in[i] = of[i];
        whole = whole && from[i] == 0 && tr_onnx_shape(r, of[i]).dims[1] == size[i];
    }
    *n = whole ? 3 : 1;
    if (whole || (of[0] == of[1] && of[0] == of[2] && from[0] == 0 && from[1] == q &&
                  from[2] == q + kv && tr_onnx_shape(r, of[0]).dims[1] == q + 2 * kv))
        return true;
    tr_onnx_refuse(r, s,
                   "an attention whose queries, keys and values are neither whole values nor three "
                   "parts of one, one behind the other");
    return false;
}

static bool make_attention(tr_onnx_reader *r, const tr_onnx_step *s, const tr_onnx_scores *c,
                           const heads *v, int *value)
{
    char scale[32] = "0", text[32];
    int in[3], n;
    if (!inputs_of(r, s, c, v, in, &n)) return false;
    const double usual = 1 / sqrt((double)c->D); /* it may be a product of roots in float32 */
    if (fabs(c->scale - usual) > 1e-6 * usual)
        snprintf(scale, sizeof scale, "%s", tr_format_real(tr_onnx_short(c->scale), text));
    if (strcmp(s->type, "Attention") != 0) tr_onnx_count(r, "attention");
    return tr_onnx_make(r, s, "attention", -1, n, in, value,
                        "{heads: %lld, kv_heads: %lld, causal: %s, scale: %s}", (long long)c->heads,
                        (long long)v->heads, c->causal ? "true" : "false", scale);
}

/* ---- Scores ---------------------------------------------------------------------------------- */

static void read_scores(tr_onnx_reader *r, const tr_onnx_step *s, const tr_onnx_view *a,
                        const tr_onnx_view *b)
{
    const int n = a->ndim;
    heads q, k;
    if (n != b->ndim || n < 3 || !heads_of(r, a, n - 2, n - 1, &q) ||
        !heads_of(r, b, n - 1, n - 2, &k) || q.D != k.D || !tr_onnx_view_same(a, b, n - 2)) {
        tr_onnx_refuse(r, s,
                       "a product of two values is a layer only as queries (batch, heads, rows, "
                       "width) by keys (batch, heads, width, rows) of an attention, heads side by "
                       "side in the features of all rows");
        return;
    }
    tr_onnx_scores *c = tr_pool_get(&r->pool, 1, sizeof *c);
    const tr_onnx_view of_scores = {.of = -1, .scores = c, .scale = 1};
    tr_onnx_view *v = tr_onnx_view_new(r, &of_scores);
    if (!c || !v) return;
    *c = (tr_onnx_scores){.q = a->of,
                          .k = b->of,
                          .q_from = q.from,
                          .k_from = k.from,
                          .heads = q.heads,
                          .D = q.D,
                          .queries = q.rows,
                          .keys = k.rows,
                          .scale = a->scale * b->scale};
    put_leading(v, a, 1, 1);
    if (tr_onnx_view_add(v, 2, 1, c->queries) && tr_onnx_view_add(v, 3, 1, c->keys))
        tr_onnx_view_give(r, s, 0, v);
}

/* Whether the last two dimensions are queries and keys. */
static bool are_rows(const tr_onnx_reader *r, const tr_onnx_view *v)
{
    return v->ndim >= 2 && tr_onnx_view_is_axis(r, v, v->ndim - 2, 2) &&
           tr_onnx_view_is_axis(r, v, v->ndim - 1, 3);
}

static tr_onnx_scores *changed(tr_onnx_reader *r, tr_onnx_view *v)
{
    tr_onnx_scores *c = tr_pool_get(&r->pool, 1, sizeof *c);
    if (!c) return NULL;
    *c = *v->scores;
    c->scale *= v->scale;
    v->scale = 1;
    v->scores = c;
    return c;
}

/* Sums of scores and a constant for queries and keys: 0, or far below where a key comes after the
 * query. `where`: of choices, `hides` says which are far below. False: another one. */
static bool is_mask(const tr_onnx_const *m, const tr_onnx_scores *c, int ndim, bool chooses,
                    bool hides, bool *causal)
{
    const size_t n = (size_t)(c->queries * c->keys);
    int64_t after = 0, hidden = 0;
    if (!m || (chooses ? !m->i : !m->f) || m->ndim < 2 || m->ndim > ndim || m->count != n ||
        m->dims[m->ndim - 1] != c->keys || m->dims[m->ndim - 2] != c->queries)
        return false;
    for (int64_t q = 0; q < c->queries; q++)
        for (int64_t k = 0; k < c->keys; k++) {
            const size_t at = (size_t)(q * c->keys + k);
            const bool hide = chooses ? (m->i[at] != 0) == hides : (double)m->f[at] <= FAR_BELOW;
            if (!chooses && !hide && m->f[at] != 0) return false;
            if (hide && k <= q) return false;
            after += k > q;
            hidden += hide;
        }
    *causal = hidden > 0;
    return hidden == 0 || hidden == after;
}

static void read_masked(tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v,
                        const tr_onnx_const *m, bool chooses, bool hides)
{
    bool causal;
    tr_onnx_scores *c = changed(r, v);
    if (!c) return;
    if (c->probable || c->masked || !are_rows(r, v) ||
        !is_mask(m, c, v->ndim, chooses, hides, &causal)) {
        tr_onnx_refuse(r, s,
                       "a mask of attention scores is read only once, before the softmax, as a "
                       "constant (queries, keys) that hides the keys after each query (by -10000 "
                       "or less) and no other");
        return;
    }
    c->masked = true;
    c->causal = causal;
    tr_onnx_view_give(r, s, 0, v);
}

static void read_softmax(tr_onnx_reader *r, const tr_onnx_step *s, tr_onnx_view *v)
{
    int64_t axis = tr_onnx_get_int(s, "axis", r->opset < 13 ? 1 : -1);
    const bool scaled = v->scale != 1 && v->scores->masked; /* with its mask */
    tr_onnx_scores *c = changed(r, v);
    if (axis < 0) axis += v->ndim;
    if (!c) return;
    if (c->probable || scaled || axis != v->ndim - 1 ||
        !tr_onnx_view_is_axis(r, v, v->ndim - 1, 3)) {
        tr_onnx_refuse(r, s,
                       "of attention scores only a softmax over keys, the last dimension, after a "
                       "scale and then a mask");
        return;
    }
    c->probable = true;
    tr_onnx_view_give(r, s, 0, v);
}

/* Probabilities times values: the layer, whose heads stand as the scores do. */
static void read_sums(tr_onnx_reader *r, const tr_onnx_step *s, const tr_onnx_view *p,
                      const tr_onnx_view *b)
{
    const tr_onnx_scores *c = p->scores;
    const int n = p->ndim;
    tr_onnx_view leading = {.of = -1};
    heads v;
    int value;
    bool good = c->probable && p->scale == 1 && n >= 3 && n == b->ndim && are_rows(r, p) &&
                b->scale == 1 && heads_of(r, b, n - 2, n - 1, &v) && v.heads == c->heads &&
                v.D == c->D && v.rows == c->keys && put_leading(&leading, p, 2, v.D) &&
                tr_onnx_view_same(&leading, b, n - 2);
    if (!good) {
        tr_onnx_refuse(r, s,
                       "of attention scores only a softmax times values (batch, heads, rows, "
                       "width), with heads as those of queries and keys, is a layer");
        return;
    }
    if (!make_attention(r, s, c, &v, &value)) return;
    const tr_onnx_view made = {.of = value, .scale = 1};
    tr_onnx_view *y = tr_onnx_view_new(r, &made);
    if (!y) return;
    put_leading(y, b, 2, c->D);
    if (tr_onnx_view_add(y, 1, 1, c->queries) && tr_onnx_view_add(y, 2, 1, c->D))
        tr_onnx_view_give(r, s, 0, y);
}

/* ---- Attention, the operator ----------------------------------------------------------------- */

/* An operand as (batch, heads, rows, width), which rows of features (batch, rows, heads * width)
 * are made. */
static bool operand_heads(tr_onnx_reader *r, const tr_onnx_step *s, int i, const char *count,
                          heads *h)
{
    tr_onnx_view *v = i < s->nin ? tr_onnx_view_of(r, s->in[i]) : NULL;
    const int64_t n = tr_onnx_get_int(s, count, 0), to_heads[] = {0, 2, 1, 3};
    if (!v || v->scores) return false;
    if (v->ndim == 3) {
        const int64_t width = tr_onnx_view_dim(v, 2);
        if (n < 1 || width < 1 || width % n != 0) return false;
        const int64_t dims[] = {0, 0, n, width / n};
        if (!tr_onnx_view_reshape(v, 4, dims, false) || !tr_onnx_view_transpose(v, 4, to_heads))
            return false;
    }
    return v->ndim == 4 && v->scale == 1 && tr_onnx_view_is_axis(r, v, 0, 0) &&
           heads_of(r, v, 2, 3, h) && (n == 0 || n == h->heads);
}

static const char *other_attention(const tr_onnx_step *s)
{
    static const char *const inputs[] = {"attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};
    for (int i = 3; i < s->nin; i++)
        if (s->in[i] >= 0) return i - 3 < (int)TR_COUNT(inputs) ? inputs[i - 3] : "more operands";
    if (tr_onnx_get_real(s, "softcap", 0) != 0) return "softcap";
    return NULL;
}

static void read_attention(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const char *other = other_attention(s);
    heads h[3];
    int value;
    if (other) {
        tr_onnx_refuse(r, s, "%s: only queries, keys and values without it are a layer", other);
        return;
    }
    if (!operand_heads(r, s, 0, "q_num_heads", &h[0]) ||
        !operand_heads(r, s, 1, "kv_num_heads", &h[1]) ||
        !operand_heads(r, s, 2, "kv_num_heads", &h[2]) || h[0].D != h[1].D || h[1].D != h[2].D ||
        h[1].heads != h[2].heads || h[0].heads % h[1].heads != 0 || h[1].rows != h[2].rows) {
        tr_onnx_refuse(
            r, s,
            "expected queries, keys and values of one width, (batch, heads, rows, width) "
            "or (batch, rows, features) with q_num_heads and kv_num_heads");
        return;
    }
    const double scale = tr_onnx_get_real(s, "scale", 1 / sqrt((double)h[0].D));
    if (!(scale > 0 && scale < 1e30)) {
        tr_onnx_refuse(r, s, "scale %g: expected a number above 0", scale);
        return;
    }
    const tr_onnx_scores c = {.q = h[0].v->of,
                              .k = h[1].v->of,
                              .q_from = h[0].from,
                              .k_from = h[1].from,
                              .heads = h[0].heads,
                              .D = h[0].D,
                              .scale = scale,
                              .causal = tr_onnx_get_int(s, "is_causal", 0) != 0};
    if (!make_attention(r, s, &c, &h[2], &value)) return;
    tr_onnx_view *y = tr_onnx_view_of(r, s->in[0]);
    const bool rows = y && y->ndim == 3;
    const tr_onnx_view made = {.of = value, .scale = 1};
    y = tr_onnx_view_new(r, &made);
    if (rows)
        tr_onnx_give(r, s, value);
    else if (y && tr_onnx_view_add(y, 0, 1, 1) && tr_onnx_view_add(y, 2, c.D, c.heads) &&
             tr_onnx_view_add(y, 1, 1, h[0].rows) && tr_onnx_view_add(y, 2, 1, c.D))
        tr_onnx_view_give(r, s, 0, y);
}

/* ---- Which step it is ------------------------------------------------------------------------ */

static const tr_onnx_view *scores_in(const tr_onnx_reader *r, const tr_onnx_step *s, int i)
{
    const tr_onnx_view *v = i < s->nin && s->in[i] >= 0 ? r->values[s->in[i]].view : NULL;
    return v && v->scores ? v : NULL;
}

static bool multiplies(tr_onnx_reader *r, const tr_onnx_step *s)
{
    tr_onnx_view *a, *b;
    if (s->nin != 2 || tr_onnx_const_in(r, s, 0) || tr_onnx_const_in(r, s, 1)) return false;
    a = tr_onnx_view_of(r, s->in[0]);
    b = tr_onnx_view_of(r, s->in[1]);
    if (!a || !b) return false;
    if (a->scores)
        read_sums(r, s, a, b);
    else
        read_scores(r, s, a, b);
    return true;
}

static bool adds(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const int at = scores_in(r, s, 0) ? 0 : 1;
    if (s->nin != 2 || !scores_in(r, s, at)) return false;
    tr_onnx_view *v = tr_onnx_view_of(r, s->in[at]);
    if (v) read_masked(r, s, v, tr_onnx_const_in(r, s, 1 - at), false, false);
    return true;
}

/* Scores, or far below. */
static bool chooses(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const int at = scores_in(r, s, 1) ? 1 : 2;
    double low;
    if (s->nin != 3 || !scores_in(r, s, at)) return false;
    tr_onnx_view *v = tr_onnx_view_of(r, s->in[at]);
    const bool far = tr_onnx_scalar_of(r, s->in[3 - at], &low) && low <= FAR_BELOW;
    if (v) read_masked(r, s, v, far ? tr_onnx_const_in(r, s, 0) : NULL, true, at == 2);
    return true;
}

bool tr_onnx_attends(tr_onnx_reader *r, const tr_onnx_step *s)
{
    if (strcmp(s->type, "MatMul") == 0) return multiplies(r, s);
    if (strcmp(s->type, "Add") == 0) return adds(r, s);
    if (strcmp(s->type, "Where") == 0) return chooses(r, s);
    if (strcmp(s->type, "Attention") == 0) {
        read_attention(r, s);
        return true;
    }
    if (strcmp(s->type, "Softmax") != 0 || !scores_in(r, s, 0)) return false;
    tr_onnx_view *v = tr_onnx_view_of(r, s->in[0]);
    if (v) read_softmax(r, s, v);
    return true;
}
