/* A model with sketched layers in the place of dense ones: model.sketch, and the stage that does
 * the same to a trained network. */
#include <string.h>

#include "runtime/config/patterns.h"
#include "runtime/graph/facts.h"

const char *tr_sketch_obstacle(const tr_model *m, const tr_layer *l)
{
    tr_sketch_facts f;
    tr_product product;
    if (tr_layer_sketch(m, l, &f)) return "it is learned in sketches already";
    if (!tr_layer_sketched(l))
        return tr_layer_product(l, &product) && product.groups != 1
                   ? "it works in groups of channels"
                   : "no layer that is learned in sketches takes its place";
    const tr_param *p = &m->params[l->params[0]];
    return p->uses > 1           ? "its weight is tied to another layer's"
           : p->frozen           ? "its weight is frozen"
           : p->masked           ? "its weight is masked"
           : p->stored != TR_F32 ? "its weight is not stored as float32"
                                 : NULL;
}

static bool smaller(const tr_sketch_choice *c, const tr_param *weight)
{
    const double out = (double)weight->dims[0], in = (double)(weight->count) / out;
    return 2 * (double)(c->terms * c->rank) * (in + out) < in * out;
}

bool tr_sketch_chosen(const tr_sketching *s, const tr_layer *l)
{
    if (tr_sketch_obstacle(s->model, l)) return false;
    return s->choice->match ? tr_patterns_match(s->choice->match, l->name)
                            : smaller(s->choice, &s->model->params[l->params[0]]);
}

static tr_status check_names(const tr_sketching *s, const char *key)
{
    const tr_model *m = s->model;
    const char **names = tr_alloc(TR_MEM_OTHER, m->nlayers, sizeof *names);
    if (!names) return tr_last_status();
    for (size_t i = 0; i < m->nlayers; i++) names[i] = m->layers[i].name;
    const tr_status st = tr_patterns_find(s->choice->match, key, "layer", names, m->nlayers);
    tr_free(names);
    return st;
}

tr_status tr_sketch_check(const tr_sketching *s, const char *key)
{
    const tr_layer *first = NULL;
    tr_status st = check_names(s, key);
    for (size_t i = 0; st == TR_OK && s->choice->match && i < s->model->nlayers; i++) {
        const tr_layer *l = &s->model->layers[i];
        if (tr_sketch_chosen(s, l)) return TR_OK;
        if (!first && tr_patterns_match(s->choice->match, l->name)) first = l;
    }
    return first ? tr_node_fail(s->choice->match,
                                "%s: none of the layers that it names can be sketched: %s: %s", key,
                                first->name, tr_sketch_obstacle(s->model, first))
                 : st;
}

tr_status tr_sketch_edit(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    const tr_sketching *s = ctx;
    char terms[40], rank[40];
    const char *const options[] = {terms, rank};
    if (!tr_sketch_chosen(s, l)) return TR_OK;
    snprintf(terms, sizeof terms, "terms=%lld", (long long)s->choice->terms);
    snprintf(rank, sizeof rank, "rank=%lld", (long long)s->choice->rank);
    const tr_layer_changes changes = {.type = tr_layer_sketched(l),
                                      .kept = true,
                                      .options = options,
                                      .noptions = TR_COUNT(options)};
    return tr_maker_copy(mk, l, &changes, l->nin, in, value);
}
