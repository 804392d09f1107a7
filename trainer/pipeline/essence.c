#include "trainer/pipeline/essence.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/plan/choose.h"

/* Whether the line, the first of a top-level key's, begins one of those. */
static bool aside(const char *line, bool model)
{
    static const char *const keys[] = {
        "name:", "output:", "device:", "run:", "pipeline:", "model:"};
    for (size_t i = 0; i < TR_COUNT(keys) - model; i++)
        if (strncmp(line, keys[i], strlen(keys[i])) == 0) return true;
    return false;
}

tr_status tr_config_essence(const tr_config *c, bool model, char **text)
{
    tr_status st;
    bool skip = false;
    char *whole = NULL, *to;
    tr_config other = *c;
    other.directory = (char *)"/";
    other.train.recompute.kind.which = TR_RECOMPUTE_NONE;
    if (tr_chooses(c)) other.train.micro_batch = other.train.eval.batch = 0; /* by memory */
    TR_TRY(tr_config_text(&other, &whole));
    *text = to = tr_alloc(TR_MEM_OTHER, strlen(whole) + 1, 1);
    TR_HAVE(*text);
    for (const char *line = whole, *next; *line; line = next) {
        const char *end = strchr(line, '\n');
        next = end ? end + 1 : line + strlen(line);
        if (*line != ' ' && *line != '-') skip = aside(line, model);
        if (skip) continue;
        memcpy(to, line, (size_t)(next - line));
        to += next - line;
    }
out:
    free(whole);
    return st;
}
