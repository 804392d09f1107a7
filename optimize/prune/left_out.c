/* Weights that no mask is of, in words: how many, and of which layers. */
#include "optimize/prune/internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/graph/graph.h"

enum { NAMED = 4 }; /* layers of one kind */

/* Its own weights that are not looked at; *row: the first. */
static size_t left_out(const tr_model *m, const tr_mask_options *o, const tr_layer *l, int *row)
{
    size_t count = 0;
    const tr_param *taken = tr_mask_weight(m, o, l);
    for (int k = l->nparams; k-- > 0;) {
        const tr_param *p = &m->params[l->params[k]];
        if (!p->decay || p == taken || strcmp(p->layer, l->name) != 0) continue;
        *row = l->params[k];
        count += p->count;
    }
    return count;
}

static const char *kind_of(const tr_mask_options *o, const tr_layer *l)
{
    return tr_mask_kept(o, l->name) ? "`keep`" : tr_op_def_name(l->def);
}

static bool comes_first(const tr_model *m, const tr_mask_options *o, size_t i)
{
    int row;
    for (size_t j = 0; j < i; j++)
        if (left_out(m, o, &m->layers[j], &row) > 0 &&
            strcmp(kind_of(o, &m->layers[j]), kind_of(o, &m->layers[i])) == 0)
            return false;
    return true;
}

/* "embedding (token, tied to head)", of all layers from i on that are left out for the same. */
static void say_kind(const tr_model *m, const tr_mask_options *o, size_t i, char *text, size_t size)
{
    const char *kind = kind_of(o, &m->layers[i]);
    size_t count = 0, end = (size_t)snprintf(text, size, "%s (", kind);
    for (size_t j = i; j < m->nlayers; j++) {
        const tr_layer *l = &m->layers[j];
        int row;
        if (left_out(m, o, l, &row) == 0 || strcmp(kind_of(o, l), kind) != 0) continue;
        if (++count > NAMED) continue;
        const char *other = tr_model_user(m, (size_t)row, 1);
        end += (size_t)snprintf(text + end, size - end, "%s%s%s%s", count > 1 ? ", " : "", l->name,
                                other ? ", tied to " : "", other ? other : "");
    }
    if (count > NAMED)
        end += (size_t)snprintf(text + end, size - end, " and %zu more", count - NAMED);
    snprintf(text + end, size - end, ")");
}

tr_mask_reach tr_mask_reaches(const tr_model *m, const tr_mask_options *o, char *text, size_t size)
{
    tr_mask_reach reach = {0};
    size_t end = 0;
    *text = 0;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        const tr_param *taken = tr_mask_weight(m, o, l);
        char part[(2 * NAMED + 1) * (TR_NAME + 12)];
        int row;
        const size_t left = left_out(m, o, l, &row);
        reach.taken += taken ? taken->count : 0;
        reach.all += left + (taken ? taken->count : 0);
        if (left == 0 || !comes_first(m, o, i)) continue;
        say_kind(m, o, i, part, sizeof part);
        if (end + strlen(part) + 3 > size) continue;
        end += (size_t)snprintf(text + end, size - end, "%s%s", end ? ", " : "", part);
    }
    return reach;
}
