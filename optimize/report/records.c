/* metrics.jsonl: each line is JSON, which is YAML in flow form. */
#include "optimize/report/records.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/config/config.h"

static tr_status add(tr_records *r, tr_document *d)
{
    if (r->count == r->cap) {
        const size_t cap = r->cap ? 2 * r->cap : 64;
        tr_document *grown = tr_realloc(TR_MEM_OTHER, r->records, cap, sizeof *grown);
        if (!grown) return tr_last_status();
        r->records = grown;
        r->cap = cap;
    }
    r->records[r->count++] = *d;
    *d = (tr_document){NULL, NULL};
    return TR_OK;
}

/* *text: NULL where there is no file. */
static tr_status read_file(const char *path, char **text)
{
    size_t n;
    int fd;
    if (!tr_file_there(path)) return TR_OK;
    tr_status st = tr_file_open(path, O_RDONLY, TR_DATA, &fd, NULL);
    if (st != TR_OK) return st;
    st = tr_file_read_all(fd, path, TR_DATA, text, &n);
    close(fd);
    return st;
}

tr_status tr_records_read(const char *path, const char *event, tr_records *out)
{
    tr_status st = TR_OK;
    char *text = NULL, *mark = event ? tr_sprintf("\"event\":\"%s\"", event) : tr_strdup("");
    tr_document d = {NULL, NULL};
    *out = (tr_records){0};
    TR_HAVE(mark);
    TR_TRY(read_file(path, &text));
    for (char *line = text, *next; line && *line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : NULL;
        if (end) *end = 0;
        if (!strstr(line, mark)) continue;
        st = tr_document_parse(path, line, strlen(line), &d);
        if (st == TR_OK) st = add(out, &d);
        if (st == TR_CONFIG) st = TR_OK; /* a part of a line, which a killed run left */
        TR_TRY(st);
    }
out:
    tr_document_close(&d);
    tr_free(text);
    tr_free(mark);
    if (st != TR_OK) tr_records_free(out);
    return st;
}

void tr_records_free(tr_records *r)
{
    for (size_t i = 0; i < r->count; i++) tr_document_close(&r->records[i]);
    tr_free(r->records);
    *r = (tr_records){0};
}

const char *tr_records_text(const tr_document *record, const char *key)
{
    const tr_node *n = tr_node_get(record->root, key);
    return n && n->kind == TR_NODE_SCALAR ? n->text : "";
}

double tr_records_real(const tr_document *record, const char *key)
{
    char *end;
    const char *text = tr_records_text(record, key);
    const double v = strtod(text, &end);
    return *text && !*end ? v : NAN;
}
