/* CSV tables: which columns are read, missing values, names; what data.split holds out. */
#include "table.h"

#include "tests/unit/groups.h"

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

/* How many of each class: whole numbers by the largest remainders, of equal ones those of the first
 * classes. */
static void remainders(const uint64_t *n, size_t classes, uint64_t samples, uint64_t held,
                       uint64_t *out)
{
    double rest[400];
    for (size_t k = 0; k < classes; k++) {
        const double exact = (double)held * (double)n[k] / (double)samples;
        out[k] = (uint64_t)floor(exact);
        rest[k] = exact - floor(exact);
    }
    for (uint64_t given = 0; given < held; given++) {
        size_t best = 0;
        uint64_t sum = 0;
        for (size_t k = 0; k < classes; k++) sum += out[k];
        if (sum == held) break;
        for (size_t k = 1; k < classes; k++)
            if (rest[k] > rest[best]) best = k;
        out[best]++;
        rest[best] = -1;
    }
}

/* Of each class by a permutation of its own, by rounds of the permutation that no epoch is shuffled
 * by. Many classes, of none, one and several samples, of which many have the same remainder. */
static void stratified(void **state)
{
    (void)state;
    enum { N = 900, K = 400 };
    static const double fractions[] = {0.5, 0.1, 0.37, 0.0001, 0.9999};
    static char text[N * 16];
    uint64_t n[K] = {0}, held[K], place[K];
    int of[N];
    char *to = text + sprintf(text, "a,b,y\n");
    world w;
    for (int i = 0; i < N; i++) {
        of[i] = i % 3 ? i * i % 97 * 4 % K : i / 3;
        n[of[i]]++;
        to += sprintf(to, "%d,0,%d\n", i, of[i]);
    }
    table_world(&w, text);
    w.m.outputs = w.m.classes = K;
    for (size_t f = 0; f < TR_COUNT(fractions); f++) {
        w.c.data.split = (tr_split_config){
            .present = true, .stratify = true, .fraction = fractions[f], .seed = 3};
        uint64_t all = (uint64_t)llround(N * fractions[f]), at = 0;
        all = all < 1 ? 1 : all > N - 1 ? N - 1 : all;
        remainders(n, K, N, all, held);
        memset(place, 0, sizeof place);
        tr_dataset *d = opens_other(&w, &w.c.data.eval);
        assert_int_equal(tr_dataset_samples(d), all);
        for (int i = 0; i < N; i++) {
            const uint64_t k = (uint64_t)of[i];
            if (tr_permute(3, ((uint64_t)1 << 61) + k, n[k], place[k]++) < held[k])
                assert_true(input_at(d, 0, at++, 0) == (double)i);
        }
        assert_int_equal(at, all);
        tr_dataset_close(d);
    }
    world_close(&w);
}

/* ---- pandas ---------------------------------------------------------------------------------- */

static char *attribute(hid_t at, const char *name)
{
    const hid_t a = H5Aopen(at, name, H5P_DEFAULT), type = H5Aget_type(a);
    char *text = calloc(H5Tget_size(type) + 1, 1);
    assert_true(a >= 0 && text);
    assert_true(H5Aread(a, type, text) >= 0);
    H5Tclose(type);
    H5Aclose(a);
    return text;
}

/* All of a dataset; *n: values. */
static void *values(hid_t at, const char *name, hid_t type, size_t size, size_t *n)
{
    const hid_t d = H5Dopen2(at, name, H5P_DEFAULT), space = H5Dget_space(d);
    assert_true(d >= 0 && space >= 0);
    *n = (size_t)H5Sget_simple_extent_npoints(space);
    void *v = calloc(*n + 1, size);
    assert_non_null(v);
    assert_true(H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0);
    H5Sclose(space);
    H5Dclose(d);
    return v;
}

/* The texts that are found in column "t" are those of pandas. */
static void same_categories(const world *w, const char *name, const tr_node *want)
{
    char *text = NULL, *line;
    size_t n;
    tr_document doc;
    FILE *to = open_memstream(&text, &n);
    assert_non_null(to);
    assert_int_equal(tr_table_categories(&w->c, "t", to), TR_OK);
    fclose(to);
    line = calloc(n + 8, 1);
    assert_non_null(line);
    sprintf(line, "t: %s\n", text);
    assert_int_equal(tr_document_parse("found", line, strlen(line), &doc), TR_OK);
    const tr_node *got = tr_node_get(doc.root, "t");
    if (got->count != want->count) fail_msg("%s: %s", name, text);
    for (size_t i = 0; i < got->count; i++)
        assert_string_equal(got->values[i]->text, want->values[i]->text);
    tr_document_close(&doc);
    free(line);
    free(text);
}

