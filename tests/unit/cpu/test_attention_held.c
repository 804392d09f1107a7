/* links: trireme_cpu trireme_plan
 * Attention that looks back on what is held, against plain C in double: heads of odd and of wide
 * sizes, grouped, packed and apart, windows, ALiBi, more keys than are gone through at a time;
 * sequences of several lengths, rows that do not count, and that what is held is written where it
 * belongs and nowhere else. And products of a vector with rows. */
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    const char *what;
    int64_t rows, heads, kv, D, cache, window;
    bool alibi, packed;
    double scale;
    int32_t past[3], count[3]; /* of 3 sequences */
} shape;

static const shape shapes[] = {
    {"one", 1, 1, 1, 4, 1, 0, false, true, 0, {0, 0, 0}, {1, 1, 1}},
    {"a row each", 1, 4, 4, 32, 20, 0, false, true, 0, {0, 7, 19}, {1, 1, 1}},
    {"odd, apart", 5, 3, 3, 7, 9, 0, false, false, 0, {0, 4, 2}, {5, 5, 3}},
    {"idle", 4, 2, 1, 33, 12, 0, false, true, 0.3, {3, 12, 0}, {0, 0, 4}},
    {"grouped, window", 6, 6, 2, 16, 30, 5, false, true, 0, {0, 24, 11}, {6, 6, 2}},
    {"alibi", 3, 5, 5, 64, 40, 0, true, false, 0, {1, 37, 20}, {3, 3, 3}},
    {"multi-query, blocks", 2, 4, 1, 24, 700, 0, true, true, 0, {511, 254, 698}, {2, 2, 2}},
    {"48 wide", 2, 4, 2, 48, 300, 0, false, true, 0, {0, 297, 130}, {2, 2, 2}},
    {"80 wide, window", 1, 2, 2, 80, 90, 40, false, false, 0, {0, 89, 37}, {1, 1, 1}},
    {"84 wide, alibi", 1, 4, 4, 84, 30, 0, true, true, 0, {0, 29, 6}, {1, 1, 1}},
    {"wide, window over blocks", 2, 2, 2, 256, 600, 300, false, false, 0, {598, 256, 0}, {2, 1, 2}},
    {"more than fits", 3, 1, 1, 8, 5, 0, false, true, 0, {4, 5, 9}, {3, 3, 3}},
};
enum { N = 3 };

typedef struct {
    harness h;
    int q, k, v, past, count, keys, values, y;
    const shape *s;
    tr_attention_attrs a;
} trial;

static trial open_trial(const shape *s, tr_precision p, int isa, int threads)
{
    trial t = {.h = open_level("attention", p, isa, threads), .s = s};
    harness *h = &t.h;
    const tr_dtype type = h_activation(h);
    const int64_t all = (s->heads + 2 * s->kv) * s->D, q = s->heads * s->D, kv = s->kv * s->D;
    const int64_t held[] = {N, s->kv, s->cache, s->D};
    t.a = (tr_attention_attrs){.heads = s->heads,
                               .kv_heads = s->kv,
                               .causal = true,
                               .window = s->window,
                               .alibi = s->alibi,
                               .scale = s->scale};
    t.q = h_in(h, type, 3, (int64_t[]){N, s->rows, s->packed ? all : q});
    t.k = t.v = t.q;
    if (s->packed) {
        h_absent_in(h);
        h_absent_in(h);
    } else {
        t.k = h_in(h, type, 3, (int64_t[]){N, s->rows, kv});
        t.v = h_in(h, type, 3, (int64_t[]){N, s->rows, kv});
    }
    h_absent_in(h);
    t.past = h_in(h, TR_I32, 2, (int64_t[]){N, 1});
    t.count = h_in(h, TR_I32, 2, (int64_t[]){N, 1});
    t.keys = h_plain(h, h_in_role(h, TR_ROLE_HELD, type, 4, held));
    t.values = h_plain(h, h_in_role(h, TR_ROLE_HELD, type, 4, held));
    t.y = h_out(h, type, 3, (int64_t[]){N, s->rows, q});
    const int filled[] = {t.q, t.k, t.v, t.keys, t.values};
    for (uint32_t i = 0; i < TR_COUNT(filled); i++) h_fill_range(h, filled[i], i, -2, 2);
    for (size_t n = 0; n < N; n++) {
        h_put(h, t.past, n, s->past[n]);
        h_put(h, t.count, n, s->count[n]);
        /* behind what is held there may be anything */
        for (int64_t e = 0; e < s->kv * s->cache * s->D; e++)
            if (e / s->D % s->cache >= s->past[n])
                for (int held_in = 0; held_in < 2; held_in++)
                    h_put(h, held_in ? t.values : t.keys,
                          n * (size_t)(s->kv * s->cache * s->D) + (size_t)e, NAN);
    }
    return t;
}

