/* Every op by family: one line each. A family is an array of definitions ended by one without a
 * name: the layer, then its backward ops. */
#include "runtime/graph/ops/registry.h"

#include <string.h>

static const tr_op_def *const families[] = {
#define X(family) tr_ops_##family,
    TR_OP_FAMILIES(X)
#undef X
};

size_t tr_op_count(void)
{
    size_t n = 0;
    for (size_t f = 0; f < TR_COUNT(families); f++)
        for (const tr_op_def *d = families[f]; d->name; d++) n++;
    return n;
}

const tr_op_def *tr_op_at(size_t i)
{
    for (size_t f = 0; f < TR_COUNT(families); f++)
        for (const tr_op_def *d = families[f]; d->name; d++)
            if (i-- == 0) return d;
    return NULL;
}

const char *tr_op_def_name(const tr_op_def *d)
{
    return d->name;
}

const tr_op_def *tr_op_find(const char *name)
{
    for (size_t f = 0; f < TR_COUNT(families); f++)
        for (const tr_op_def *d = families[f]; d->name; d++)
            if (strcmp(d->name, name) == 0) return d;
    return NULL;
}
