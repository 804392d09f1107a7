/* Two products with nothing between are one, where that takes fewer multiply-adds:
 *
 *     pointwise second:  W[o, i, k] = sum_h B[o, h] A[h, i, k],   b = B a + b
 *     pointwise first:   W[o, i, k] = sum_h B[o, h, k] A[h, i],   b = b + (sum_k B) a
 *
 * The second way not where the second pads with zeros and the first adds something. No groups. */
#include "optimize/passes/rewrite.h"

typedef struct {
    const tr_layer *a, *b;
    int64_t in, mid, out, ka, kb; /* windows' places */
    bool second;                  /* b is the pointwise one */
} pair;

static bool pointwise(const tr_product *p, int64_t window)
{
    return window == 1 && p->stride[0] == 1 && p->stride[1] == 1 && !tr_product_pads(p);
}

static bool find(const tr_rewrite *rw, const tr_layer *b, pair *out)
{
    const tr_layer *a = tr_rewrite_maker(rw, tr_rewrite_input(rw, b, 0));
    tr_product pa, pb;
    if (!a || !tr_layer_product(a, &pa) || !tr_layer_product(b, &pb) || pa.groups > 1 ||
        pb.groups > 1 || rw->edits[a->index].uses > 1 || !tr_rewrite_owns(rw, a) ||
        !tr_rewrite_owns(rw, b))
        return false;
    const tr_param *wa = &rw->m->params[a->params[0]], *wb = &rw->m->params[b->params[0]];
    *out = (pair){.a = a, .b = b, .in = wa->dims[1], .mid = wa->dims[0], .out = wb->dims[0]};
    out->ka = (int64_t)wa->count / out->in / out->mid;
    out->kb = (int64_t)wb->count / out->mid / out->out;
    out->second = pointwise(&pb, out->kb);
    if (!out->second && (!pointwise(&pa, out->ka) || (tr_product_pads(&pb) && a->nparams > 1)))
        return false;
    const double before = tr_layer_multiply_adds(rw->m, a) + tr_layer_multiply_adds(rw->m, b);
    const double after = (double)tr_shape_places(&b->output) * (double)out->out * (double)out->in *
                         (double)(out->ka * out->kb);
    return after < before;
}

static void multiply(const pair *p, const double *a, const double *b, double *w)
{
    for (int64_t o = 0; o < p->out; o++)
        for (int64_t h = 0; h < p->mid; h++)
            for (int64_t i = 0; i < p->in; i++) {
                double *to = w + (o * p->in + i) * p->ka * p->kb;
                const double *x = a + (h * p->in + i) * p->ka, *y = b + (o * p->mid + h) * p->kb;
                for (int64_t k = 0; k < p->ka * p->kb; k++)
                    to[k] += p->second ? y[0] * x[k] : y[k] * x[0];
            }
}

/* The layer with the window stays, with the new rows. */
static tr_status merge(tr_rewrite *rw, const pair *p)
{
    tr_status st = TR_OK;
    const tr_layer *stays = p->second ? p->a : p->b;
    tr_edit *e = tr_rewrite_edit(rw, stays);
    double *a = tr_rewrite_row(rw, p->a, 0), *b = tr_rewrite_row(rw, p->b, 0), *w, *bias = NULL;
    const bool adds = p->a->nparams > 1 || p->b->nparams > 1;
    const size_t count = (size_t)(p->out * p->in * p->ka * p->kb);
    TR_HAVE(a && b);
    TR_HAVE(w = tr_alloc(TR_MEM_OTHER, count, sizeof *w));
    multiply(p, a, b, w);
    if (adds) {
        const double *first = p->a->nparams > 1 ? tr_rewrite_row(rw, p->a, 1) : NULL;
        const double *second = p->b->nparams > 1 ? tr_rewrite_row(rw, p->b, 1) : NULL;
        bias = tr_alloc(TR_MEM_OTHER, (size_t)p->out, sizeof *bias);
        for (int64_t o = 0; bias && o < p->out; o++) {
            bias[o] = second ? second[o] : 0;
            for (int64_t j = 0; first && j < p->mid * p->kb; j++)
                bias[o] += b[o * p->mid * p->kb + j] * first[j / p->kb];
        }
    }
    tr_free(e->row[0]);
    e->row[0] = w;
    e->count[0] = count;
    e->out = p->out;
    if (adds) {
        const int at = stays->nparams > 1 ? 1 : TR_MAX_PARAMS;
        TR_HAVE(bias);
        tr_free(e->row[at]);
        e->row[at] = bias;
        e->count[at] = (size_t)p->out;
        e->bias = stays->nparams > 1 ? 0 : 1;
    }
    if (p->second)
        tr_rewrite_replace(rw, p->b, tr_rewrite_output(rw, p->a));
    else {
        e->in[0] = tr_rewrite_input(rw, p->a, 0);
        tr_rewrite_look(rw);
    }
out:
    return st;
}

/* One pair a run: the next one may be of what this one makes. */
static tr_status run(tr_rewrite *rw, size_t *count)
{
    for (size_t i = 0; i < rw->m->nlayers; i++) {
        pair p;
        if (!rw->edits[i].stays || !find(rw, &rw->m->layers[i], &p)) continue;
        ++*count;
        return merge(rw, &p);
    }
    return TR_OK;
}

const tr_pass tr_pass_products = {
    .name = "products",
    .doc =
        "linear after linear, and conv2d before or after a 1x1 conv2d, with nothing between become "
        "one where that takes fewer multiply-adds.",
    .run = run};