/* Of row r: where head `head` of queries (0), keys (1) or values (2) begins. */
static size_t place(const shape *s, int what, size_t n, int64_t r, int64_t head)
{
    const int64_t all = s->heads + 2 * s->kv, row = (int64_t)n * s->rows + r;
    const int64_t first[] = {0, s->heads, s->heads + s->kv};
    if (s->packed) return (size_t)((row * all + first[what] + head) * s->D);
    return (size_t)((row * (what ? s->kv : s->heads) + head) * s->D);
}

static int64_t rows_of(const shape *s, size_t n)
{
    const int64_t room = s->cache - s->past[n];
    return room < 0 ? 0 : s->count[n] < room ? s->count[n] : room;
}

/* What is to be held after the run; free. */
static double *held(const trial *t, int id, int what)
{
    const shape *s = t->s;
    double *v = h_values(&t->h, id);
    for (size_t n = 0; n < N; n++)
        for (int64_t head = 0; head < s->kv; head++)
            for (int64_t r = 0; r < rows_of(s, n); r++)
                for (int64_t d = 0; d < s->D; d++)
                    v[(((int64_t)n * s->kv + head) * s->cache + s->past[n] + r) * s->D + d] = h_get(
                        &t->h, what == 1 ? t->k : t->v, place(s, what, n, r, head) + (size_t)d);
    return v;
}

/* Of one query, into y; size: the sum of the absolute values of what is added up. */
static void attend(const trial *t, const double *keys, const double *values, size_t n, int64_t r,
                   int64_t head, double *y, double *size)
{
    static const double slopes5[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5};
    static const double slopes4[] = {0.25, 0.0625, 0.015625, 0.00390625};
    const shape *s = t->s;
    const int64_t i = s->past[n] + r, kv = head / (s->heads / s->kv), D = s->D;
    const int64_t from = s->window > 0 && i - s->window + 1 > 0 ? i - s->window + 1 : 0;
    const size_t base = (size_t)(((int64_t)n * s->kv + kv) * s->cache * D);
    const double scale = s->scale > 0 ? s->scale : 1 / sqrt((double)D);
    const double slope = !s->alibi ? 0 : s->heads == 5 ? slopes5[head] : slopes4[head];
    double most = -INFINITY, sum = 0, *score = doubles((size_t)(i + 1));
    for (int64_t j = from; j <= i; j++) {
        score[j] = -slope * (double)(i - j);
        for (int64_t d = 0; d < D; d++)
            score[j] += scale * keys[base + (size_t)(j * D + d)] *
                        h_get(&t->h, t->q, place(s, 0, n, r, head) + (size_t)d);
        most = fmax(most, score[j]);
    }
    for (int64_t j = from; j <= i; j++) sum += score[j] = exp(score[j] - most);
    for (int64_t d = 0; d < D; d++) {
        y[d] = size[d] = 0;
        for (int64_t j = from; j <= i; j++) {
            const double term = score[j] / sum * values[base + (size_t)(j * D + d)];
            y[d] += term;
            size[d] += fabs(term);
        }
    }
    tr_free(score);
}

