/* A forward sum of two goes into the op that makes one of them, where that takes a residual, if
 * nothing else reads that one and the other is there in time. Backward passes are not
 * touched: none reads either. */
#include "runtime/graph/passes/passes.h"

/* The operand place of a residual, 0 where the op takes none. */
static int residual_place(const tr_graph *g, const tr_op *op)
{
    return op->def && !(g->mode == TR_MODE_TRAIN && op->def->residual_infer) ? op->def->residual
                                                                             : 0;
}

/* Which of the two operands can be taken over by its producer: the later one, -1 for none. */
static int choose(const tr_graph *g, const tr_uses *u, const tr_op *sum)
{
    int best = -1;
    for (int k = 0; k < 2; k++) {
        int mine = sum->in[k], other = sum->in[1 - k], p = u->producer[mine];
        if (p < 0 || u->readers[mine] != 1 || u->producer[other] >= p) continue;
        const tr_op *maker = &g->ops[p];
        int place = residual_place(g, maker);
        if (place == 0 || maker->in[place] >= 0 || maker->act != TR_ACT_NONE) continue;
        if (best < 0 || p > u->producer[sum->in[best]]) best = k;
    }
    return best;
}

tr_status tr_graph_pass_residual(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    tr_uses u;
    tr_status st = TR_OK;
    TR_TRY(tr_uses_open(g, &u));
    for (size_t i = 0; i < g->nops; i++) {
        tr_op *sum = &g->ops[i];
        if (!tr_is_sum_of_two(sum, TR_PHASE_FORWARD)) continue;
        int k = choose(g, &u, sum);
        if (k < 0) continue;
        int p = u.producer[sum->in[k]];
        tr_op *maker = &g->ops[p];
        maker->in[residual_place(g, maker)] = sum->in[1 - k];
        maker->out[0] = sum->out[0];
        u.producer[sum->out[0]] = p;
        sum->def = NULL;
        ++*found;
    }
    tr_ops_compact(g);
    tr_uses_close(&u);
out:
    return st;
}
