/* What stages found comes back as it was, is shown, and is refused where it is damaged. */
#include "fixture.h"

static void fill_lineage(tr_lineage *l)
{
    static const char *const rows[] = {"conv2d1", "head", "a name with spaces"};
    const double kept[] = {0.5, 1, NAN}, error[] = {-1e300, 0, 3};
    tr_findings *f;
    assert_ok(tr_lineage_add(l, "00-train", &f));
    assert_ok(tr_attrs_add_count(&f->values, "parameters", 38122));
    assert_ok(tr_lineage_add(l, "01-prune", &f));
    assert_ok(tr_attrs_add_text(&f->values, "options", "amount: 0.5\n"));
    assert_ok(tr_attrs_add_real(&f->values, "loss", 1));
    assert_ok(tr_attrs_add_real(&f->values, "loss", 0.25)); /* takes its place */
    assert_ok(tr_attrs_add_count(&f->values, "parent_bytes", 12345));
    assert_ok(tr_findings_table(f, "layers", 3, rows));
    assert_ok(tr_findings_column(f, "kept", kept));
    assert_ok(tr_findings_column(f, "error", error));
    assert_ok(tr_findings_table(f, "none", 0, NULL));
    assert_ok(tr_findings_column(f, "column", NULL));
}

static void comes_back(void **state)
{
    fixture *f = *state;
    tr_lineage l = {0}, got;
    readback r;
    fill_lineage(&l);
    f->snapshot.lineage = &l;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    assert_ok(tr_store_verify(f->path, NULL));
    assert_ok(read_back(f, f->path, &r));
    assert_true(same_snapshot(f, &r));
    tr_history_free(&r.history);
    assert_ok(tr_lineage_read(f->path, &got));
    assert_int_equal(got.count, 2);
    assert_string_equal(got.v[0].stage, "00-train");
    assert_int_equal(tr_attrs_get(&got.v[0].values, "parameters")->u, 38122);
    const tr_findings *p = &got.v[1];
    assert_string_equal(p->stage, "01-prune");
    assert_int_equal(p->values.count, 3);
    assert_string_equal(tr_attrs_get(&p->values, "options")->text, "amount: 0.5\n");
    assert_true(tr_attrs_get(&p->values, "loss")->f == 0.25);
    assert_int_equal(p->ntables, 2);
    const tr_table *t = tr_findings_get(p, "layers");
    assert_string_equal(t->rows, "conv2d1\nhead\na name with spaces\n");
    assert_int_equal(t->ncolumns, 2);
    assert_string_equal(t->columns[0].name, "kept");
    assert_true(t->columns[0].v[0] == 0.5 && isnan(t->columns[0].v[2]));
    assert_true(t->columns[1].v[0] == -1e300 && t->columns[1].v[2] == 3);
    assert_int_equal(tr_findings_get(p, "none")->nrows, 0);
    tr_lineage_free(&got);
    tr_lineage_free(&l);
}

static void no_stages(void **state)
{
    fixture *f = *state;
    tr_lineage got;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    assert_ok(tr_lineage_read(f->path, &got));
    assert_int_equal(got.count, 0);
}

static char *shown(const char *path, bool json)
{
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    assert_ok(tr_store_inspect(path, json, 80, to));
    fclose(to);
    return text;
}

static void is_shown(void **state)
{
    fixture *f = *state;
    tr_lineage l = {0};
    fill_lineage(&l);
    f->snapshot.lineage = &l;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    char *text = shown(f->path, false), *json = shown(f->path, true);
    assert_non_null(strstr(text, "00-train                  38.1 k     12.3 kB"));
    assert_non_null(strstr(text, "a name with spaces"));
    assert_non_null(
        strstr(json, "{\"stage\": \"01-prune\", \"values\": {\"options\": \"amount: 0.5\\n\""));
    assert_non_null(strstr(json, "\"kept\": [0.5, 1, null]"));
    free(text);
    free(json);
    tr_lineage_free(&l);
}

/* Every byte of the stages' part flipped, one at a time: found, or it changed nothing that is
 * read. */
static void damage_is_found(void **state)
{
    fixture *f = *state;
    tr_lineage l = {0}, got;
    tr_index ix;
    size_t faults = 0;
    fill_lineage(&l);
    f->snapshot.lineage = &l;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    assert_ok(tr_index_open(f->path, &ix));
    const uint64_t at = tr_index_find(&ix, "/stages/01-prune/layers/error")->offset;
    const uint64_t end = ix.nbytes;
    tr_index_close(&ix);
    FILE *file = fopen(f->path, "r+b");
    for (uint64_t i = 0; i < end; i += i < at || i > at + 24 ? 23 : 1) {
        fseek(file, (long)i, SEEK_SET);
        const int byte = fgetc(file);
        fseek(file, (long)i, SEEK_SET);
        fputc(byte ^ 0x10, file);
        fflush(file);
        if (tr_lineage_read(f->path, &got) == TR_OK) {
            const tr_findings *p = got.count == 2 ? &got.v[1] : NULL;
            assert_non_null(p);
            assert_true(tr_attrs_get(&p->values, "loss")->f == 0.25);
            assert_true(tr_findings_get(p, "layers")->columns[1].v[0] == -1e300);
            tr_lineage_free(&got);
        } else
            faults++;
        fseek(file, (long)i, SEEK_SET);
        fputc(byte, file);
        fflush(file);
    }
    fclose(file);
    assert_true(faults > 24);
    tr_lineage_free(&l);
}

/* Where it is all that is wrong, inspect says so, the file's name once. */
static void damage_is_told(void **state)
{
    fixture *f = *state;
    tr_lineage l = {0};
    char *text = NULL, said[TR_ERROR_TEXT];
    size_t n;
    static const char fault[] = "/stages/02-fold: the attributes have no checksum (crc32c)";
    fill_lineage(&l);
    f->snapshot.lineage = &l;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    const hid_t file = H5Fopen(f->path, H5F_ACC_RDWR, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(file, "/stages/02-fold", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Fclose(file);
    FILE *to = open_memstream(&text, &n);
    assert_int_equal(tr_store_inspect(f->path, false, 80, to), TR_FILE);
    fclose(to);
    snprintf(said, sizeof said, "%s: damaged: %s", f->path, fault);
    assert_string_equal(tr_last_error()->text, said);
    snprintf(said, sizeof said, "\nDAMAGED: 1\n  the stages are not shown: %s\n", fault);
    assert_non_null(strstr(text, said));
    free(text);
    tr_lineage_free(&l);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fixture_open, fixture_close)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(comes_back), TEST(no_stages), TEST(is_shown),
                                       TEST(damage_is_found), TEST(damage_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
