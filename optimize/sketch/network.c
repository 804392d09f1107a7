/* The network with sketched layers in the place of dense ones, of the same names. */
#include "optimize/sketch/sketch.h"

#include <stdio.h>
#include <string.h>

#include "runtime/graph/facts.h"

typedef struct {
    const tr_network *n;
    const tr_sketch_options *o;
} edit;

static bool smaller(const edit *e, const tr_param *weight)
{
    const double out = (double)weight->dims[0], in = (double)(weight->count) / out;
    return 2 * (double)(e->o->terms * e->o->rank) * (in + out) < in * out;
}

const char *tr_sketch_obstacle(const tr_network *n, const tr_layer *l)
{
    tr_sketch_facts f;
    tr_product product;
    if (tr_layer_sketch(n->model, l, &f)) return "it is learned in sketches already";
    if (!tr_layer_sketched(l))
        return tr_layer_product(l, &product) && product.groups != 1
                   ? "it works in groups of channels"
                   : "no layer that is learned in sketches takes its place";
    const tr_param *p = &n->model->params[l->params[0]];
    return p->uses > 1           ? "its weight is tied to another layer's"
           : p->frozen           ? "its weight is frozen"
           : p->masked           ? "its weight is masked"
           : p->stored != TR_F32 ? "its weight is not stored as float32"
                                 : NULL;
}

static bool chosen(const edit *e, const tr_layer *l)
{
    if (tr_sketch_obstacle(e->n, l)) return false;
    return e->o->match ? tr_patterns_match(e->o->match, l->name)
                       : smaller(e, &e->n->model->params[l->params[0]]);
}

/* Of filters 2 terms sketches are learned, of a matrix terms of its rows and of its columns. */
bool tr_sketch_smaller(const tr_network *n, const tr_sketch_options *o)
{
    const edit e = {n, o};
    const double k = (double)o->terms * (double)o->rank;
    double before = 0, after = 0;
    for (size_t i = 0; i < n->model->nlayers; i++) {
        const tr_layer *l = &n->model->layers[i];
        if (!chosen(&e, l)) continue;
        const tr_param *w = &n->model->params[l->params[0]];
        const double out = (double)w->dims[0], in = (double)w->count / out;
        before += out * in;
        after += w->ndim > 2 ? 2 * k * in : k * (in + out);
    }
    return after < before;
}

/* Options of a window that has one; an odd padding is `same`'s. */
static void window_text(const tr_layer *l, const tr_param *w, char *to, size_t size)
{
    tr_product p;
    to[0] = '\0';
    if (w->ndim < 4 || !tr_layer_product(l, &p)) return;
    const int n =
        snprintf(to, size, ", kernel: [%lld, %lld], stride: [%lld, %lld], dilation: [%lld, %lld]",
                 (long long)w->dims[2], (long long)w->dims[3], (long long)p.stride[0],
                 (long long)p.stride[1], (long long)p.dilation[0], (long long)p.dilation[1]);
    if (p.extra[0] || p.extra[1])
        snprintf(to + n, size - (size_t)n, ", padding: same");
    else
        snprintf(to + n, size - (size_t)n, ", padding: [%lld, %lld]", (long long)p.padding[0],
                 (long long)p.padding[1]);
}

static tr_status make_layer(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    const edit *e = ctx;
    char window[256], options[512];
    if (!chosen(e, l)) return TR_OK;
    const tr_param *w = &e->n->model->params[l->params[0]];
    window_text(l, w, window, sizeof window);
    snprintf(
        options, sizeof options,
        "{out: %lld, terms: %lld, rank: %lld, bias: %s, lr_factor: %.17g, decay_factor: %.17g%s}",
        (long long)w->dims[0], (long long)e->o->terms, (long long)e->o->rank,
        tr_product_biased(e->n->model, l) ? "true" : "false", w->lr_factor, w->decay_factor,
        window);
    return tr_maker_layer_text(
        mk,
        &(tr_layer_given){.type = tr_layer_sketched(l), .name = l->name, .nin = l->nin, .in = in},
        options, value);
}

static tr_status fit_layer(const edit *e, const tr_layer *l, tr_network *made, tr_sketch_row *r)
{
    const tr_param *w = &e->n->model->params[l->params[0]],
                   *p = tr_network_row(made, l->name, "s1");
    float *s1 = tr_network_param(made, l->name, "s1"), *s2 = tr_network_param(made, l->name, "s2");
    if (!p) return TR_FAIL(TR_INTERNAL, "layer \"%s\" has no sketches", l->name);
    snprintf(r->layer, sizeof r->layer, "%s", l->name);
    r->parameters[0] = (double)w->count;
    r->parameters[1] =
        (double)p->count + (s2 ? (double)tr_network_row(made, l->name, "s2")->count : 0);
    r->multiply_adds[0] = tr_layer_multiply_adds(e->n->model, l);
    for (size_t i = 0; i < made->model->nlayers; i++)
        if (strcmp(made->model->layers[i].name, l->name) == 0)
            r->multiply_adds[1] = tr_layer_multiply_adds(made->model, &made->model->layers[i]);
    return tr_sketch_fit(&p->sketch, e->n->params + w->offset, p->of[0], p->of[1],
                         e->o->least_squares, s1, s2, &r->error);
}

/* Every pattern names a layer. */
static tr_status check_names(const tr_network *n, const tr_node *match)
{
    const char **names = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof *names);
    if (!names) return tr_last_status();
    for (size_t i = 0; i < n->model->nlayers; i++) names[i] = n->model->layers[i].name;
    const tr_status st = tr_patterns_find(match, "match", "layer", names, n->model->nlayers);
    tr_free(names);
    return st;
}

/* Something is left of what they name. */
static tr_status check_chosen(const edit *e)
{
    const tr_layer *first = NULL;
    for (size_t i = 0; e->o->match && i < e->n->model->nlayers; i++) {
        const tr_layer *l = &e->n->model->layers[i];
        if (chosen(e, l)) return TR_OK;
        if (!first && tr_patterns_match(e->o->match, l->name)) first = l;
    }
    return first ? tr_node_fail(e->o->match,
                                "match: none of the layers that it names can be sketched: %s: %s",
                                first->name, tr_sketch_obstacle(e->n, first))
                 : TR_OK;
}

tr_status tr_sketch_network(const tr_network *n, const tr_sketch_options *o, tr_network **out,
                            tr_sketch_row **rows, size_t *nrows)
{
    tr_status st = TR_OK;
    edit e = {n, o};
    tr_network *made = NULL;
    *nrows = 0;
    *rows = NULL;
    TR_TRY(check_names(n, o->match));
    TR_TRY(check_chosen(&e));
    TR_HAVE(*rows = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof **rows));
    TR_TRY(tr_network_edit(n, make_layer, &e, &made));
    for (size_t i = 0; i < n->model->nlayers; i++)
        if (chosen(&e, &n->model->layers[i]))
            TR_TRY(fit_layer(&e, &n->model->layers[i], made, &(*rows)[(*nrows)++]));
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    return st;
}
