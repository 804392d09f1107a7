/* Every op by its place in the list, and the other way round. */
#include "runtime/graph/ops/registry.h"

static const tr_op_def *const ops[] = {
#define X(op, kernel) &tr_def_##op,
    TR_OPS(X)
#undef X
};

size_t tr_op_count(void)
{
    return TR_COUNT(ops);
}

const tr_op_def *tr_op_at(size_t i)
{
    return i < TR_COUNT(ops) ? ops[i] : NULL;
}

size_t tr_op_place(const tr_op_def *d)
{
    size_t i = 0;
    while (i < TR_COUNT(ops) && ops[i] != d) i++;
    return i;
}

const char *tr_op_def_name(const tr_op_def *d)
{
    return d->name;
}

const tr_op_def *tr_op_sum(void)
{
    for (size_t i = 0; i < TR_COUNT(ops); i++)
        if (ops[i]->sums) return ops[i];
    return NULL;
}
