#include "optimize/prune/internal.h"

#include <stdlib.h>

static int by_score(const void *a, const void *b)
{
    const tr_ranked *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

void tr_rank(tr_ranked *v, size_t n)
{
    qsort(v, n, sizeof *v, by_score);
}

tr_status tr_prune_agree(const tr_structured_options *o, tr_status st)
{
    return o->agree ? o->agree(o->ctx, st) : st;
}
