/* Memory over a run, from the plan's lifetimes: what lives at each op, and by name what lives when
 * most does. */
#include "optimize/profile/profile.h"

#include <stdlib.h>
#include <string.h>

static int by_size(const void *a, const void *b)
{
    const tr_profile_tensor *x = a, *y = b;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? 1 : -1;
    return strcmp(x->name, y->name);
}

static bool lives(const tr_plan_life *l, size_t op)
{
    return l->nbytes > 0 && l->first <= (int)op && l->last >= (int)op;
}

static tr_status name_tensors(const tr_plan *plan, size_t op, tr_profile *p)
{
    const tr_graph *g = tr_plan_graph(plan);
    size_t n = 0;
    for (size_t i = 0; i < tr_plan_lives(plan); i++) {
        const tr_plan_life l = tr_plan_life_at(plan, i);
        n += lives(&l, op);
    }
    p->tensors = tr_alloc(TR_MEM_OTHER, n, sizeof *p->tensors);
    if (!p->tensors) return tr_last_status();
    for (size_t i = 0; i < tr_plan_lives(plan); i++) {
        const tr_plan_life l = tr_plan_life_at(plan, i);
        if (!lives(&l, op)) continue;
        tr_profile_tensor *t = &p->tensors[p->ntensors++];
        *t = (tr_profile_tensor){.nbytes = (double)l.nbytes, .first = l.first, .last = l.last};
        if (l.tensor >= 0)
            snprintf(t->name, sizeof t->name, "%s", g->tensors[l.tensor].name);
        else
            snprintf(t->name, sizeof t->name, "%.40s scratch", g->ops[l.first].layer);
    }
    if (n > 0) qsort(p->tensors, n, sizeof *p->tensors, by_size);
    return TR_OK;
}

tr_status tr_profile_memory(const tr_plan *plan, const tr_session *session, tr_profile *p)
{
    tr_status st = TR_OK;
    const tr_graph *g = tr_plan_graph(plan);
    tr_memory_plan m;
    size_t most = 0, row = 0;
    double *live = tr_alloc(TR_MEM_OTHER, g->nops, sizeof *live);
    TR_HAVE(live);
    tr_session_memory(session, &m);
    p->arena = (double)m.arena;
    for (size_t i = 0; i < tr_plan_lives(plan); i++) {
        const tr_plan_life l = tr_plan_life_at(plan, i);
        for (int op = l.first < 0 ? 0 : l.first; l.nbytes > 0 && op <= l.last && op < (int)g->nops;
             op++)
            live[op] += (double)l.nbytes;
    }
    for (size_t i = 0; i < g->nops; i++) {
        if (live[i] > live[most]) most = i;
        if (tr_op_is_view(g, &g->ops[i])) continue;
        if (most == i) p->peak_row = row;
        p->rows[row++].live = live[i];
    }
    if (g->nops == 0) goto out;
    p->peak = live[most];
    TR_TRY(name_tensors(plan, most, p));
out:
    tr_free(live);
    return st;
}
