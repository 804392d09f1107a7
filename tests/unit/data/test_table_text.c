/* What the text of a CSV table is taken for: numbers, a first line of names, delimiters. */
#include "table.h"

#include "runtime/data/csv.h"

/* One reading of numbers for who trains and who writes its config: plain decimals, finite in
 * float32. */
static void numbers(void **state)
{
    (void)state;
    static const char *const bad[] = {"0x1F", "1e39", "-4e38", "inf",  "1_0", "1 2", "1.5.2",
                                      "e5",   "+",    "1,5",   "0x1p", "1f",  ".",   "--1"};
    static const struct {
        const char *text;
        double v;
    } good[] = {{"1e38", 1e38}, {"-0", 0}, {"+.5", 0.5}, {"5.", 5}, {"1E-400", 0}, {"007", 7}};
    static const char *const commas[] = {"1,5", "-0,25", "+12,0"};
    static const char *const none[] = {"1.5", ",5", "1,", "1,5,2", "1.234,5", "a,5", "1,5e3", ""};
    double v;
    for (size_t i = 0; i < TR_COUNT(bad); i++)
        if (tr_csv_number(bad[i], &v)) fail_msg("\"%s\" as %g", bad[i], v);
    for (size_t i = 0; i < TR_COUNT(good); i++)
        assert_true(tr_csv_number(good[i].text, &v) && v == good[i].v);
    for (size_t i = 0; i < TR_COUNT(commas); i++) assert_true(tr_csv_decimal_comma(commas[i]));
    for (size_t i = 0; i < TR_COUNT(none); i++) assert_false(tr_csv_decimal_comma(none[i]));
    world w;
    table_world(&w, "a,b,y\n1,\"2,5\",0\n");
    fails(&w, TR_DATA, "t.csv:2: column \"b\": found \"2,5\", expected a point", NULL);
    world_close(&w);
}

/* Where the first line is a sample, columns go by their numbers, of other tables, too. */
static void no_header(void **state)
{
    (void)state;
    world w;
    table_world(&w, "1,2,0\n1,4,1\n");
    w.c.data.table.header = false;
    w.c.data.train.labels = "column3";
    w.c.data.predict = (tr_source_config){.present = true, .path = "p.csv"};
    write_text(&w, "p.csv", "10,20\n");
    tr_dataset *d = opens_other(&w, &w.c.data.train);
    assert_int_equal(tr_dataset_samples(d), 2);
    assert_true(input_at(d, 0, 0, 1) == 2 && input_at(d, 0, 1, 1) == 4);
    tr_dataset_close(d);
    d = opens_other(&w, &w.c.data.predict);
    assert_true(input_at(d, 0, 0, 0) == 10 && input_at(d, 0, 0, 1) == 20);
    tr_dataset_close(d);
    write_text(&w, "t.csv", "1,2,0\n1,4\n");
    fails(&w, TR_DATA, "t.csv:2: 2 fields, expected 3 as in the first line", NULL);
    world_close(&w);
}

/* A line of numbers is a sample, but where they count the columns. */
static void first_lines(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tr_csv_first want;
    } cases[] = {
        {"a,b\n1,2\n", TR_CSV_NAMES},
        {"1,2\n3,4\n", TR_CSV_NUMBERS},
        {"0,0,0\n1,2,3\n", TR_CSV_NUMBERS},
        {"0,1,2\n5,5,5\n", TR_CSV_NAMES},
        {"2019,2020,2021\n5,5,5\n", TR_CSV_NAMES},
        {"1,a,2\n5,5,5\n", TR_CSV_MIXED},
        {" -1 ,\"2.5\"", TR_CSV_NUMBERS},
        {"1,inf\n", TR_CSV_MIXED},
        {"\n\n7\n8\n", TR_CSV_NUMBERS},
    };
    world w;
    table_world(&w, "");
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_csv_first got = TR_CSV_NAMES;
        write_text(&w, "d.csv", cases[i].text);
        assert_int_equal(tr_csv_first_line(in_folder(&w, "d.csv"), ',', &got), TR_OK);
        if (got != cases[i].want) fail_msg("case %zu: found %d", i, (int)got);
    }
    world_close(&w);
}

static void delimiters(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        char want;
    } cases[] = {
        {"a,b\n1,2\n", ','},
        {"a;b;c\n1,5;2,5;x\n1;2;y\n", ';'},
        {"a\tb\n1\t2\n", '\t'},
        {"a\n1\n2\n", ','},
        {"a;b,c\n1;2,3\n", ','},
        {"a;b;c,d\n1;2;3\n", ';'},
        {"\"a;x\",b\n\"1;2;3\",2\n", ','},
        {"\"a\";\"b,\n,\"\n\"1\";\"2;\"\n", ';'},
        {"a,b\n1,2,3\n", ','},
        {"", ','},
    };
    world w;
    table_world(&w, "");
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        write_text(&w, "d.csv", cases[i].text);
        const char got = tr_csv_delimiter(in_folder(&w, "d.csv"));
        if (got != cases[i].want) fail_msg("case %zu: found '%c'", i, got);
    }
    assert_int_equal(tr_csv_delimiter(in_folder(&w, "away.csv")), ',');
    write_text(&w, "t.csv", "a;b;y\n1;2;0\n");
    fails(&w, TR_DATA, "there is no column \"y\" (data.train); is data.table.delimiter", NULL);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers), cmocka_unit_test(no_header),
                                       cmocka_unit_test(first_lines), cmocka_unit_test(delimiters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
