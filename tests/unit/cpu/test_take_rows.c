/* links: trireme_cpu trireme_plan
 * select and mean_rows against plain C in double: rows by samples' lengths of all, 1, 0 and
 * between, and of all samples alike; what stands behind a length is never read, not even as a
 * number; the gradient is the adjoint. */
#include "tests/unit/cpu/loop_levels.h"

typedef struct {
    int64_t samples, rows, features;
} shape;

static const shape shapes[] = {{3, 7, 16}, {4, 5, 13}, {1, 1, 3}, {5, 70, 200}, {2, 130, 64}};

typedef struct {
    bool mean, lengths;
    int64_t at;
} way;

static const way ways[] = {
    {false, false, 0}, {false, true, -1}, {false, true, -2}, {true, false, 0}, {true, true, 0}};

static int64_t length_of(const shape *s, const way *w, int64_t sample)
{
    const int64_t some[] = {s->rows, s->rows > 1, 0, s->rows / 2 + 1};
    return w->lengths ? some[sample % 4] : s->rows;
}

/* What row t of a sample counts in its one. */
static double weight_of(const shape *s, const way *w, int64_t sample, int64_t t)
{
    const int64_t n = length_of(s, w, sample), at = w->at < 0 ? n + w->at : w->at;
    if (w->mean) return t < n ? 1.0 / (double)n : 0;
    return t == at ? 1 : 0;
}

static void put_lengths(harness *h, const shape *s, const way *w)
{
    if (!w->lengths) {
        h_absent_in(h);
        return;
    }
    const int id = h_in_role(h, TR_ROLE_INPUT, TR_I32, 2, (int64_t[]){s->samples, 1});
    for (int64_t n = 0; n < s->samples; n++) h_put(h, id, (size_t)n, (double)length_of(s, w, n));
}

static harness opened(const way *w, bool back, tr_precision p, int isa, int threads)
{
    static const char *const ops[] = {"select", "select.grad", "mean_rows", "mean_rows.grad"};
    return open_level(ops[2 * w->mean + back], p, isa, threads);
}

static void check(const shape *s, const way *w, tr_precision p, int isa, int threads)
{
    const tr_rows_attrs a = {.mean = w->mean, .at = w->at};
    const int64_t wide[] = {s->samples, s->rows, s->features}, one[] = {s->samples, s->features};
    harness h = opened(w, false, p, isa, threads);
    const int x = h_in(&h, h_activation(&h), 3, wide);
    put_lengths(&h, s, w);
    const int y = h_out(&h, h_activation(&h), 2, one);
    h_fill(&h, x, 1);
    double *v = h_values(&h, x), *want = doubles((size_t)(s->samples * s->features));
    for (int64_t r = 0; r < s->samples * s->rows; r++) {
        const double of = weight_of(s, w, r / s->rows, r % s->rows);
        for (int64_t f = 0; f < s->features; f++) {
            const size_t i = (size_t)(r * s->features + f);
            want[r / s->rows * s->features + f] += of * v[i];
            if (of == 0) h_put(&h, x, i, NAN);
        }
    }
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, y, want, tolerance(p), "rows");
    tr_free(v);
    h_close(&h);
}

static void check_grad(const shape *s, const way *w, tr_precision p, int isa, int threads)
{
    const tr_rows_attrs a = {.mean = w->mean, .at = w->at};
    const int64_t wide[] = {s->samples, s->rows, s->features}, one[] = {s->samples, s->features};
    harness h = opened(w, true, p, isa, threads);
    const int dy = h_in(&h, h_activation(&h), 2, one);
    put_lengths(&h, s, w);
    const int dx = h_out(&h, h_activation(&h), 3, wide);
    h_fill(&h, dy, 1);
    h_fill(&h, dx, 2); /* all of it is written */
    double *v = h_values(&h, dy), *want = doubles((size_t)(s->samples * s->rows * s->features));
    for (int64_t r = 0; r < s->samples * s->rows; r++)
        for (int64_t f = 0; f < s->features; f++)
            want[r * s->features + f] =
                weight_of(s, w, r / s->rows, r % s->rows) * v[r / s->rows * s->features + f];
    h_prepare(&h, &a, TR_ACT_NONE);
    h_run(&h, false);
    expect(&h, dx, want, tolerance(p), "gradient");
    tr_free(v);
    h_close(&h);
}

static void check_all(int isa, tr_precision p)
{
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (size_t k = 0; k < TR_COUNT(ways); k++) {
            check(&shapes[i], &ways[k], p, isa, 1 + (int)(i % 3));
            check_grad(&shapes[i], &ways[k], p, isa, 1 + (int)(i % 3));
        }
}

static void test_rows(void **state)
{
    (void)state;
    FOR_LEVELS(isa) FOR_PRECISIONS(p) check_all(isa, p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
