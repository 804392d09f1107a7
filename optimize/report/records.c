/* metrics.jsonl: each line is JSON, which is YAML in flow form. */
#include "optimize/report/records.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* A report can do without the file, and without a line that a killed run left; but nothing is left out for want of
 * memory. */
static tr_status memory_alone(tr_status st)
{
    return st == TR_MEMORY ? st : TR_OK;
}

tr_status tr_records_read(const char *path, const char *event, tr_records *out)
{
    tr_status st = TR_OK;
    char *text = NULL, *mark = event ? tr_sprintf("\"event\":\"%s\"", event) : tr_strdup("");
    size_t n;
    tr_document d = {NULL, NULL};
    *out = (tr_records){0};
    TR_HAVE(mark);
    TR_TRY(memory_alone(tr_read_text(path, &text, &n)));
    for (char *line = text, *next; line && *line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : NULL;
        if (end) *end = 0;
        if (!strstr(line, mark)) continue;
        st = tr_document_parse(path, line, strlen(line), &d);
        if (st == TR_OK) st = add(out, &d);
        TR_TRY(memory_alone(st));
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
