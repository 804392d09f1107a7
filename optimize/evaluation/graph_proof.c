/* Passes over a graph, proven on data: the network answers without any, then with one more at a
 * time, in the order in which they run; what a pass finds depends on those before it alone, so each
 * is seen doing what it does when all run. Of n that find something that is n + 1 runs over the
 * samples. */
#include "optimize/evaluation/graph_proof.h"

#include "optimize/evaluation/internal.h"

enum {
    ALONE = 32
}; /* samples that are answered one at a time: graphs of one differ from those of more */

typedef struct {
    tr_evaluator *e;
    const tr_graph_proof *p;
    tr_graph_proven *out;
    int64_t batch;    /* samples at once; 0: as evaluations have */
    uint64_t samples; /* the first so many */
    float *v;         /* outputs with the passes before; owned */
} proof;

/* *Collective.* What the passes find in the graph of so many samples. */
static tr_status look(const proof *k, int64_t batch, size_t found[TR_GRAPH_PASSES])
{
    const tr_session_options o = {.model = k->p->network->model,
                                  .backend = k->e->backend,
                                  .backend_ctx = k->e->backend_ctx,
                                  .precision = k->e->precision,
                                  .ranks = 1,
                                  .skip_passes = k->p->skip | k->out->undone};
    const tr_plan_key key = {.mode = TR_MODE_INFER, .batch = batch};
    return tr_agree(k->e->o.comm, tr_session_passes(&o, key, found), NULL);
}

/* *Collective.* What the network answers with these passes; *v: as tr_outputs_how. */
static tr_status answer(const proof *k, unsigned passes, float **v, size_t *count)
{
    const tr_over_data how = {.source = k->p->source,
                              .samples = k->samples,
                              .batch = k->batch,
                              .skip_passes = TR_PASSES_ALL & ~passes,
                              .infer = true};
    return tr_outputs_how(k->e, k->p->network, k->p->config, &how, v, count);
}

/* *Collective.* One more pass beside those that are `on`. */
static tr_status add(proof *k, int pass, unsigned *on)
{
    tr_graph_proven *to = k->out;
    float *with = NULL;
    size_t count;
    const tr_status st = answer(k, *on | TR_PASS_IS(pass), &with, &count);
    if (st != TR_OK) return st;
    const double apart = tr_outputs_apart(k->v, with, count);
    if (!(apart <= to->difference[pass])) to->difference[pass] = apart;
    if (!(apart <= k->p->bound)) {
        to->undone |= TR_PASS_IS(pass);
        tr_free(with);
        return TR_OK;
    }
    *on |= TR_PASS_IS(pass);
    tr_free(k->v);
    k->v = with;
    return TR_OK;
}

/* *Collective.* All of them, on graphs of one number of samples. */
static tr_status prove(proof *k)
{
    tr_status st;
    unsigned on = 0;
    size_t count, found[TR_GRAPH_PASSES];
    const int64_t batch = k->batch > 0 ? k->batch : tr_evaluator_batch(k->e);
    TR_TRY(look(k, batch, found));
    TR_TRY(answer(k, 0, &k->v, &count));
    for (int i = 0; i < TR_GRAPH_PASSES; i++) {
        if (found[i] == 0) continue;
        const unsigned undone = k->out->undone;
        TR_TRY(add(k, i, &on));
        if (k->out->undone != undone) TR_TRY(look(k, batch, found)); /* others find other things */
    }
out:
    tr_free(k->v);
    k->v = NULL;
    return st;
}

tr_status tr_graph_prove(tr_evaluator *e, const tr_graph_proof *p, tr_graph_proven *out)
{
    tr_status st;
    proof k = {.e = e, .p = p, .out = out, .samples = p->samples};
    *out = (tr_graph_proven){.undone = 0};
    TR_TRY(prove(&k));
    k.batch = 1;
    k.samples = p->samples < ALONE ? p->samples : ALONE;
    TR_TRY(prove(&k));
    st = look(&k, 1, out->found);
out:
    return st;
}
