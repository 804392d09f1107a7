/* Layers that could have fewer bits but for what they are: why they keep floats. */
#include <stdio.h>
#include <string.h>

#include "optimize/quantize/internal.h"

enum { TEXT = 5 * TR_NAME }; /* of the names that are said */

static bool is_sketch(const tr_model *m, const tr_layer *l)
{
    tr_sketch_facts f;
    return tr_layer_sketch(m, l, &f);
}

/* Rounded for one of its layers, it would be so for the others. */
static bool is_shared(const tr_model *m, const tr_layer *l, bool int8)
{
    const tr_channels c = tr_layer_channels(l);
    const bool could = c == TR_CHANNELS_PRODUCT || (c == TR_CHANNELS_ROWS && !int8);
    return could && l->nparams > 0 && m->params[l->params[0]].uses > 1;
}

/* "a, b and 3 more" */
static size_t list(const tr_model *m, bool int8, bool sketches, char *text, size_t size)
{
    enum { SHOWN = 4 };
    size_t n = 0, length = 0;
    *text = 0;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        if (!(sketches ? is_sketch(m, l) : is_shared(m, l, int8))) continue;
        if (n++ < SHOWN && length < size)
            length +=
                (size_t)snprintf(text + length, size - length, "%s%s", n > 1 ? ", " : "", l->name);
    }
    if (n > SHOWN && length < size)
        snprintf(text + length, size - length, " and %zu more", n - SHOWN);
    return n;
}

size_t tr_quantize_floats(const tr_model *m, bool int8, char *why, size_t size)
{
    char sketches[TEXT], shared[TEXT];
    const size_t a = list(m, int8, true, sketches, sizeof sketches),
                 b = list(m, int8, false, shared, sizeof shared);
    snprintf(why, size, "%s%s%s%s%s", sketches,
             a == 0  ? ""
             : a > 1 ? " are sketches, which have no form in fewer bits"
                     : " is a sketch, which has no form in fewer bits",
             a > 0 && b > 0 ? "; " : "", shared,
             b == 0  ? ""
             : b > 1 ? " have weights that are other layers', too"
                     : " has a weight that is another layer's, too");
    return a + b;
}