static void check(const shape *s, tr_precision p, int isa, int threads)
{
    trial t = open_trial(s, p, isa, threads);
    double *keys = held(&t, t.keys, 1), *values = held(&t, t.values, 2);
    const size_t count = t.h.tensors[t.y].count;
    double *want = doubles(count), *size = doubles(count);
    for (size_t n = 0; n < N; n++)
        for (int64_t r = 0; r < rows_of(s, n); r++)
            for (int64_t head = 0; head < s->heads; head++) {
                const size_t at = (size_t)((((int64_t)n * s->rows + r) * s->heads + head) * s->D);
                attend(&t, keys, values, n, r, head, want + at, size + at);
            }
    h_prepare(&t.h, &t.a, TR_ACT_NONE);
    h_run(&t.h, false);
    /* a score's roundings, some 2 D of 2^-24 of at most 4 D, are those of its exponential, too */
    h_check_sums(&t.h, t.y, want, size, 400 + 8 * sqrt((double)s->D), 1e-6, s->what);
    for (int which = 0; which < 2; which++) {
        const double *wanted = which ? values : keys;
        double *got = h_values(&t.h, which ? t.values : t.keys);
        assert_memory_equal(got, wanted, t.h.tensors[t.keys].count * sizeof *got);
        tr_free(got);
    }
    tr_free(keys);
    tr_free(values);
    tr_free(want);
    tr_free(size);
    h_close(&t.h);
}

static void looks_back(void **state)
{
    (void)state;
    FOR_LEVELS(isa)
    FOR_PRECISIONS(p)
    for (size_t i = 0; i < TR_COUNT(shapes); i++) check(&shapes[i], p, isa, 1 + (int)(i % 3));
}

#ifndef TEST_MIRROR
/* out[i] = act(sum of x * row i + bias): the pieces that a product of few rows is made of. */
static void products_with_rows(void **state)
{
    (void)state;
    enum { ROWS = 11, MOST = 140 };
    static const size_t sizes[] = {1, 3, 16, 33, 128, MOST};
    FOR_LEVELS(isa)
    for (size_t k = 0; k < TR_COUNT(sizes); k++)
        for (size_t n = 1; n <= ROWS; n += 5)
            for (int half = 0; half < 2; half++) {
                const tr_cpu_loops *loops = tr_cpu_loops_at(isa);
                const size_t D = sizes[k];
                float x[MOST], rows[ROWS * MOST], out[ROWS], bias[ROWS], y[ROWS];
                tr_bf16 narrow[ROWS * MOST], y16[ROWS];
                for (size_t i = 0; i < n * D; i++) {
                    narrow[i] = tr_f32_to_bf16((float)(i * 37 % 101) / 50.0f - 1);
                    rows[i] = tr_bf16_to_f32(narrow[i]);
                }
                for (size_t d = 0; d < D; d++) x[d] = (float)(d * 53 % 89) / 40.0f - 1;
                for (size_t i = 0; i < n; i++) bias[i] = (float)i - 3;
                loops->dots(half ? TR_BF16 : TR_F32, x, half ? (void *)narrow : (void *)rows, n, D,
                            out);
                loops->add_act(TR_F32, TR_ACT_RELU, out, bias, y, n);
                loops->add_act(TR_BF16, TR_ACT_NONE, out, NULL, y16, n);
                for (size_t i = 0; i < n; i++) {
                    double want = 0, size = 0;
                    for (size_t d = 0; d < D; d++) {
                        want += (double)x[d] * (double)rows[i * D + d];
                        size += fabs((double)x[d] * (double)rows[i * D + d]);
                    }
                    assert_true(fabs((double)out[i] - want) <= (double)D * 0x1p-24 * size + 1e-30);
                    assert_true(y[i] == fmaxf(out[i] + bias[i], 0));
                    assert_int_equal(y16[i], tr_f32_to_bf16(out[i]));
                }
            }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looks_back),
#ifndef TEST_MIRROR
        cmocka_unit_test(products_with_rows),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
