/* A backward op that sweeps over the gradient at its first operand anyway takes on what comes right
 * before, where it can (tr_op_def.absorbs): a mask and the sum of two gradients. The masked sum,
 * its first output, then also serves whoever else read it: the other side of a residual. With
 * batchnorm,
 *
 *     s = add(a, b); du = relu.grad(s, y); dz = grad_stats(du, ...); ... du ...
 *     dz = grad_stats(a, ..., y, b); ... dz ... */
#include "runtime/graph/passes/passes.h"

/* Who reads a tensor and who shares its bytes, as linked lists. They are made once: a tensor that
 * is replaced was made by a mask or a sum, and folding gives such a tensor no new readers but
 * the op at hand. Entries that folding has outdated are recognized by the operand itself. */
typedef struct {
    tr_uses u;
    int *reader, *next_reader; /* [ntensors], [nops * TR_MAX_IN]: op * TR_MAX_IN + operand; -1 */
    int *member, *next_member; /* [ntensors] each: tensors whose root this one is; -1 */
} lists;

static tr_status open_lists(const tr_graph *g, lists *l)
{
    tr_status st = TR_OK;
    TR_TRY(tr_uses_open(g, &l->u));
    l->reader = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(int));
    l->next_reader = tr_alloc(TR_MEM_OTHER, g->nops * TR_MAX_IN, sizeof(int));
    l->member = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(int));
    l->next_member = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof(int));
    if (!l->reader || !l->next_reader || !l->member || !l->next_member) return tr_last_status();
    for (size_t t = 0; t < g->ntensors; t++) l->reader[t] = l->member[t] = -1;
    for (size_t i = 0; i < g->nops; i++)
        for (int k = 0; k < g->ops[i].nin; k++) {
            const int id = g->ops[i].in[k], use = (int)i * TR_MAX_IN + k;
            if (id < 0) continue;
            l->next_reader[use] = l->reader[id];
            l->reader[id] = use;
        }
    for (size_t t = 0; t < g->ntensors; t++) {
        const int root = g->tensors[t].alias;
        if (root < 0) continue;
        l->next_member[t] = l->member[root];
        l->member[root] = (int)t;
    }
out:
    return st;
}

static void close_lists(lists *l)
{
    tr_uses_close(&l->u);
    tr_free(l->reader);
    tr_free(l->next_reader);
    tr_free(l->member);
    tr_free(l->next_member);
}

/* Every reader of `old` after op `at`, and all that shares its bytes, turns to `id`. */
static void replace(tr_graph *g, const lists *l, size_t at, int old, int id)
{
    for (int use = l->reader[old]; use >= 0; use = l->next_reader[use]) {
        tr_op *op = &g->ops[use / TR_MAX_IN];
        int *in = &op->in[use % TR_MAX_IN];
        if ((size_t)(use / TR_MAX_IN) > at && *in == old) *in = id;
    }
    for (int t = l->member[old]; t >= 0; t = l->next_member[t])
        if (g->tensors[t].alias == old) g->tensors[t].alias = id;
    g->tensors[id].alias = -1;
}

static tr_op *maker_of(tr_graph *g, const tr_uses *u, int tensor)
{
    return u->producer[tensor] < 0 ? NULL : &g->ops[u->producer[tensor]];
}

/* How many ops it takes on. */
static size_t fold(tr_graph *g, const lists *l, size_t at)
{
    const tr_uses *u = &l->u;
    tr_op *op = &g->ops[at];
    const tr_absorbs *can = &op->def->absorbs;
    int dy = op->in[0], dz = op->out[0];
    tr_op *maker = maker_of(g, u, dy);
    size_t taken = 0;
    if (!maker || u->first[dy] != (int)at) return 0;
    if (can->mask && maker->def && maker->def->masks) {
        int src = maker->in[0];
        op->in[0] = src;
        op->in[can->mask] = maker->in[1];
        maker->def = NULL;
        replace(g, l, at, dy, dz);
        maker = maker_of(g, u, src);
        if (!can->second || !maker || !tr_is_sum_of_two(maker, TR_PHASE_BACKWARD) ||
            u->readers[src] != 1)
            return 1;
        taken = 1;
    } else if (can->second && tr_is_sum_of_two(maker, TR_PHASE_BACKWARD)) {
        replace(g, l, at, dy, dz);
    } else {
        return 0;
    }
    op->in[0] = maker->in[0];
    op->in[can->second] = maker->in[1];
    maker->def = NULL;
    return taken + 1;
}

tr_status tr_graph_pass_gradient(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    lists l = {0};
    tr_status st = TR_OK;
    TR_TRY(open_lists(g, &l));
    for (size_t i = 0; i < g->nops; i++)
        if (g->ops[i].def && (g->ops[i].def->absorbs.mask || g->ops[i].def->absorbs.second))
            *found += fold(g, &l, i);
    tr_ops_compact(g);
out:
    close_lists(&l);
    return st;
}
