/* data.table.categories: auto: the different texts of a column of data.train. */
#include "runtime/data/csv.h"
#include "runtime/data/source.h"
#include "runtime/data/texts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static tr_status find_texts(const tr_config *c, const char *path, const char *name, tr_texts *out)
{
    tr_status st;
    tr_csv_lines l = {.file = {.fd = -1}};
    size_t at = 0;
    bool there, many;
    TR_TRY(tr_csv_lines_open(path, *c->data.table.delimiter, c->data.table.header, 0, &l));
    while (at < l.columns && strcmp(l.names[at], name) != 0) at++;
    TR_NEED(at < l.columns, TR_DATA, "%s: there is no column \"%.100s\" (data.table.categories)",
            path, name);
    for (;;) {
        TR_TRY(tr_csv_lines_next(&l, &there));
        if (!there) break;
        const char *text = tr_csv_trim(l.fields[at]);
        const char *odd = tr_csv_odd_byte(text);
        TR_NEED(!odd, TR_DATA,
                "%s:%" PRIu64 ": column \"%.60s\": byte 0x%02x is not UTF-8 text, as categories "
                "must be: store the table in that encoding",
                path, l.row, name, (unsigned char)*odd);
        if (!tr_csv_missing(text)) TR_TRY(tr_texts_add(out, text, &many));
    }
    TR_NEED(out->count > 0, TR_DATA, "%s: column \"%.100s\" is empty", path, name);
out:
    tr_csv_lines_close(&l);
    return st;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static tr_status write_sorted(const tr_texts *texts, FILE *to)
{
    tr_status st = TR_OK;
    size_t n = 0;
    const char **all = tr_alloc(TR_MEM_OTHER, texts->count, sizeof *all);
    TR_HAVE(all);
    for (size_t i = 0; i < texts->room; i++)
        if (texts->v[i].text) all[n++] = texts->v[i].text;
    qsort(all, n, sizeof *all, by_text);
    for (size_t i = 0; i < n; i++) {
        char *quoted = tr_yaml_quoted(all[i]);
        TR_HAVE(quoted);
        fprintf(to, "%s%s", i ? ", " : "[", quoted);
        tr_free(quoted);
    }
    fputc(']', to);
out:
    tr_free(all);
    return st;
}

tr_status tr_table_categories(const tr_config *c, const char *name, FILE *to)
{
    tr_status st;
    tr_texts all = {.most = SIZE_MAX};
    char *path = NULL;
    TR_REQUIRE(c->data.train.path, "data.table.categories", "data.train is no table");
    TR_HAVE(path = tr_config_path(c, c->data.train.path));
    st = find_texts(c, path, name, &all);
    if (st != TR_OK) st = tr_source_failed(c, &c->data.train, "data.train", st);
    TR_TRY(st);
    st = write_sorted(&all, to);
out:
    tr_texts_forget(&all);
    tr_free(path);
    return st;
}
