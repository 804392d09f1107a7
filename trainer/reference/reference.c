/* The reference of all keys. */
#include "trainer/reference/reference.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/graph/graph.h"
#include "trainer/stages/stages.h"
#include "trainer/sweep/sweep.h"

void tr_reference_write(FILE *to)
{
    tr_variant_def stages[TR_STAGES + 1];
    tr_stages_known(stages);
    tr_config_help(stages, to);
    tr_layers_help(to);
    tr_sweep_help(to);
}

char *tr_text_of(void (*write)(FILE *to))
{
    char *text = NULL, *kept = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    if (!to) return NULL;
    write(to);
    if (fclose(to) == 0 && (kept = tr_alloc(TR_MEM_OTHER, n + 1, 1))) memcpy(kept, text, n);
    free(text);
    return kept;
}
