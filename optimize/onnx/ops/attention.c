/* attention, in parts. Heads stand as (batch, kv_heads, heads of queries that share one, positions,
 * D), so that products broadcast over those that share keys. Which keys a query sees is computed in
 * the graph from the positions, which runtimes do once where there are no lengths and all sequences
 * are as long; what it does not see gets a score far below any other and, for rows that see
 * nothing, a probability of 0. */
#include "optimize/onnx/ops/ops.h"

#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"

/* (batch, positions, kv_heads, group, D) to heads first, with keys as columns, and back. */
static const int64_t to_heads[] = {0, 2, 3, 1, 4}, to_keys[] = {0, 2, 3, 4, 1},
                     to_rows[] = {0, 3, 1, 2, 4};

typedef struct {
    const tr_attention_attrs *a;
    int64_t queries, keys, D, group;
    int along[2]; /* whose number queries, keys are; 0: that of the model */
} shape;

static const char *both(tr_onnx_writer *w, const char *what, const char *a, const char *b)
{
    return a ? tr_onnx_chain(w, "And", what, a, b) : b;
}

/* True where a query sees a key; NULL: everywhere. */
static const char *visible(tr_onnx_writer *w, const shape *s, const char *rows, const char *columns,
                           const char *distance, const char *lengths)
{
    const char *seen = NULL;
    if (s->a->causal) seen = tr_onnx_chain(w, "LessOrEqual", "not_later", columns, rows);
    if (s->a->window) {
        const char *near = tr_onnx_chain(w, "Less", "near", distance,
                                         tr_onnx_int64s(w, "window", 1, &s->a->window));
        seen = both(w, "in_window", seen, near);
    }
    if (lengths) {
        const int64_t dims[] = {-1, 1, 1, 1, 1};
        const char *there =
            tr_onnx_chain(w, "Less", "there", columns,
                          tr_onnx_reshaped(w, "lengths", lengths, TR_COUNT(dims), dims, NULL));
        seen = both(w, "seen", seen, there);
    }
    return seen;
}

/* Scores less what ALiBi takes off for the distance. */
static const char *biased(tr_onnx_writer *w, const shape *s, const char *scores,
                          const char *distance)
{
    const int64_t dims[] = {s->a->kv_heads, s->group, 1, 1};
    float *v = tr_pool_get(&w->pool, (size_t)s->a->heads, sizeof *v);
    const char *far;
    if (!v) return scores;
    for (int h = 0; h < s->a->heads; h++)
        v[h] = exp2f(tr_attention_slope_power(h, (int)s->a->heads));
    tr_onnx_int(w, tr_onnx_add(w, "Cast", "far", TR_NAMES(distance), NULL, &far), "to",
                ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT);
    const char *bias =
        tr_onnx_chain(w, "Mul", "bias", far, tr_onnx_floats(w, "slopes", 4, dims, v));
    return tr_onnx_chain(w, "Sub", "biased", scores, bias);
}

static const char *chosen(tr_onnx_writer *w, const char *what, const char *where, const char *x,
                          const char *other)
{
    const char *y;
    tr_onnx_add(w, "Where", what, TR_NAMES(where, x, other), NULL, &y);
    return y;
}

/* Probabilities of (.., queries, keys). */
static const char *probabilities(tr_onnx_writer *w, const shape *s, const char *scores,
                                 const char *lengths)
{
    const bool masks = s->a->causal || s->a->window || lengths;
    const char *rows = NULL, *columns = NULL, *distance = NULL, *seen = NULL, *y;
    if (s->a->causal || s->a->window || s->a->alibi)
        rows = tr_onnx_positions(w, "rows", s->queries, true, s->along[0]);
    if (masks || s->a->alibi)
        columns = tr_onnx_positions(w, "columns", s->keys, false, s->along[1]);
    if (s->a->window || s->a->alibi)
        tr_onnx_add(w, "Abs", "distance",
                    TR_NAMES(tr_onnx_chain(w, "Sub", "offset", rows, columns)), NULL, &distance);
    if (s->a->alibi) scores = biased(w, s, scores, distance);
    if (masks) {
        seen = visible(w, s, rows, columns, distance, lengths);
        scores = chosen(w, "masked", seen, scores, tr_onnx_scalar(w, "far_below", -1e30));
    }
    tr_onnx_int(w, tr_onnx_add(w, "Softmax", "probabilities", TR_NAMES(scores), NULL, &y), "axis",
                -1);
    return masks ? chosen(w, "kept", seen, y, tr_onnx_scalar(w, "nothing", 0)) : y;
}

