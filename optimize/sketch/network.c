/* The network with sketched layers in the place of dense ones, of the same names. */
#include "optimize/sketch/sketch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/graph/facts.h"

/* Of filters 2 terms sketches are learned, of a matrix terms of its rows and of its columns. */
tr_sketch_cost tr_sketch_cost_of(const tr_model *m, const tr_layer *l, int64_t width,
                                 bool least_squares)
{
    const tr_param *w = &m->params[l->params[0]];
    const int64_t out = w->dims[0], in = (int64_t)w->count / out;
    const double k = (double)width, dense = (double)w->count, sides = (double)(in + out);
    const bool both = w->ndim <= 2;
    return (tr_sketch_cost){.out = out,
                            .in = in,
                            .parameters = {dense, both ? k * sides : 2 * k * (double)in},
                            .arithmetic = 2 * k * sides / dense,
                            .most = (int64_t)ceil(dense / (2 * sides)) - 1,
                            .bytes = tr_sketch_fit_bytes(both, out, in, width, least_squares)};
}

bool tr_sketch_smaller(const tr_network *n, const tr_sketch_options *o)
{
    const tr_sketching s = {n->model, &o->choice};
    double before = 0, after = 0;
    for (size_t i = 0; i < n->model->nlayers; i++) {
        const tr_layer *l = &n->model->layers[i];
        if (!tr_sketch_chosen(&s, l)) continue;
        const tr_sketch_cost c =
            tr_sketch_cost_of(n->model, l, o->choice.terms * o->choice.rank, o->least_squares);
        before += c.parameters[0];
        after += c.parameters[1];
    }
    return after < before;
}

double tr_sketch_needs(const tr_network *n, const tr_sketch_options *o, int64_t width,
                       const tr_layer **largest)
{
    const tr_sketching s = {n->model, &o->choice};
    double floats = (double)n->model->flat_count + (double)n->model->state_count, most = 0;
    *largest = NULL;
    for (size_t i = 0; i < n->model->nlayers; i++) {
        const tr_layer *l = &n->model->layers[i];
        if (!tr_sketch_chosen(&s, l)) continue;
        const tr_sketch_cost c = tr_sketch_cost_of(n->model, l, width, o->least_squares);
        floats += c.parameters[1] - c.parameters[0];
        if (c.bytes > most) {
            most = c.bytes;
            *largest = l;
        }
    }
    return sizeof(float) * floats + most;
}

static tr_status fit_layer(const tr_network *n, const tr_layer *l, const tr_sketch_options *o,
                           tr_network *made, tr_sketch_row *r)
{
    const tr_param *w = &n->model->params[l->params[0]], *p = tr_network_row(made, l->name, "s1");
    float *s1 = tr_network_param(made, l->name, "s1"), *s2 = tr_network_param(made, l->name, "s2");
    if (!p) return TR_FAIL(TR_INTERNAL, "layer \"%s\" has no sketches", l->name);
    snprintf(r->layer, sizeof r->layer, "%s", l->name);
    r->parameters[0] = (double)w->count;
    r->parameters[1] =
        (double)p->count + (s2 ? (double)tr_network_row(made, l->name, "s2")->count : 0);
    r->multiply_adds[0] = tr_layer_multiply_adds(n->model, l);
    for (size_t i = 0; i < made->model->nlayers; i++)
        if (strcmp(made->model->layers[i].name, l->name) == 0)
            r->multiply_adds[1] = tr_layer_multiply_adds(made->model, &made->model->layers[i]);
    return tr_sketch_fit(&p->sketch, n->params + w->offset, p->of[0], p->of[1], o, s1, s2,
                         &r->error);
}

tr_status tr_sketch_network(const tr_network *n, const tr_sketch_options *o, tr_network **out,
                            tr_sketch_row **rows, size_t *nrows)
{
    tr_status st = TR_OK;
    tr_sketching s = {n->model, &o->choice};
    tr_network *made = NULL;
    *nrows = 0;
    *rows = NULL;
    TR_TRY(tr_sketch_check(&s, "match"));
    TR_HAVE(*rows = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof **rows));
    TR_TRY(tr_network_edit(n, tr_sketch_edit, &s, &made));
    for (size_t i = 0; i < n->model->nlayers; i++)
        if (tr_sketch_chosen(&s, &n->model->layers[i]))
            TR_TRY(fit_layer(n, &n->model->layers[i], o, made, &(*rows)[(*nrows)++]));
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    return st;
}
