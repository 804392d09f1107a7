#include "optimize/prune/ranked.h"

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
