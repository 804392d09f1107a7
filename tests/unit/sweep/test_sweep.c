/* Grids, fronts and searches. */
#include "optimize/sweep/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static tr_document doc;

static tr_status read_space(const char *text, bool ranges, tr_sweep_space *s)
{
    tr_document_close(&doc);
    assert_int_equal(tr_document_parse("s.yaml", text, strlen(text), &doc), TR_OK);
    return tr_sweep_space_read(doc.root, "over", ranges, s);
}

static const char *value(const tr_sweep_space *s, size_t axis, double setting, tr_sweep_value *v)
{
    tr_sweep_axis_value(&s->axes[axis], setting, v);
    return v->node.text;
}

/* The product in order, the last key fastest, each value with its place in the file. */
static void grid(void **state)
{
    (void)state;
    static const char *const expected[] = {"1x", "1y", "2x", "2y", "3x", "3y"};
    tr_sweep_space s;
    tr_sweep_value v, w;
    double point[2];
    char both[16];
    assert_int_equal(read_space("a.b: [1, 2, 3]\nc: [x,\n  y]\n", false, &s), TR_OK);
    assert_int_equal(tr_sweep_space_size(&s), 6);
    for (size_t i = 0; i < 6; i++) {
        tr_sweep_space_at(&s, i, point);
        snprintf(both, sizeof both, "%s%s", value(&s, 0, point[0], &v), value(&s, 1, point[1], &w));
        assert_string_equal(both, expected[i]);
    }
    assert_int_equal(w.node.line, 3);
    assert_int_equal(w.node.column, 3);
    tr_sweep_space_free(&s);
}

static void ranges(void **state)
{
    (void)state;
    tr_sweep_space s;
    tr_sweep_value v;
    assert_int_equal(read_space("a: {from: 0.1, to: 0.7, step: 0.2}\nb: {from: 8, to: 11}\n"
                                "c: {from: 8, to: 33, step: 8}\nd: {from: 1, to: 2.0}\n"
                                "e: {from: 1e-4, to: 1e-1, scale: log}\n",
                                true, &s),
                     TR_OK);
    assert_int_equal(s.axes[0].count, 4); /* the end is reached, whatever rounding says */
    assert_string_equal(value(&s, 0, 3, &v), "0.7");
    assert_string_equal(value(&s, 0, 1, &v), "0.3");
    assert_int_equal(s.axes[1].count, 4);
    assert_string_equal(value(&s, 1, 3, &v), "11");
    assert_int_equal(s.axes[2].count, 4);
    assert_string_equal(value(&s, 2, 3, &v), "32");
    assert_int_equal(s.axes[3].count, 0);
    assert_string_equal(value(&s, 3, 1.25, &v), "1.25");
    assert_true(tr_sweep_space_size(&s) == SIZE_MAX);
    tr_sweep_space_free(&s);
}

static void refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a: 3", "s.yaml:1:4: over.a: expected a list of values, or a range"},
        {"a: []", "s.yaml:1:4: over.a: expected a list"},
        {"[1]", "s.yaml:1:1: over: expected a map of keys"},
        {"a: [1]\nb: [2, 3, 2]", "s.yaml:2:11: over.b: 2 stands twice; it is already at 2:5"},
        {"a: {from: 1}", "required key \"to\""},
        {"a: {from: 1, til: 2}", "unknown key \"til\""},
        {"a: {from: 2, to: 1}", "s.yaml:1:4: over.a: `from` must be less"},
        {"a: {from: 0.0, to: 1, scale: log}", "needs `from` above 0"},
        {"a: {from: 1, to: 9, scale: log, step: 1}", "goes without `step`"},
        {"a: {from: 0, to: 1e12}", NULL},
        {"a: {from: 0, to: 1000000000000}", "more than 1e9 values"}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_sweep_space s = {0};
        const tr_status st = read_space(cases[i][0], true, &s);
        assert_int_equal(st, cases[i][1] ? TR_CONFIG : TR_OK);
        if (st != TR_OK) assert_non_null(strstr(tr_last_error()->text, cases[i][1]));
        tr_sweep_space_free(&s);
    }
    tr_sweep_space s;
    assert_int_equal(read_space("a: {from: 1, to: 2}", false, &s), TR_CONFIG);
}

static double unit(uint64_t i, uint32_t k)
{
    return tr_uniform(tr_philox_at(3, TR_RNG_TEST, k, i, 0).v[0]);
}

/* By the definition: on the front is what no other point dominates. */
static void fronts(void **state)
{
    (void)state;
    enum { N = 300, M = 3 };
    double v[N * M];
    bool in[N], front[N];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) {
            in[i] = unit((uint64_t)(round * N + i), 9) < 0.9;
            for (int k = 0; k < M; k++) { /* coarse: ties and points that are equal */
                const double u = unit((uint64_t)(round * N + i), (uint32_t)k);
                v[i * M + k] = round % 2 ? floor(6 * u) : u;
            }
        }
        v[7] = NAN;
        v[30] = INFINITY;
        assert_int_equal(tr_pareto_front(N, M, v, in, front), TR_OK);
        for (int i = 0; i < N; i++) {
            bool expected = in[i] && i != 7 / M && i != 30 / M;
            for (int j = 0; j < N && expected; j++) {
                bool no_larger = in[j] && j != 7 / M && j != 30 / M, smaller = false;
                for (int k = 0; k < M; k++) {
                    no_larger &= v[j * M + k] <= v[i * M + k];
                    smaller |= v[j * M + k] < v[i * M + k];
                }
                expected = !(no_larger && smaller);
            }
            assert_int_equal(front[i], expected);
        }
    }
}