/* tests/golden/tables.h5: numbers, quotes, missing values and texts are what pandas makes of
 * them. */
static void as_pandas(hid_t at, const char *name)
{
    size_t bytes, nx, ny;
    world w;
    tr_document doc;
    double zero = 0;
    char *text = values(at, "text", H5T_NATIVE_UCHAR, 1, &bytes);
    float *x = values(at, "x", H5T_NATIVE_FLOAT, sizeof *x, &nx);
    int32_t *y = values(at, "y", H5T_NATIVE_INT32, sizeof *y, &ny);
    char *inputs = attribute(at, "inputs"), *texts = attribute(at, "categories");
    char *delimiter = attribute(at, "delimiter"), config[1024];
    const hid_t a = H5Aopen(at, "zero", H5P_DEFAULT);
    assert_true(a >= 0 && H5Aread(a, H5T_NATIVE_DOUBLE, &zero) >= 0);
    H5Aclose(a);
    snprintf(config, sizeof config, "inputs: %s\ncategories: {t: %s}\n", inputs, texts);
    assert_int_equal(tr_document_parse(name, config, strlen(config), &doc), TR_OK);
    table_world(&w, "");
    write_bytes(&w, "t.csv", text, bytes);
    const int64_t width = (int64_t)(nx / ny);
    w.inputs[0].dims[0] = width;
    w.m.outputs = w.m.classes = 3;
    w.c.data.table.delimiter = delimiter;
    w.c.data.table.missing = zero != 0 ? TR_MISSING_ZERO : TR_MISSING_DROP;
    w.c.data.train.inputs = tr_node_get(doc.root, "inputs");
    const tr_node *categories = tr_node_get(doc.root, "categories");
    if (tr_node_get(categories, "t")->count > 0) {
        same_categories(&w, name, tr_node_get(categories, "t"));
        w.c.data.table.categories = categories;
    }
    tr_dataset *d = opens(&w);
    assert_int_equal(tr_dataset_samples(d), ny);
    for (size_t i = 0; i < nx; i++) {
        const double got = (float)input_at(d, 0, i / (size_t)width, i % (size_t)width);
        if (got != (double)x[i])
            fail_msg("%s: value %zu is %.9g, not %.9g", name, i, got, (double)x[i]);
    }
    for (size_t i = 0; i < ny; i++) assert_true(target_at(d, i, 0) == (double)y[i]);
    tr_dataset_close(d);
    world_close(&w);
    tr_document_close(&doc);
    free(delimiter);
    free(texts);
    free(inputs);
    free(y);
    free(x);
    free(text);
}

