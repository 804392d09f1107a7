/* A graph as text, one op a line: for tests and for looking. */
#include "runtime/graph/builder.h"

static void print_out(const tr_graph *g, const tr_op *op, int k, FILE *to)
{
    const int id = op->out[k];
    if (id < 0) {
        fputs(" -", to);
        return;
    }
    const tr_tensor *t = &g->tensors[id];
    fprintf(to, " %s%s(", op->adds >> k & 1 ? "+" : "", t->name);
    for (int i = 0; i < t->ndim; i++) fprintf(to, "%s%lld", i ? "," : "", (long long)t->dims[i]);
    fprintf(to, ")%s", t->role == TR_ROLE_SAVED ? "!" : "");
    if (t->alias >= 0) fprintf(to, "@%s", g->tensors[t->alias].name);
}

/* `op+act inputs -> outputs(dims)`; + before what is added to, ! after what the backward pass
 * keeps, @ before whose bytes it shares, `again` for recomputed ops, `bucket n` where one is
 * complete. */
void tr_graph_print(const tr_graph *g, FILE *to)
{
    static const char *const acts[] = {"",      "+relu",    "+gelu", "+gelu_tanh",
                                       "+silu", "+sigmoid", "+tanh"};
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        fprintf(to, "%s%s", op->def->name, acts[op->act]);
        for (int k = 0; k < op->nin; k++)
            fprintf(to, " %s", op->in[k] < 0 ? "-" : g->tensors[op->in[k]].name);
        fputs(" ->", to);
        for (int k = 0; k < op->nout; k++) print_out(g, op, k, to);
        if (op->recomputed) fputs(" again", to);
        if (op->bucket_ready >= 0) fprintf(to, " bucket %d", op->bucket_ready);
        fputc('\n', to);
    }
}
