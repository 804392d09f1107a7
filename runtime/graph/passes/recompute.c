/* Recomputation (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"): of a block of
 * layers only what other blocks read is kept; the rest of what its backward ops need is computed
 * once more, from that, right before the first of them. Batchnorm statistics are kept: they are
 * small, and merging them again would be another collective. The last block is left as it is where
 * the loss follows it, for its backward pass comes at once; with layers behind it (a norm, a head)
 * it is recomputed too, so that it does not lie beside what those need. Segments that were chosen
 * (runtime/plan/segments.c) are taken as they are. */
#include "runtime/graph/passes/passes.h"
#include "runtime/graph/maker.h"

#include <math.h>

typedef struct {
    tr_builder *b;
    int loss;   /* the loss op: forward ops stand before it */
    int *block; /* by forward op; -1: in none */
    int *owner; /* by tensor: the forward op that makes it, -1 */
    bool *kept; /* by tensor: stays until the backward pass */
    bool *need; /* by tensor: to be made again */
    int *again; /* by tensor: the one made again, -1 */
    size_t nold;
} plan;

static int layer_block(const tr_builder *b, bool by_blocks, int64_t every, int layer)
{
    if (by_blocks) return b->g->model->layers[layer].block;
    return (int)(layer / every);
}

static void find_blocks(plan *p)
{
    const tr_builder *b = p->b;
    const tr_model *m = b->g->model;
    bool by_blocks = false;
    int64_t every = b->o->recompute_every;
    if (b->o->recompute == TR_RECOMPUTE_BLOCKS) {
        for (size_t l = 0; l < m->nlayers; l++) by_blocks |= m->layers[l].block >= 0;
        every = (int64_t)lround(sqrt((double)m->nlayers));
    }
    if (every < 1) every = 1;
    if (b->o->recompute == TR_RECOMPUTE_SEGMENTS) {
        for (int i = 0; i < p->loss; i++)
            p->block[i] = b->o->recompute_segments[b->g->ops[i].layer_index];
        return;
    }
    for (int i = 0; i < p->loss; i++)
        p->block[i] = layer_block(b, by_blocks, every, b->g->ops[i].layer_index);
    if (p->loss == 0) return;
    int last = p->block[p->loss - 1];
    for (int i = 0; i < p->loss; i++)
        if (p->block[i] == last) p->block[i] = -1;
}

static void find_kept(plan *p)
{
    const tr_graph *g = p->b->g;
    for (size_t t = 0; t < p->nold; t++) p->owner[t] = p->again[t] = -1;
    for (int i = 0; i < p->loss; i++)
        for (int k = 0; k < g->ops[i].nout; k++)
            if (g->ops[i].out[k] >= 0) p->owner[g->ops[i].out[k]] = i;
    for (size_t t = 0; t < p->nold; t++)
        p->kept[t] =
            p->owner[t] < 0 || p->block[p->owner[t]] < 0 || tr_op_made_once(&g->ops[p->owner[t]]);
    p->kept[g->logits] = true;
    for (int i = 0; i <= p->loss; i++)
        for (int k = 0; k < g->ops[i].nin; k++) {
            int t = g->ops[i].in[k];
            if (t < 0 || p->owner[t] < 0) continue;
            if (i == p->loss || p->block[i] != p->block[p->owner[t]]) p->kept[t] = true;
        }
    /* further losses stand behind the first: what they read stays as well */
    for (size_t i = (size_t)p->loss + 1; i < g->nops && g->ops[i].phase == TR_PHASE_LOSS; i++)
        for (int k = 0; k < g->ops[i].nin; k++)
            if (g->ops[i].in[k] >= 0) p->kept[g->ops[i].in[k]] = true;
}

/* What backward ops read, and what it takes to make that. */
static size_t find_needed(plan *p)
{
    const tr_graph *g = p->b->g;
    size_t n = 0;
    for (size_t i = g->nops; i-- > 0;) {
        const tr_op *op = &g->ops[i];
        bool wanted = (int)i > p->loss;
        for (int k = 0; (int)i < p->loss && k < op->nout; k++)
            wanted |= op->out[k] >= 0 && p->need[op->out[k]];
        if (!wanted) continue;
        n += (int)i < p->loss;
        for (int k = 0; k < op->nin; k++)
            if (op->in[k] >= 0 && !p->kept[op->in[k]]) p->need[op->in[k]] = true;
    }
    return n;
}