enum { TRIALS = 60, AXES = 4 };

/* Slow and good, or fast and bad, by x; y, z and the kind only cost, but where they are right. */
static tr_search_result measure(const tr_sweep_space *s, const double *p)
{
    tr_sweep_value v;
    const double x = p[0], y = atof(value(s, 1, p[1], &v)), z = log(p[2]);
    const double cost = fabs(y - 24) / 24 + fabs(z - log(0.01)) + (p[3] == 1 ? 0 : 0.5);
    tr_search_result r = {.objectives = {1 - x + cost, cost, x * x + cost}};
    r.minimize = r.objectives[0];
    r.violation = fmax(r.objectives[2] - 0.5, 0);
    return r;
}

static void run_search(const tr_sweep_space *s, uint64_t seed, double *points,
                       tr_search_result *results, size_t *count)
{
    bool found = true;
    for (*count = 0; *count < TRIALS; ++*count) {
        double *next = points + *count * s->count;
        assert_int_equal(tr_search_next(s, seed, *count, points, results, next, &found), TR_OK);
        if (!found) return;
        results[*count] = measure(s, next);
    }
}

/* The same for a seed; better than as many random points; nothing is tried twice. */
static void search(void **state)
{
    (void)state;
    static const char text[] = "x: {from: 0.0, to: 1.0}\ny: {from: 8, to: 64, step: 8}\n"
                               "z: {from: 0.0001, to: 1.0, scale: log}\nkind: [a, b, c]\n";
    tr_sweep_space s;
    double points[2][TRIALS * AXES];
    tr_search_result results[2][TRIALS];
    size_t n;
    assert_int_equal(read_space(text, true, &s), TR_OK);
    int better = 0;
    for (uint64_t seed = 0; seed < 10; seed++) {
        double best = INFINITY, sampled = INFINITY;
        run_search(&s, seed, points[0], results[0], &n);
        assert_int_equal(n, TRIALS);
        for (size_t i = 0; i < n; i++) {
            const tr_search_result r = results[0][i];
            if (r.violation > 0) continue;
            best = fmin(best, r.minimize);
            for (size_t k = 0; k < i; k++)
                assert_true(
                    memcmp(points[0] + i * AXES, points[0] + k * AXES, AXES * sizeof(double)) != 0);
        }
        for (uint64_t i = 0; i < TRIALS; i++) {
            const double p[AXES] = {unit(i, 1 + 5 * (uint32_t)seed),
                                    floor(8 * unit(i, 2 + 5 * (uint32_t)seed)),
                                    exp(log(1e-4) * unit(i, 3 + 5 * (uint32_t)seed)),
                                    floor(3 * unit(i, 4 + 5 * (uint32_t)seed))};
            const tr_search_result r = measure(&s, p);
            if (r.violation == 0) sampled = fmin(sampled, r.minimize);
        }
        better += best < sampled;
        if (seed > 0) continue;
        run_search(&s, seed, points[1], results[1], &n);
        assert_memory_equal(points[0], points[1], sizeof points[0]);
        run_search(&s, seed + 1, points[1], results[1], &n);
        assert_true(memcmp(points[0], points[1], sizeof points[0]) != 0);
    }
    assert_true(better >= 8);
    tr_sweep_space_free(&s);
}

/* What fails is no reason to stop, and a space that is used up ends the search. */
static void search_ends(void **state)
{
    (void)state;
    tr_sweep_space s;
    double points[TRIALS * 2];
    tr_search_result results[TRIALS];
    bool found = true, seen[12] = {false};
    size_t n = 0;
    assert_int_equal(read_space("x: {from: 1, to: 4}\nkind: [a, b, c]\n", true, &s), TR_OK);
    for (; n < TRIALS; n++) {
        double *next = points + 2 * n;
        assert_int_equal(tr_search_next(&s, 1, n, points, results, next, &found), TR_OK);
        if (!found) break;
        const size_t which = (size_t)(3 * next[0] + next[1]);
        assert_true(which < 12 && !seen[which]);
        seen[which] = true;
        results[n] = (tr_search_result){.failed = true};
    }
    assert_int_equal(n, 12);
    tr_sweep_space_free(&s);
}

static int done(void **state)
{
    (void)state;
    tr_document_close(&doc);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(grid),    cmocka_unit_test(ranges),
                                       cmocka_unit_test(refused), cmocka_unit_test(fronts),
                                       cmocka_unit_test(search),  cmocka_unit_test(search_ends)};
    return cmocka_run_group_tests(tests, NULL, done);
}
