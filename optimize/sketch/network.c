/* The network with sketched layers in the place of dense ones, of the same names. */
#include "optimize/sketch/sketch.h"

#include <stdio.h>
#include <string.h>

#include "runtime/graph/facts.h"

/* Of filters 2 terms sketches are learned, of a matrix terms of its rows and of its columns. */
bool tr_sketch_smaller(const tr_network *n, const tr_sketch_options *o)
{
    const tr_sketching s = {n->model, &o->choice};
    const double k = (double)o->choice.terms * (double)o->choice.rank;
    double before = 0, after = 0;
    for (size_t i = 0; i < n->model->nlayers; i++) {
        const tr_layer *l = &n->model->layers[i];
        if (!tr_sketch_chosen(&s, l)) continue;
        const tr_param *w = &n->model->params[l->params[0]];
        const double out = (double)w->dims[0], in = (double)w->count / out;
        before += out * in;
        after += w->ndim > 2 ? 2 * k * in : k * (in + out);
    }
    return after < before;
}

static tr_status fit_layer(const tr_network *n, const tr_layer *l, bool least_squares,
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
    return tr_sketch_fit(&p->sketch, n->params + w->offset, p->of[0], p->of[1], least_squares, s1,
                         s2, &r->error);
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
            TR_TRY(
                fit_layer(n, &n->model->layers[i], o->least_squares, made, &(*rows)[(*nrows)++]));
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    return st;
}
