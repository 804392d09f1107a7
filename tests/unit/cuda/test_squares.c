/* The sum of squares, of one array and of ranges, also of values whose squares leave float32. */
#include "tests/unit/cuda/array_harness.h"

#include <math.h>

static double squares(tr_cuda *cuda, const float *g, size_t n, double *out)
{
    double got;
    assert_ok(b->training->sum_squares(cuda, g, n, out));
    assert_ok(b->memory->download(cuda, &got, out, sizeof got));
    return got;
}

static void sum_of_squares_matches(void **state)
{
    (void)state;
    enum { N = 200003 };
    static const double scales[] = {1, 1e-25, 1e-40, 3e18, 3e38};
    static const size_t sizes[] = {N, 1, 3, 4, 8191, 8192, 8193, 16385};
    tr_cuda *cuda = open_with(false);
    array g = open_array(cuda, N);
    double *out = b->memory->alloc(cuda, TR_MEM_OTHER, sizeof *out);
    for (size_t k = 0; k < TR_COUNT(scales); k++) {
        for (size_t i = 0; i < N; i++) g.host[i] = (float)(scales[k] * uniform(1, i, -1, 1));
        put(cuda, &g);
        for (size_t s = 0; s < TR_COUNT(sizes); s++)
            for (size_t from = 0; from < 2; from++) { /* aligned and not */
                const size_t n = sizes[s] - (sizes[s] == N ? from : 0);
                double want = 0;
                for (size_t i = from; i < from + n; i++)
                    want += (double)g.host[i] * (double)g.host[i];
                const double got = squares(cuda, g.device + from, n, out);
                assert_true(fabs(got - want) <= 1e-12 * want);
                assert_true(squares(cuda, g.device + from, n, out) == got);
            }
    }
    assert_true(squares(cuda, g.device, 0, out) == 0);
    b->memory->free(cuda, out);
    close_array(cuda, &g);
    close_with(cuda);
}

/* Not finite if and only if an element is not. */
static void sum_of_squares_tells_of_bad_values(void **state)
{
    (void)state;
    enum { N = 9001 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const size_t at[] = {0, 17, 8191, 8192, N - 1};
    tr_cuda *cuda = open_with(false);
    array g = open_array(cuda, N);
    double *out = b->memory->alloc(cuda, TR_MEM_OTHER, sizeof *out);
    for (size_t i = 0; i < N; i++) g.host[i] = 3e38f;
    put(cuda, &g);
    assert_true(isfinite(squares(cuda, g.device, N, out)));
    for (size_t k = 0; k < TR_COUNT(bad); k++)
        for (size_t j = 0; j < TR_COUNT(at); j++) {
            g.host[at[j]] = bad[k];
            put(cuda, &g);
            assert_false(isfinite(squares(cuda, g.device, N, out)));
            g.host[at[j]] = 3e38f;
        }
    b->memory->free(cuda, out);
    close_array(cuda, &g);
    close_with(cuda);
}

/* Of ranges: what lies between them does not count, and the order is fixed. */
static void squares_of_ranges(void **state)
{
    (void)state;
    enum { N = 3 * 8192 + 4000 };
    static const tr_range ranges[] = {{16, 32}, {64, 8192 + 80}, {2 * 8192, N}};
    tr_cuda *cuda = open_with(false);
    array g = open_array(cuda, N);
    double *out = b->memory->alloc(cuda, TR_MEM_OTHER, sizeof *out), got, again, want = 0;
    void *squares;
    for (size_t i = 0; i < N; i++) g.host[i] = NAN;
    for (size_t k = 0; k < TR_COUNT(ranges); k++)
        for (size_t i = ranges[k].begin; i < ranges[k].end; i++) {
            g.host[i] = (float)uniform(3, i, -1e20, 1e20);
            want += (double)g.host[i] * (double)g.host[i];
        }
    put(cuda, &g);
    assert_ok(b->training->squares_open(cuda, g.device, ranges, TR_COUNT(ranges), &squares));
    assert_ok(b->training->squares_run(squares, out));
    assert_ok(b->memory->download(cuda, &got, out, sizeof got));
    assert_true(fabs(got - want) <= 1e-12 * want);
    assert_ok(b->training->squares_run(squares, out));
    assert_ok(b->memory->download(cuda, &again, out, sizeof again));
    assert_true(got == again);
    g.host[N - 1] = INFINITY;
    put(cuda, &g);
    assert_ok(b->training->squares_run(squares, out));
    assert_ok(b->memory->download(cuda, &got, out, sizeof got));
    assert_false(isfinite(got));
    b->training->squares_close(squares);
    assert_ok(b->training->squares_open(cuda, g.device, NULL, 0,
                                        &squares)); /* a rank that owns nothing */
    assert_ok(b->training->squares_run(squares, out));
    assert_ok(b->memory->download(cuda, &got, out, sizeof got));
    assert_true(got == 0);
    b->training->squares_close(squares);
    b->training->squares_close(NULL);
    b->memory->free(cuda, out);
    close_array(cuda, &g);
    b->close(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(squares_of_ranges),
        cmocka_unit_test(sum_of_squares_matches),
        cmocka_unit_test(sum_of_squares_tells_of_bad_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
