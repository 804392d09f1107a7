/* CSV tables: which columns are read, missing values, names; what data.split holds out. */
#include "helpers.h"
#include "runtime/data/csv.h"

static void write_text(const world *w, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", w->folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* A model of two values and two classes, trained on t.csv with labels "y". */
static void table_world(world *w, const char *text)
{
    world_open(w, 1, (int64_t[]){2}, 2);
    w->c.data.table.delimiter = ",";
    w->c.data.train = (tr_source_config){.present = true, .path = "t.csv", .labels = "y"};
    write_text(w, "t.csv", text);
}

static tr_dataset *opens_other(const world *w, const tr_source_config *s)
{
    tr_dataset *d = NULL;
    const tr_status st = tr_dataset_open(&w->c, s, &w->m, &d);
    if (st != TR_OK) fail_msg("%s: %s", tr_status_text(st), tr_last_error()->text);
    return d;
}

static void fails_other(const world *w, const tr_source_config *s, tr_status want, const char *text)
{
    tr_dataset *d = NULL;
    assert_int_equal(tr_dataset_open(&w->c, s, &w->m, &d), want);
    if (!strstr(tr_last_error()->text, text))
        fail_msg("no \"%s\" in: %s", text, tr_last_error()->text);
}

static const char plain[] = "\n\"a\",b,y\n1,2,0\n3,4,1\n";

/* Another table's columns come by name, in the order of data.train. */
static void column_order(void **state)
{
    (void)state;
    world w;
    table_world(&w, plain);
    w.c.data.predict = (tr_source_config){.present = true, .path = "p.csv"};
    w.c.data.eval = (tr_source_config){.present = true, .path = "e.csv", .labels = "y"};
    write_text(&w, "p.csv", "more,b,a\n9,20,10\n");
    write_text(&w, "e.csv", "y,b,a\n1,20,10\n");
    const tr_source_config *const others[] = {&w.c.data.predict, &w.c.data.eval};
    for (size_t i = 0; i < TR_COUNT(others); i++) {
        tr_dataset *d = opens_other(&w, others[i]);
        assert_true(input_at(d, 0, 0, 0) == 10 && input_at(d, 0, 0, 1) == 20);
        tr_dataset_close(d);
    }
    write_text(&w, "p.csv", "b,c\n20,10\n");
    fails_other(&w, &w.c.data.predict, TR_DATA, "there is no column \"a\"");
    w.c.data.train.path = "away.csv";
    fails_other(&w, &w.c.data.predict, TR_CONFIG, "data.predict.inputs");
    w.c.data.train.path = "t.csv";
    w.c.data.train.inputs = scalar(&w, 0, "c"); /* named there: the same here */
    w.inputs[0].dims[0] = 1;
    tr_dataset *d = opens_other(&w, &w.c.data.predict);
    assert_true(input_at(d, 0, 0, 0) == 10);
    tr_dataset_close(d);
    world_close(&w);
}

static void missing(void **state)
{
    (void)state;
    world w;
    table_world(&w, "a,b,y\n1,2,0\n3,4,NA\n,6,1\n");
    w.c.data.predict = (tr_source_config){.present = true, .path = "t.csv"};
    w.c.data.table.missing = TR_MISSING_DROP;
    tr_dataset *d = opens(&w);
    assert_int_equal(tr_dataset_samples(d), 1);
    tr_dataset_close(d);
    fails_other(&w, &w.c.data.predict, TR_DATA, "t.csv:4: column \"a\"");
    w.c.data.table.missing = TR_MISSING_ZERO;
    d = opens_other(&w, &w.c.data.predict);
    assert_true(input_at(d, 0, 2, 0) == 0 && input_at(d, 0, 2, 1) == 6);
    tr_dataset_close(d);
    fails(&w, TR_DATA, "t.csv:3: column \"y\"", NULL);
    w.inputs[0].ids = 9;
    fails_other(&w, &w.c.data.predict, TR_DATA, "t.csv:4: column \"a\"");
    world_close(&w);
}

static void same_names(void **state)
{
    (void)state;
    world w;
    table_world(&w, "a,b, a ,y\n1,2,3,0\n");
    fails(&w, TR_DATA, "columns 1 and 3 are both named \"a\"", NULL);
    enum { MANY = 5000 };
    char *text = calloc(MANY, 16), *to = text;
    assert_non_null(text);
    for (int i = 0; i < MANY; i++) to += sprintf(to, "c%d,", i);
    to += sprintf(to, "c7\n");
    for (int i = 0; i < MANY; i++) to += sprintf(to, "0,");
    sprintf(to, "0\n");
    write_text(&w, "t.csv", text);
    fails(&w, TR_DATA, "columns 8 and 5001 are both named \"c7\"", NULL);
    free(text);
    world_close(&w);
}

/* By rounds of the permutation that no epoch is shuffled by. */
static void split(void **state)
{
    (void)state;
    enum { N = 64 };
    world w;
    char text[N * 8 + 8] = "a,b,y\n", *to = text + strlen(text);
    for (int i = 0; i < N; i++) to += sprintf(to, "%d,0,%d\n", i, i % 2);
    table_world(&w, text);
    w.c.data.split = (tr_split_config){.present = true, .fraction = 0.25, .seed = 3};
    tr_dataset *d = opens_other(&w, &w.c.data.eval);
    assert_int_equal(tr_dataset_samples(d), N / 4);
    int of_epoch = 0;
    uint64_t at = 0;
    for (uint64_t i = 0; i < N; i++) {
        if (tr_permute(3, (uint64_t)1 << 61, N, i) >= N / 4) continue;
        assert_true(input_at(d, 0, at++, 0) == (double)i);
        of_epoch += tr_permute(3, 0, N, i) < N / 4;
    }
    assert_true(at == N / 4 && of_epoch < N / 4);
    tr_dataset_close(d);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(column_order),
        cmocka_unit_test(missing),
        cmocka_unit_test(same_names),
        cmocka_unit_test(split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