static void write_attention(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_attention_attrs *a = l->attrs;
    const bool packed = l->nin < 3;
    const int64_t heads = a->heads, kv = a->kv_heads, width = l->output.dims[1], D = width / heads;
    const shape s = {a, l->output.dims[0], l->inputs[packed ? 0 : 1].dims[0],
                     D, heads / kv,        {tr_onnx_along(w, 0), tr_onnx_along(w, packed ? 0 : 1)}};
    const char *q = packed ? tr_onnx_part(w, "q", in[0], 0, width) : in[0];
    const char *k = packed ? tr_onnx_part(w, "k", in[0], width, width + kv * D) : in[1];
    const char *v =
        packed ? tr_onnx_part(w, "v", in[0], width + kv * D, width + 2 * kv * D) : in[2];
    const int64_t rows = s.along[0] ? 0 : s.queries,
                  of_kv[] = {0, s.along[1] ? 0 : s.keys, kv, 1, D};
    const int64_t of_q[] = {0, rows, kv, s.group, D}, of_y[] = {0, rows, width};
    q = tr_onnx_transposed(w, "queries", tr_onnx_reshaped(w, "q_heads", q, 5, of_q, NULL), 5,
                           to_heads);
    k = tr_onnx_transposed(w, "keys", tr_onnx_reshaped(w, "k_heads", k, 5, of_kv, NULL), 5,
                           to_keys);
    v = tr_onnx_transposed(w, "values", tr_onnx_reshaped(w, "v_heads", v, 5, of_kv, NULL), 5,
                           to_heads);
    const double scale = a->scale > 0 ? a->scale : 1 / sqrt((double)D);
    const char *scores =
        tr_onnx_chain(w, "Mul", "scores", tr_onnx_chain(w, "MatMul", "products", q, k),
                      tr_onnx_scalar(w, "scale", scale));
    const char *p = probabilities(w, &s, scores, l->nin % 2 == 0 ? in[l->nin - 1] : NULL);
    const char *y =
        tr_onnx_transposed(w, "joined", tr_onnx_chain(w, "MatMul", "sums", p, v), 5, to_rows);
    tr_onnx_reshaped(w, "rows_of_heads", y, 3, of_y, out);
}

static const tr_onnx_layer layers[] = {
    {.layer = "attention", .write = write_attention, .fixed = tr_onnx_any_rows, .mixes = true},
    {0}};

/* ---- Reading: what we write ------------------------------------------------------------------ */

typedef struct {
    int q, k, v, lengths; /* values; k, v -1: packed in q; lengths -1: none */
    int64_t heads, kv_heads, D, window, queries, keys;
    bool causal, alibi;
    double scale;
} attention;

/* |row - column| */
static bool is_distance(const tr_onnx_reader *r, int value, const attention *a)
{
    const tr_onnx_step *s = tr_onnx_shared_by(r, value, "Abs");
    s = s ? tr_onnx_shared_by(r, s->in[0], "Sub") : NULL;
    return s && s->nin == 2 && tr_onnx_are_positions(r, s->in[0], a->queries, true) &&
           tr_onnx_are_positions(r, s->in[1], a->keys, false);
}

static bool match_less(const tr_onnx_reader *r, const tr_onnx_step *s, attention *a)
{
    const tr_onnx_const *most = tr_onnx_const_at(r, s->in[1]);
    if (is_distance(r, s->in[0], a)) {
        if (!most || !most->i || most->count != 1 || most->i[0] < 1) return false;
        a->window = most->i[0];
        return true;
    }
    const tr_onnx_step *there = tr_onnx_shared_by(r, s->in[1], "Reshape");
    if (!there || !tr_onnx_are_positions(r, s->in[0], a->keys, false)) return false;
    a->lengths = there->in[0];
    return true;
}

