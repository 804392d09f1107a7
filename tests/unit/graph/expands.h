/* What a config's structures expand to. */
#ifndef TR_TEST_EXPANDS_H
#define TR_TEST_EXPANDS_H

#include "runtime/graph/maker.h"
#include "tests/unit/graph/models.h"

/* "type name<-inputs(output) ..." of all layers. */
static char *listed(const tr_model *m)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        char shape[TR_SHAPE_TEXT];
        fprintf(f, "%s%s %s", i ? "\n" : "", l->def->name, l->name);
        for (int k = 0; k < l->nin; k++) {
            const size_t v = (size_t)l->in[k];
            fprintf(f, "%s%s", k ? "," : "<-",
                    v < m->ninputs ? m->inputs[v].name : m->layers[v - m->ninputs].name);
        }
        fprintf(f, " %s", tr_shape_text(&l->output, shape));
    }
    fclose(f);
    return text;
}

static void expands(const char *model, const char *want)
{
    test_model t = test_model_open(model);
    char *got = listed(t.model);
    assert_string_equal(got, want);
    free(got);
    test_model_close(&t);
}

#endif
