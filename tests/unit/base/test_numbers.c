/* Numbers in order, and as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/base/base.h"
#include "runtime/base/json.h"
#include "runtime/base/numbers.h"

static void sorted(void **state)
{
    (void)state;
    double v[] = {3, -1, 2, 2, 1e300, 0};
    const double want[] = {-1, 0, 2, 2, 3, 1e300};
    tr_sort(v, TR_COUNT(v));
    assert_memory_equal(v, want, sizeof v);
}

static void median(void **state)
{
    (void)state;
    assert_true(tr_median((double[]){5}, 1) == 5);
    assert_true(tr_median((double[]){9, 1, 4}, 3) == 4);
    assert_true(tr_median((double[]){9, 1, 4, 2}, 4) == 3);
}

static void dims(void **state)
{
    (void)state;
    const int64_t d[] = {16, 8, 123456789012};
    char text[32], small[8];
    assert_string_equal(tr_format_dims(0, d, text, sizeof text), "()");
    assert_string_equal(tr_format_dims(1, d, text, sizeof text), "(16)");
    assert_string_equal(tr_format_dims(3, d, text, sizeof text), "(16, 8, 123456789012)");
    assert_string_equal(tr_format_dims(3, d, small, sizeof small), "(16, 8,");
}

static void plural(void **state)
{
    (void)state;
    assert_string_equal(tr_plural(1), "");
    assert_string_equal(tr_plural(0), "s");
    assert_string_equal(tr_plural(2), "s");
}

/* The shortest text of each, as text and in JSON. */
static void real(void **state)
{
    (void)state;
    const struct {
        double v;
        const char *text;
    } cases[] = {{0.1, "0.1"},      {0.1 + 0.2, "0.30000000000000004"},
                 {1e300, "1e+300"}, {-2.5, "-2.5"},
                 {1024, "1024"},    {1.0 / 3, "0.3333333333333333"}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char number[32], json[32] = "";
        assert_string_equal(tr_format_real(cases[i].v, number), cases[i].text);
        FILE *to = fmemopen(json, sizeof json, "w");
        assert_non_null(to);
        tr_json_real(cases[i].v, to);
        assert_int_equal(fclose(to), 0);
        assert_string_equal(json, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sorted), cmocka_unit_test(plural),
                                       cmocka_unit_test(median), cmocka_unit_test(dims),
                                       cmocka_unit_test(real)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