static bool match_seen(const tr_onnx_reader *r, int value, int depth, attention *a)
{
    const tr_onnx_step *s = tr_onnx_shared_by(r, value, "And");
    if (s && s->nin == 2 && depth > 0)
        return match_seen(r, s->in[0], depth - 1, a) && match_seen(r, s->in[1], depth - 1, a);
    s = tr_onnx_shared_by(r, value, "Less");
    if (s && s->nin == 2) return match_less(r, s, a);
    s = tr_onnx_shared_by(r, value, "LessOrEqual");
    a->causal = s && s->nin == 2 && tr_onnx_are_positions(r, s->in[0], a->keys, false) &&
                tr_onnx_are_positions(r, s->in[1], a->queries, true);
    return a->causal;
}

/* scores - distance * slope: the scores; -1: others. */
static int match_biased(const tr_onnx_reader *r, const tr_onnx_step *s, attention *a)
{
    const tr_onnx_step *bias = tr_onnx_made_by(r, s->in[1], "Mul");
    const tr_onnx_step *far =
        bias && bias->nin == 2 ? tr_onnx_made_by(r, bias->in[0], "Cast") : NULL;
    const tr_onnx_const *slopes = bias ? tr_onnx_const_at(r, bias->in[1]) : NULL;
    if (!far || !is_distance(r, far->in[0], a) || !slopes || !slopes->f ||
        slopes->count != (size_t)a->heads)
        return -1;
    for (int h = 0; h < a->heads; h++) {
        const double slope = exp2((double)tr_attention_slope_power(h, (int)a->heads));
        if (fabs((double)slopes->f[h] - slope) > 1e-6 * slope) return -1;
    }
    a->alibi = true;
    return s->in[0];
}

/* From probabilities to the scaled products of queries and keys: their value; -1. */
static int match_probabilities(const tr_onnx_reader *r, int value, attention *a)
{
    const tr_onnx_step *kept = tr_onnx_made_by(r, value, "Where");
    const tr_onnx_step *soft =
        tr_onnx_made_by(r, kept && kept->nin == 3 ? kept->in[1] : value, "Softmax");
    double low = 0, none = 0;
    if (!soft || tr_onnx_get_int(soft, "axis", -1) != -1) return -1;
    int scores = soft->in[0];
    if (kept) {
        const tr_onnx_step *masked = tr_onnx_made_by(r, scores, "Where");
        if (!masked || masked->nin != 3 || masked->in[0] != kept->in[0] ||
            !tr_onnx_scalar_of(r, masked->in[2], &low) || low > -1e29 ||
            !tr_onnx_scalar_of(r, kept->in[2], &none) || none != 0 ||
            !match_seen(r, kept->in[0], 3, a))
            return -1;
        scores = masked->in[1];
    }
    const tr_onnx_step *biased = tr_onnx_made_by(r, scores, "Sub");
    return biased && biased->nin == 2 ? match_biased(r, biased, a) : scores;
}

/* What is taken apart into heads, of these dims, and moved into that order; -1. */
static int match_heads(const tr_onnx_reader *r, int value, const int64_t order[5], int64_t dims[5])
{
    const tr_onnx_step *moved = tr_onnx_made_by(r, value, "Transpose");
    if (!moved || !tr_onnx_is_order(moved, 5, order)) return -1;
    const tr_onnx_step *shaped = tr_onnx_made_by(r, moved->in[0], "Reshape");
    return shaped && tr_onnx_dims_of(r, shaped, 5, dims) ? shaped->in[0] : -1;
}

/* Three parts of one value, one behind the other: that value. */
static void match_packed(const tr_onnx_reader *r, attention *a)
{
    const int64_t kv = a->kv_heads * a->D, q = a->heads * a->D;
    int64_t begin[3], end[3];
    const int from = tr_onnx_part_of(r, a->q, &begin[0], &end[0]);
    if (from < 0 || tr_onnx_part_of(r, a->k, &begin[1], &end[1]) != from ||
        tr_onnx_part_of(r, a->v, &begin[2], &end[2]) != from || begin[0] != 0 || end[0] != q ||
        begin[1] != q || end[1] != q + kv || begin[2] != q + kv || end[2] != q + 2 * kv)
        return;
    a->q = from;
    a->k = a->v = -1;
}

