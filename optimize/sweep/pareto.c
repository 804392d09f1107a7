/* The points that none dominates. */
#include "optimize/sweep/sweep.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    const double *v;
    size_t m, index;
} point;

static int lexicographic(const void *a, const void *b)
{
    const point *x = a, *y = b;
    for (size_t k = 0; k < x->m; k++)
        if (x->v[k] != y->v[k]) return x->v[k] < y->v[k] ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static bool dominates(const point *x, const point *y)
{
    bool smaller = false;
    for (size_t k = 0; k < x->m; k++) {
        if (x->v[k] > y->v[k]) return false;
        smaller |= x->v[k] < y->v[k];
    }
    return smaller;
}

static bool counts(const double *v, size_t m)
{
    for (size_t k = 0; k < m; k++)
        if (!isfinite(v[k])) return false;
    return true;
}

/* What dominates a point comes before it; and if anything does, something on the front does. */
tr_status tr_pareto_front(size_t n, size_t m, const double *v, const bool *in, bool *front)
{
    point *p = tr_alloc(TR_MEM_OTHER, n, sizeof *p);
    size_t count = 0, kept = 0;
    if (!p) return tr_last_status();
    for (size_t i = 0; i < n; i++) {
        front[i] = false;
        if ((!in || in[i]) && counts(v + i * m, m)) p[count++] = (point){v + i * m, m, i};
    }
    qsort(p, count, sizeof *p, lexicographic);
    for (size_t i = 0; i < count; i++) {
        bool dominated = false;
        for (size_t k = 0; k < kept && !dominated; k++) dominated = dominates(&p[k], &p[i]);
        if (dominated) continue;
        front[p[i].index] = true;
        p[kept++] = p[i];
    }
    tr_free(p);
    return TR_OK;
}
