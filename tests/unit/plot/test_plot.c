/* Plots are XML with what they were given in it, at its place. */
#include "optimize/plot/internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static char *text;
static size_t size;

static FILE *begin(void)
{
    return open_memstream(&text, &size);
}

static int count(const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

static void ticks(void **state)
{
    (void)state;
    tr_axis a = tr_axis_of(0.03, 0.97, false, 0, 100);
    assert_true(a.low == 0 && a.high == 1);
    assert_int_equal(a.nticks, 6);
    assert_true(fabs(tr_axis_at(&a, 0.5) - 50) < 1e-9);
    a = tr_axis_of(1, 1000, true, 0, 300);
    assert_int_equal(a.nticks, 10); /* 1, 2, 5, ..., 1000 */
    assert_true(fabs(tr_axis_at(&a, 10) - 100) < 1e-9);
    a = tr_axis_of(0.6, 1.7, true, 0, 1); /* few of 1, 2, 5 */
    assert_true(a.nticks >= 3);
    a = tr_axis_of(5, 5, false, 0, 1); /* one value */
    assert_true(a.low < 5 && a.high > 5);
    a = tr_axis_of(INFINITY, -INFINITY, false, 0, 1); /* none */
    assert_true(a.low < a.high);
}

static void lines(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3, 4}, y[] = {1, NAN, 100, -5};
    const tr_plot_series s[] = {{.name = "a<b", .n = 4, .x = x, .y = y},
                                {.name = "points", .n = 4, .x = x, .y = y, .points = true}};
    const tr_plot_lines p = {.title = "T & \"t\"",
                             .x_label = "x",
                             .y_label = "y",
                             .log_y = true,
                             .nseries = 2,
                             .series = s};
    FILE *to = begin();
    assert_int_equal(tr_svg_lines(&p, to), TR_OK);
    fclose(to);
    assert_int_equal(count("<svg"), 1);
    assert_int_equal(count("</svg>"), 1);
    assert_int_equal(count("<circle"), 3); /* of four, two can be shown; the legend */
    assert_int_equal(count("a&lt;b"), 1);
    assert_int_equal(count("T &amp; &quot;t&quot;"), 2);
    free(text);
}

/* Marks by size, with notes; a line in steps goes along the axes. */
static void marks(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3}, y[] = {1, 2, 3}, sizes[] = {1, 4, 16};
    const char *const notes[] = {"a", "b<c", "d"};
    const tr_plot_series s[] = {
        {.name = "front",
         .n = 2,
         .x = x,
         .y = y,
         .points = true,
         .filled = true,
         .sizes = sizes,
         .notes = notes,
         .color = 3},
        {.name = "others", .n = 1, .x = x + 2, .y = y + 2, .points = true, .sizes = sizes + 2},
        {.name = "steps", .n = 3, .x = x, .y = y, .steps = true}};
    FILE *to = begin();
    assert_int_equal(
        tr_svg_lines(
            &(tr_plot_lines){.title = "", .x_label = "", .y_label = "", .nseries = 3, .series = s},
            to),
        TR_OK);
    fclose(to);
    assert_int_equal(count("r=\"9\""), 1);
    assert_int_equal(count("r=\"4.5\""), 1);
    assert_int_equal(count("r=\"2.25\""), 1);
    assert_int_equal(count("class=\"l s2 p\""), 3); /* two, and the legend */
    assert_int_equal(count("<title>b&lt;c</title>"), 1);
    const char *path = strstr(text, "class=\"l s2\" d=\"M");
    assert_non_null(path);
    assert_int_equal(strspn(path + 17, "0123456789. "), strcspn(path + 17, "H"));
    free(text);
}

/* A long series is drawn with no more than its ends at each pixel. */
static void long_series(void **state)
{
    (void)state;
    enum { N = 100000 };
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = tr_uniform(tr_philox_at(1, TR_RNG_TEST, 0, (uint64_t)i, 0).v[0]);
    }
    const tr_plot_series s = {.name = "s", .n = N, .x = x, .y = y};
    FILE *to = begin();
    assert_int_equal(
        tr_svg_lines(
            &(tr_plot_lines){.title = "", .x_label = "", .y_label = "", .nseries = 1, .series = &s},
            to),
        TR_OK);
    fclose(to);
    assert_true(size < 400000 && size > 10000);
    free(text);
    free(x);
    free(y);
}

static void bars_and_matrix(void **state)
{
    (void)state;
    const char *const names[] = {"conv", "linear"};
    const double values[] = {2, 1};
    const int64_t counts[] = {5, 0, 2, 3};
    FILE *to = begin();
    assert_int_equal(
        tr_svg_bars(
            &(tr_plot_bars){.title = "b", .unit = "ms", .n = 2, .names = names, .values = values},
            to),
        TR_OK);
    assert_int_equal(tr_svg_confusion("c", 2, counts, to), TR_OK);
    fclose(to);
    assert_int_equal(count("class=\"b\""), 2);
    assert_int_equal(count("width=\"340.0\""), 1);
    assert_int_equal(count("width=\"170.0\""), 1);
    assert_int_equal(count("class=\"c\""), 3); /* none for no sample */
    assert_int_equal(count("1 as 0: 2"), 1);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ticks), cmocka_unit_test(lines),
                                       cmocka_unit_test(marks), cmocka_unit_test(long_series),
                                       cmocka_unit_test(bars_and_matrix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