static bool match_all(const tr_onnx_reader *r, const tr_onnx_step *s, attention *a)
{
    const tr_onnx_step *back = tr_onnx_made_by(r, s->in[0], "Transpose");
    const tr_onnx_step *sums = back && tr_onnx_is_order(back, 5, to_rows)
                                   ? tr_onnx_made_by(r, back->in[0], "MatMul")
                                   : NULL;
    int64_t of_q[5], of_k[5], of_v[5], rows[3];
    *a = (attention){.lengths = -1};
    if (!sums || !tr_onnx_dims_of(r, s, 3, rows)) return false;
    a->v = match_heads(r, sums->in[1], to_heads, of_v);
    if (a->v < 0) return false;
    a->kv_heads = of_v[2];
    a->keys = of_v[1];
    a->queries = rows[1];
    a->D = of_v[4];
    if (a->kv_heads < 1 || a->D < 1 || rows[2] < 1 || rows[2] % (a->kv_heads * a->D) != 0)
        return false;
    a->heads = rows[2] / a->D;
    const int scaled = match_probabilities(r, sums->in[0], a);
    const tr_onnx_step *scores = tr_onnx_made_by(r, scaled, "Mul");
    if (!scores || scores->nin != 2 || !tr_onnx_scalar_of(r, scores->in[1], &a->scale))
        return false;
    const tr_onnx_step *products = tr_onnx_made_by(r, scores->in[0], "MatMul");
    if (!products) return false;
    a->q = match_heads(r, products->in[0], to_heads, of_q);
    a->k = match_heads(r, products->in[1], to_keys, of_k);
    if (a->q < 0 || a->k < 0 || memcmp(of_k, of_v, sizeof of_k) != 0 || of_v[3] != 1 ||
        of_q[1] != a->queries || of_q[2] != a->kv_heads || of_q[3] * a->kv_heads != a->heads ||
        of_q[4] != a->D || !(a->scale > 0))
        return false;
    match_packed(r, a);
    return true;
}

/* In the order of the layer's inputs. */
static int inputs_of(const attention *a, int in[4])
{
    int n = 0;
    in[n++] = a->q;
    if (a->k >= 0) in[n++] = a->k;
    if (a->k >= 0) in[n++] = a->v;
    if (a->lengths >= 0) in[n++] = a->lengths;
    return n;
}

static bool match(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    attention a;
    if (s->nin != 2 || !match_all(r, s, &a)) return false;
    *n = inputs_of(&a, operands);
    return true;
}

static void read_attention(tr_onnx_reader *r, const tr_onnx_step *s)
{
    attention a;
    int in[4], value;
    char scale[32], text[32];
    if (!match_all(r, s, &a)) return;
    const int n = inputs_of(&a, in);
    for (int i = 0; i < n; i++)
        if (!tr_onnx_operand_at(r, s, in[i], &in[i], NULL)) return;
    const double usual = 1 / sqrt((double)a.D);
    snprintf(scale, sizeof scale, "%s",
             fabs(a.scale - usual) <= 1e-7 * usual ? "0"
                                                   : tr_format_real(tr_onnx_short(a.scale), text));
    if (tr_onnx_make(
            r, s, "attention", -1, n, in, &value,
            "{heads: %lld, kv_heads: %lld, causal: %s, window: %lld, alibi: %s, scale: %s}",
            (long long)a.heads, (long long)a.kv_heads, a.causal ? "true" : "false",
            (long long)a.window, a.alibi ? "true" : "false", scale))
        tr_onnx_give(r, s, value);
}

static const tr_onnx_pattern patterns[] = {{"Reshape", match, read_attention, false}, {0}};

const tr_onnx_family tr_onnx_attentions = {.layers = layers, .patterns = patterns};
