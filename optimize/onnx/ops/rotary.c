/* rotary, in parts: the two values of each pair, times tables of cosines and sines. The base is
 * read back from the table. */
#include "optimize/onnx/ops/ops.h"

#include <math.h>

#include "runtime/base/numbers.h"

static const char *table(tr_onnx_writer *w, const tr_rotary_attrs *a, int64_t rows, bool sines,
                         const float *turn)
{
    const int64_t pairs = a->dim / 2;
    const int64_t dims[] = {rows, 1, pairs, 1};
    float *v = tr_pool_get(&w->pool, (size_t)(rows * pairs), sizeof *v);
    if (!v) return "";
    for (int64_t i = 0; i < rows * pairs; i++)
        v[i] = turn[i / pairs * 2 * pairs + sines * pairs + i % pairs];
    const char *what = sines ? "sines" : "cosines";
    char all[16];
    const int along = tr_onnx_along(w, 0);
    snprintf(all, sizeof all, "%s%s", what, along ? "_all" : "");
    const char *y = tr_onnx_floats(w, all, a->style == TR_ROTARY_HALF ? 3 : 4, dims, v);
    return along ? tr_onnx_cut(w, what, y, along) : y;
}

/* Of pairs, the first and the second values. */
static void turn_pairs(tr_onnx_writer *w, const char *a, const char *b, const char *c,
                       const char *s, const char *to[2])
{
    to[0] = tr_onnx_chain(w, "Sub", "first_turned", tr_onnx_chain(w, "Mul", "first_cos", a, c),
                          tr_onnx_chain(w, "Mul", "second_sin", b, s));
    to[1] = tr_onnx_chain(w, "Add", "second_turned", tr_onnx_chain(w, "Mul", "second_cos", b, c),
                          tr_onnx_chain(w, "Mul", "first_sin", a, s));
}

static const char *joined(tr_onnx_writer *w, const char *what, int n, const char *const *in)
{
    const char *y;
    tr_onnx_int(w, tr_onnx_add(w, "Concat", what, n, in, NULL, &y), "axis", -1);
    return y;
}

static void write_rotary(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                         const char *out)
{
    const tr_rotary_attrs *a = l->attrs;
    const int64_t rows = l->output.dims[0], D = l->output.dims[1] / a->heads, pairs = a->dim / 2;
    const int64_t kept = tr_onnx_along(w, 0) ? 0 : rows;
    const int64_t heads[] = {0, kept, a->heads, D}, whole[] = {0, kept, a->heads * D};
    const int64_t apart[] = {0, kept, a->heads, pairs, 2}, flat[] = {0, kept, a->heads, a->dim};
    float *turn = tr_pool_get(&w->pool, (size_t)(rows * 2 * pairs), sizeof *turn);
    const char *two[2], *parts[2];
    if (!turn) return;
    tr_rotary_table(a, (size_t)rows, turn);
    const char *c = table(w, a, rows, false, turn), *s = table(w, a, rows, true, turn);
    const char *x = tr_onnx_reshaped(w, "heads", in[0], 4, heads, NULL);
    const char *some = a->dim < D ? tr_onnx_part(w, "some", x, 0, a->dim) : x;
    const bool half = a->style == TR_ROTARY_HALF;
    if (!half) some = tr_onnx_reshaped(w, "pairs", some, 5, apart, NULL);
    turn_pairs(w, tr_onnx_part(w, "first", some, 0, half ? pairs : 1),
               tr_onnx_part(w, "second", some, half ? pairs : 1, half ? 2 * pairs : 2), c, s, two);
    parts[0] = joined(w, "turned", 2, two);
    if (!half) parts[0] = tr_onnx_reshaped(w, "turned_flat", parts[0], 4, flat, NULL);
    if (a->dim < D) {
        parts[1] = tr_onnx_part(w, "rest", x, a->dim, D);
        parts[0] = joined(w, "with_rest", 2, parts);
    }
    tr_onnx_reshaped(w, "positions", parts[0], 3, whole, out);
}

static const tr_onnx_layer layers[] = {
    {.layer = "rotary", .write = write_rotary, .fixed = tr_onnx_any_rows}, {0}};

/* ---- Reading: what we write ------------------------------------------------------------------ */

typedef struct {
    int x; /* value */
    tr_rotary_attrs a;
    int64_t rows, D;
} rotary;

/* a * c and b * s, by a step of that type: the values a and b; the tables. */
static bool match_turn(const tr_onnx_reader *r, int value, const char *type, int of[2],
                       const tr_onnx_const *tables[2])
{
    const tr_onnx_step *s = tr_onnx_made_by(r, value, type);
    for (int i = 0; i < 2; i++) {
        const tr_onnx_step *m = s && s->nin == 2 ? tr_onnx_made_by(r, s->in[i], "Mul") : NULL;
        if (!m || m->nin != 2) return false;
        of[i] = m->in[0];
        tables[i] = tr_onnx_const_at(r, m->in[1]);
        if (!tables[i] || !tables[i]->f) return false;
    }
    return true;
}

/* Whether a table of `rows` has these cosines and sines. Half a float's last place of the base's
 * angle, from which it may be known, counts as often as there are rows. */
