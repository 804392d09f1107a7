/* Why layers stay as wide as they are, in words: products whose every channel must stay, by what
 * they must stay for. */
#include "optimize/prune/prune.h"

#include <stdio.h>
#include <string.h>

#include "runtime/graph/facts.h"

enum { NAMED = 4 }; /* of products that are held by the same */

/* The value that all channels of a product stay for; -1: some may go, or it is no product. */
static int holder_of(const tr_model *m, const tr_groups *g, const tr_layer *l)
{
    const size_t value = m->ninputs + (size_t)l->index;
    if (!tr_layer_product(l, NULL)) return -1;
    for (size_t e = g->first[value]; e < g->first[value + 1]; e++)
        if (g->unit[e] >= 0) return -1;
    return g->first[value] < g->first[value + 1] ? g->holder[g->first[value]] : -1;
}

static void say_why(const tr_model *m, size_t value, char *text, size_t size)
{
    if (value < m->ninputs) {
        snprintf(text, size, "as wide as input %s", m->inputs[value].name);
        return;
    }
    const tr_layer *l = &m->layers[value - m->ninputs];
    if (value + 1 == m->ninputs + m->nlayers)
        snprintf(text, size, "the model's output");
    else if (tr_layer_channels(l) == TR_CHANNELS_ROWS)
        snprintf(text, size, "in the stream of %s, an embedding", l->name);
    else if (tr_layer_channels(l) == TR_CHANNELS_HEADS)
        snprintf(text, size, "keys and values that all heads of %s share", l->name);
    else if (tr_layer_channels(l) == TR_CHANNELS_MIXED)
        snprintf(text, size, "%s needs all of its inputs", l->name);
    else
        snprintf(text, size, "%s has the weight of another layer", l->name);
}

void tr_groups_held(const tr_model *m, const tr_groups *g, char *text, size_t size)
{
    size_t end = 0;
    *text = 0;
    for (size_t value = 0; value < m->ninputs + m->nlayers; value++) {
        char part[NAMED * (TR_NAME + 2) + 2 * TR_NAME + 100], why[TR_NAME + 100];
        size_t n = 0, count = 0;
        for (size_t i = 0; i < m->nlayers; i++) {
            if (holder_of(m, g, &m->layers[i]) != (int)value || ++count > NAMED) continue;
            n += (size_t)snprintf(part + n, sizeof part - n, "%s%s", count > 1 ? ", " : "",
                                  m->layers[i].name);
        }
        if (!count) continue;
        if (count > NAMED)
            n += (size_t)snprintf(part + n, sizeof part - n, " and %zu more", count - NAMED);
        say_why(m, value, why, sizeof why);
        snprintf(part + n, sizeof part - n, " (%s)", why);
        if (end + strlen(part) + 3 > size) return;
        end += (size_t)snprintf(text + end, size - end, "%s%s", end ? "; " : "", part);
    }
}

bool tr_groups_have_factors(const tr_model *m, const tr_groups *g)
{
    for (size_t i = 0; i < m->nlayers; i++) {
        const size_t value = m->ninputs + i;
        if (!tr_layer_is_affine(&m->layers[i]) || !m->layers[i].nparams) continue;
        for (size_t e = g->first[value]; e < g->first[value + 1]; e++)
            if (g->unit[e] >= 0) return true;
    }
    return false;
}
