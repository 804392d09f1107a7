/* What a stage's file says of it as text. */
#include <stdlib.h>
#include <string.h>

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

tr_status tr_stage_inputs(const tr_frame *f, size_t place, char **text)
{
    tr_status st;
    char *options = NULL, *essence = NULL;
    const tr_list_item *item = &f->config->pipeline.items[place];
    TR_TRY(tr_stage_options_text(tr_stages[item->which], item->options, 0, &options));
    TR_TRY(tr_config_essence(f->config, false, &essence));
    *text = tr_sprintf("# options\n%s# config\n%s", options, essence);
    TR_HAVE(*text);
out:
    free(options);
    tr_free(essence);
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