static bool same_table(const tr_rotary_attrs *a, int64_t rows, const float *cosines,
                       const float *sines)
{
    const int64_t pairs = a->dim / 2, count = rows * pairs;
    const float most = 1e-5f + 6e-8f * (float)rows;
    float *turn = tr_alloc(TR_MEM_OTHER, (size_t)(2 * count), sizeof *turn);
    bool same = turn && a->base >= 1;
    if (same) tr_rotary_table(a, (size_t)rows, turn);
    for (int64_t i = 0; i < count && same; i++) {
        const float *at = turn + i / pairs * 2 * pairs + i % pairs;
        same = fabsf(at[0] - cosines[i]) < most && fabsf(at[pairs] - sines[i]) < most;
    }
    tr_free(turn);
    return same;
}

/* The base whose table has these cosines and sines, an integer first; 0: none has. Where there is
 * one pair alone, any. */
static double base_of(const rotary *y, const tr_onnx_const *cosines, const tr_onnx_const *sines)
{
    const int64_t pairs = y->a.dim / 2, count = y->rows * pairs;
    tr_rotary_attrs a = y->a;
    double raw = 10000;
    if (cosines->count != (size_t)count || sines->count != (size_t)count) return 0;
    if (pairs > 1 && y->rows > 1) {
        const double angle =
            atan2((double)sines->f[2 * pairs - 1], (double)cosines->f[2 * pairs - 1]);
        if (!(angle > 0)) return 0;
        raw = pow(angle, -(double)y->a.dim / (double)(y->a.dim - 2));
    }
    a.base = rint(raw);
    if (fabs(raw - a.base) <= 1e-5 * raw && same_table(&a, y->rows, cosines->f, sines->f))
        return a.base;
    a.base = raw;
    return same_table(&a, y->rows, cosines->f, sines->f) ? raw : 0;
}

/* The value of which these are the first and second values of each pair, taken apart. */
static int match_pairs(const tr_onnx_reader *r, const int of[2], rotary *y)
{
    int64_t begin[2], end[2], dims[5];
    const int from = tr_onnx_part_of(r, of[0], &begin[0], &end[0]);
    if (from < 0 || tr_onnx_part_of(r, of[1], &begin[1], &end[1]) != from || begin[0] != 0 ||
        begin[1] != end[0] || end[1] != 2 * end[0])
        return -1;
    if (y->a.style == TR_ROTARY_HALF) {
        y->a.dim = end[1];
        return from;
    }
    const tr_onnx_step *apart = tr_onnx_shared_by(r, from, "Reshape");
    if (end[0] != 1 || !apart || !tr_onnx_dims_of(r, apart, 5, dims) || dims[4] != 2) return -1;
    y->a.dim = 2 * dims[3];
    return apart->in[0];
}

static bool match_all(const tr_onnx_reader *r, const tr_onnx_step *s, rotary *y)
{
    int64_t begin = 0, end = 0, dims[4];
    int turned = s->in[0], rest = -1, first[2], second[2];
    const tr_onnx_const *c[2], *d[2];
    const tr_onnx_step *cat = tr_onnx_made_by(r, turned, "Concat");
    *y = (rotary){.x = -1};
    if (cat && cat->nin == 2 && tr_onnx_shared_by(r, cat->in[1], "Slice")) {
        rest = tr_onnx_part_of(r, cat->in[1], &begin, &end);
        turned = cat->in[0];
    }
    const tr_onnx_step *flat = tr_onnx_made_by(r, turned, "Reshape");
    if (flat) {
        y->a.style = TR_ROTARY_INTERLEAVED;
        turned = flat->in[0];
    }
    cat = tr_onnx_made_by(r, turned, "Concat");
    if (!cat || cat->nin != 2 || !match_turn(r, cat->in[0], "Sub", first, c) ||
        !match_turn(r, cat->in[1], "Add", second, d) || first[0] != second[1] ||
        first[1] != second[0] || c[0] != d[0] || c[1] != d[1])
        return false;
    int x = match_pairs(r, first, y);
    if (rest >= 0 && (tr_onnx_part_of(r, x, &begin, &end) != rest || begin != 0)) return false;
    if (rest >= 0) x = rest;
    const tr_onnx_step *heads = tr_onnx_shared_by(r, x, "Reshape");
    if (!heads || !tr_onnx_dims_of(r, heads, 4, dims) || (rest >= 0 && end != y->a.dim))
        return false;
    y->rows = dims[1];
    y->a.heads = dims[2];
    y->D = dims[3];
    y->x = heads->in[0];
    if (y->rows < 1 || y->a.dim < 2 || (rest < 0 && y->D != y->a.dim)) return false;
    y->a.base = base_of(y, c[0], c[1]);
    return y->a.base > 0;
}

static bool match(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    rotary y;
    if (s->nin != 2 || !match_all(r, s, &y)) return false;
    operands[0] = y.x;
    *n = 1;
    return true;
}

static void read_rotary(tr_onnx_reader *r, const tr_onnx_step *s)
{
    rotary y;
    char text[160], base[32];
    if (!match_all(r, s, &y)) return;
    snprintf(text, sizeof text, "{heads: %lld, dim: %lld, base: %s, style: %s}",
             (long long)y.a.heads, (long long)y.a.dim, tr_format_real(y.a.base, base),
             y.a.style == TR_ROTARY_HALF ? "half" : "interleaved");
    tr_onnx_make_plain(r, s, y.x, "rotary", text);
}

static const tr_onnx_pattern patterns[] = {{"Reshape", match, read_rotary, false}, {0}};

const tr_onnx_family tr_onnx_rotaries = {.layers = layers, .patterns = patterns};
