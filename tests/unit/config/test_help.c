/* The reference page names every key of the table, with its default, once. */
#include "tests/unit/config/good.h"
#include "runtime/config/internal.h"

static void mentions(const tr_field *fields, const char *path, const char *page);

/* The map's keys, or, where an earlier map of the table has the same, where these are told. */
static void mentions_map(const tr_field *fields, const tr_field *f, const char *path,
                         const char *page)
{
    char sub[TR_PATH], first[TR_PATH], text[2 * TR_PATH + 32];
    tr_path_join(path, f->key, sub);
    snprintf(text, sizeof text, "\n## `%s`\n", sub);
    assert_non_null(strstr(page, text));
    const tr_field *g = fields;
    while (g->fields != f->fields) g++;
    if (g == f) {
        mentions(f->fields, sub, page);
        return;
    }
    snprintf(text, sizeof text, "\n## `%s`\n\nKeys as of `%s`.\n", sub,
             tr_path_join(path, g->key, first));
    assert_non_null(strstr(page, text));
    snprintf(text, sizeof text, "| `%s.%s` | ", sub, f->fields->key);
    assert_null(strstr(page, text));
}

static void mentions(const tr_field *fields, const char *path, const char *page)
{
    for (const tr_field *f = fields; f && f->key; f++) {
        char sub[TR_PATH], deeper[TR_PATH], row[TR_PATH + 8];
        tr_path_join(path, f->key, sub);
        snprintf(row, sizeof row, "| `%s` | ", sub);
        assert_non_null(strstr(page, row));
        assert_true(f->doc && *f->doc);
        assert_non_null(strstr(page, f->doc));
        if (f->kind == TR_FIELD_MAP || f->kind == TR_FIELD_BLOCK)
            mentions_map(fields, f, path, page);
        for (const tr_variant_def *v = f->variants; v && v->name; v++)
            mentions(v->fields, tr_path_join(sub, v->name, deeper), page);
    }
}

static void test_help(void **state)
{
    (void)state;
    char *page = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&page, &n);
    tr_config_table table;
    tr_config_help(STAGES, to);
    fclose(to);
    mentions(tr_config_fields(STAGES, &table), "", page);
    assert_non_null(
        strstr(page, "| `pipeline` | a list of train, prune, quantize | `[train]` |  | "));
    assert_non_null(
        strstr(page, "| `train.batch` | an integer from 1 to 2147483647 | required | samples |"));
    assert_non_null(strstr(
        page, "\n## `data.train`\n\nAlso the keys of `data.eval`, `data.predict`.\n\n| key |"));
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_help)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