static void pandas(void **state)
{
    (void)state;
    const hid_t f = H5Fopen(TR_SOURCE_DIR "/tests/golden/tables.h5", H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(test_each_group(f, as_pandas) >= 10);
    H5Fclose(f);
}

/* ---- Size ------------------------------------------------------------------------------------ */

/* Only what is used counts, however large the file is, and what does not fit is refused with what
 * would help; the memory that is counted is what is held. */
static void size(void **state)
{
    (void)state;
    enum { N = 40000, EACH = 3 * 4 + 2 * 8 };
    world w;
    char *text = calloc(N, 64), *to = text;
    assert_non_null(text);
    to += sprintf(to, "note,a,b,y\n");
    for (int i = 0; i < N; i++)
        to += sprintf(to, "\"a long text, not used, %08d\",%d,%d,%d\n", i, i, i % 7, i % 2);
    table_world(&w, text);
    free(text);
    w.nodes[0] = (tr_node){.kind = TR_NODE_LIST, .count = 2, .values = w.values};
    w.values[0] = scalar(&w, 1, "a");
    w.values[1] = scalar(&w, 2, "b");
    w.c.data.train.inputs = &w.nodes[0];
    w.c.data.cache_mb = 1; /* 1.6 MB while it is read, then 1.12; the file has 1.7 */
    fails(&w, TR_DATA, "40000 lines of 40 bytes in memory each", "raise data.cache_mb", NULL);
    w.c.data.cache_mb = 2;
    const size_t before = tr_mem_held(TR_MEM_DATA);
    for (int part = 0; part < 3; part++) {
        w.c.data.split = (tr_split_config){.present = part == 1, .fraction = 0.25, .seed = 3};
        w.c.data.train.offset = part == 2 ? 100 : 0;
        tr_dataset *d = opens(&w);
        assert_int_equal(tr_dataset_held(d), tr_mem_held(TR_MEM_DATA) - before);
        if (part == 0) assert_int_equal(tr_dataset_held(d), N * EACH);
        assert_true(input_at(d, 0, 5, 0) > 4);
        tr_dataset_close(d);
    }
    world_close(&w);
}

static void targets(void **state)
{
    (void)state;
    world w;
    table_world(&w, "a,p,b,q,n\n1,0.5,2,-3,1\n4,6,5,7.25,2\n7,NA,8,9,1\n");
    world_targets(&w, 1, (int64_t[]){2});
    w.m.loss_config.weighted = true;
    w.nodes[0] = (tr_node){.kind = TR_NODE_LIST, .count = 2, .values = w.values};
    w.values[0] = scalar(&w, 1, "q");
    w.values[1] = scalar(&w, 2, "p");
    w.c.data.train.labels = NULL;
    w.c.data.train.targets = &w.nodes[0];
    w.c.data.train.weights = "n";
    fails(&w, TR_DATA, "t.csv:4: column \"p\": found \"NA\", expected a value", NULL);
    w.c.data.table.missing = TR_MISSING_ZERO; /* there is no 0 for an answer */
    fails(&w, TR_DATA, "t.csv:4: column \"p\"", NULL);
    w.c.data.table.missing = TR_MISSING_DROP;
    tr_dataset *d = opens(&w);
    assert_int_equal(tr_dataset_samples(d), 2);
    static const double want[2][4] = {{1, 2, -3, 0.5}, {4, 5, 7.25, 6}};
    for (uint64_t i = 0; i < 2; i++)
        for (size_t k = 0; k < 2; k++)
            assert_true(input_at(d, 0, i, k) == want[i][k] && target_at(d, i, k) == want[i][2 + k]);
    tr_dataset_close(d);
    world_close(&w);
}

/* A category is found by its text among many, in whatever order they are named; of two of one text
 * the first one counts. */
static void many_categories(void **state)
{
    (void)state;
    enum { N = 1000 };
    static char names[N + 1][8], text[N * 16];
    static tr_node node[N + 3], *all[N + 1];
    tr_node *key = &node[N + 1], *list = &node[N + 2];
    char *to = text + sprintf(text, "a,b,y\n");
    world w;
    for (int i = 0; i < N; i++) {
        sprintf(names[i], "t%d", i * 7 % N);
        to += sprintf(to, "%d,0,t%d\n", i, i);
    }
    strcpy(names[N], "t5");
    for (int i = 0; i <= N; i++) {
        node[i] = (tr_node){.kind = TR_NODE_SCALAR, .text = names[i]};
        all[i] = &node[i];
    }
    *list = (tr_node){.kind = TR_NODE_LIST, .count = N + 1, .values = all};
    *key = (tr_node){.kind = TR_NODE_SCALAR, .text = (char *)"y"};
    table_world(&w, text);
    w.nodes[0] = (tr_node){.kind = TR_NODE_MAP, .count = 1, .keys = w.keys, .values = w.values};
    w.keys[0] = key;
    w.values[0] = list;
    w.c.data.table.categories = &w.nodes[0];
    w.m.outputs = w.m.classes = N;
    tr_dataset *d = opens(&w);
    for (int i = 0; i < N; i++) assert_true((int)target_at(d, (uint64_t)(i * 7 % N), 0) == i);
    tr_dataset_close(d);
    write_text(&w, "t.csv", "a,b,y\n1,2,t5\n1,2,t1000\n");
    fails(&w, TR_DATA, "t.csv:3: column \"y\": found \"t1000\", expected one of", NULL);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(column_order), cmocka_unit_test(missing),
        cmocka_unit_test(same_names),   cmocka_unit_test(split),
        cmocka_unit_test(stratified),   cmocka_unit_test(many_categories),
        cmocka_unit_test(pandas),       cmocka_unit_test(size),
        cmocka_unit_test(targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