static void append(plan *p, const tr_op *op)
{
    tr_graph *g = p->b->g;
    tr_op *copy = &g->ops[g->nops++];
    *copy = *op;
    for (int k = 0; k < op->nin; k++)
        if (op->in[k] >= 0 && p->again[op->in[k]] >= 0) copy->in[k] = p->again[op->in[k]];
}

static void append_again(plan *p, const tr_op *old, int block)
{
    tr_graph *g = p->b->g;
    for (int i = 0; i < p->loss; i++) {
        const tr_op *op = &old[i];
        bool wanted = false;
        for (int k = 0; k < op->nout; k++) wanted |= op->out[k] >= 0 && p->need[op->out[k]];
        if (p->block[i] != block || !wanted) continue;
        append(p, op);
        tr_op *copy = &g->ops[g->nops - 1];
        copy->recomputed = true;
        copy->phase = TR_PHASE_BACKWARD;
        for (int k = 0; k < op->nout; k++) {
            if (op->out[k] < 0) continue;
            const tr_tensor t = g->tensors[op->out[k]];
            copy->out[k] = tr_build_like(p->b, t.name, "again", t.dtype, op->out[k]);
        }
        for (int k = 0; k < op->nout; k++)
            if (op->out[k] >= 0) p->again[op->out[k]] = copy->out[k];
    }
}

/* The list once more, with each block's forward ops before its first backward op that needs
 * them. */
static tr_status rebuild(plan *p, size_t extra)
{
    tr_graph *g = p->b->g;
    tr_status st = TR_OK;
    size_t n = g->nops;
    TR_TRY(tr_build_reserve(p->b, extra * TR_MAX_OUT, extra));
    tr_op *old = tr_alloc(TR_MEM_OTHER, n, sizeof *old);
    if (!old) return tr_last_status();
    for (size_t i = 0; i < n; i++) old[i] = g->ops[i];
    g->nops = 0;
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; (int)i > p->loss && k < old[i].nin; k++) {
            int t = old[i].in[k];
            if (t >= 0 && (size_t)t < p->nold && p->need[t] && p->again[t] < 0)
                append_again(p, old, p->block[p->owner[t]]);
        }
        if ((int)i <= p->loss)
            g->ops[g->nops++] = old[i];
        else
            append(p, &old[i]);
    }
    tr_free(old);
    st = p->b->st;
out:
    return st;
}

tr_status tr_graph_pass_recompute(tr_builder *b, size_t *found)
{
    tr_graph *g = b->g;
    const int kind = b->o->recompute;
    if (kind == TR_RECOMPUTE_NONE || kind == TR_RECOMPUTE_AUTO) return TR_OK;
    if (kind == TR_RECOMPUTE_SEGMENTS && !b->o->recompute_segments) return TR_OK;
    tr_status st = TR_OK;
    plan p = {.b = b, .nold = g->ntensors};
    while (g->ops[p.loss].phase != TR_PHASE_LOSS) p.loss++;
    p.block = tr_alloc(TR_MEM_OTHER, (size_t)p.loss, sizeof *p.block);
    p.owner = tr_alloc(TR_MEM_OTHER, p.nold, sizeof *p.owner);
    p.kept = tr_alloc(TR_MEM_OTHER, p.nold, sizeof *p.kept);
    p.need = tr_alloc(TR_MEM_OTHER, p.nold, sizeof *p.need);
    p.again = tr_alloc(TR_MEM_OTHER, p.nold, sizeof *p.again);
    TR_HAVE(p.block && p.owner && p.kept && p.need && p.again);
    find_blocks(&p);
    find_kept(&p);
    size_t extra = find_needed(&p);
    if (extra) TR_TRY(rebuild(&p, extra));
    *found += extra;
out:
    tr_free(p.block);
    tr_free(p.owner);
    tr_free(p.kept);
    tr_free(p.need);
    tr_free(p.again);
    return st;
}
