/* What a stage's file says of it as text. */
#include <stdlib.h>
#include <string.h>

#include "trainer/pipeline/essence.h"
#include "trainer/pipeline/stage_run.h"

tr_status tr_stage_options_text(const tr_stage *s, const void *options, size_t from, char **out)
{
    size_t n;
    FILE *to = open_memstream(out, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "no memory for a stage's options");
    tr_status st = s->fields ? tr_fields_write(s->fields + from, options, 0, to) : TR_OK;
    if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "no memory for a stage's options");
    return st;
}

#define CONFIG "# config\n" /* what comes behind a stage's options */

tr_status tr_stage_inputs(const tr_frame *f, size_t place, char **text)
{
    tr_status st;
    char *options = NULL, *essence = NULL;
    const tr_list_item *item = &f->config->pipeline.items[place];
    TR_TRY(tr_stage_options_text(tr_stage_at(f->config, place), item->options, 0, &options));
    TR_TRY(tr_config_essence(f->config, false, &essence));
    *text = tr_sprintf("# options\n%s" CONFIG "%s", options, essence);
    TR_HAVE(*text);
out:
    free(options);
    tr_free(essence);
    return st;
}

typedef struct {
    char *out;
    size_t size, count;
} change;

static tr_status differs(void *ctx, const char *path, const tr_node *was, const tr_node *now)
{
    change *c = ctx;
    char before[80], after[80];
    tr_node_brief(was, before, sizeof before);
    tr_node_brief(now, after, sizeof after);
    if (c->count++ == 0) snprintf(c->out, c->size, "%s: %s, was %s", path, after, before);
    return TR_OK;
}

tr_status tr_stage_change(const char *path, const char *was, const char *is, char *out, size_t size)
{
    tr_status st;
    tr_document a = {NULL, NULL}, b = {NULL, NULL};
    change c = {out, size, 0};
    out[0] = 0;
    TR_TRY(tr_document_parse("what was", was, strlen(was), &a));
    TR_TRY(tr_document_parse("what is", is, strlen(is), &b));
    TR_TRY(tr_node_compare(path, a.root, b.root, differs, &c));
    const size_t n = strlen(out);
    if (c.count > 1) snprintf(out + n, size - n, ", and %zu more", c.count - 1);
out:
    tr_document_close(&a);
    tr_document_close(&b);
    return st;
}

tr_status tr_stage_inputs_change(const tr_stage *s, const char *was, const char *is, char *out,
                                 size_t size)
{
    tr_status st = TR_OK;
    const char *was_config = strstr(was, CONFIG), *is_config = strstr(is, CONFIG);
    char *before = tr_sprintf("%.*s", was_config ? (int)(was_config - was) : 0, was);
    char *after = tr_sprintf("%.*s", is_config ? (int)(is_config - is) : 0, is);
    TR_HAVE(before && after);
    TR_TRY(tr_stage_change(s->name, before, after, out, size));
    if (!out[0] && was_config && is_config)
        TR_TRY(tr_stage_change("", was_config, is_config, out, size));
out:
    tr_free(before);
    tr_free(after);
    return st;
}

tr_status tr_stage_config_text(const tr_config *c, char **text)
{
    tr_status st;
    size_t n;
    char *whole = NULL, *made = NULL;
    tr_document doc = {NULL, NULL};
    FILE *to = NULL;
    TR_TRY(tr_config_text(c, &whole));
    TR_TRY(tr_document_parse("resolved", whole, strlen(whole), &doc));
    to = open_memstream(&made, &n);
    TR_NEED(to, TR_MEMORY, "out of memory for a config");
    st = tr_node_write(doc.root, to);
    if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "out of memory for a config");
    TR_TRY(st);
    *text = made;
    made = NULL;
out:
    tr_document_close(&doc);
    free(whole);
    free(made);
    return st;
}
