/* Cross-layer equalization (Nagel, van Baalen, Blankevoort and Welling 2019): what lies between two
 * products and passes positive factors on (relu, pooling) lets channel i be made s times smaller by
 * the first and s times larger by the second. With s = sqrt(r1 / r2), r1 and r2 the largest weights
 * of the channel before and behind, both have the same range. Pairs depend on each other, so that
 * it is done in rounds. */
#include "optimize/quantize/internal.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 40 };

typedef struct {
    const tr_layer *a, *b;
    const tr_layer *spread; /* on the way, a channel becomes several; NULL */
} pair;

static const tr_layer *only_reader(const tr_model *m, int value)
{
    const tr_layer *found = NULL;
    for (size_t i = 0; i < m->nlayers; i++)
        for (int k = 0; k < m->layers[i].nin; k++) {
            if (m->layers[i].in[k] != value) continue;
            if (found) return NULL;
            found = &m->layers[i];
        }
    return found;
}

/* The product at the end of the way that begins behind `a`. */
static bool follow(const tr_model *m, const tr_layer *a, pair *p)
{
    *p = (pair){.a = a};
    for (const tr_layer *l = a;;) {
        l = only_reader(m, (int)m->ninputs + l->index);
        if (!l || l->nin != 1) return false;
        if (tr_layer_product(l, NULL)) {
            p->b = l;
            return tr_own_weight(m, l) != NULL;
        }
        const tr_channels c = tr_layer_channels(l);
        if (l->nparams > 0 || !(tr_layer_commutes(l) & TR_COMMUTES_POSITIVE)) return false;
        if (c == TR_CHANNELS_SPREAD && !p->spread)
            p->spread = l;
        else if (c != TR_CHANNELS_EACH)
            return false;
    }
}

/* Calls f with each weight of b that reads channel i of a. */
typedef void visit(float *w, double *x);
static void each_read(const tr_network *n, const pair *p, double *of_channel, visit *f)
{
    const tr_param *w = tr_own_weight(n->model, p->b);
    tr_product product;
    tr_layer_product(p->b, &product);
    const int64_t inputs = tr_shape_channels(&p->b->inputs[0]), per = inputs / product.groups;
    const int64_t outputs = w->dims[0] / product.groups;
    const size_t places = w->count / (size_t)(w->dims[0] * per);
    for (int64_t c = 0; c < inputs; c++) {
        const int64_t from = p->spread ? tr_layer_source_channel(p->spread, c) : c;
        for (int64_t o = c / per * outputs; o < (c / per + 1) * outputs; o++)
            for (size_t k = 0; k < places; k++)
                f(n->params + w->offset + (size_t)(o * per + c % per) * places + k,
                  &of_channel[from]);
    }
}

static void most(float *w, double *x)
{
    *x = fmax(*x, fabs((double)*w));
}

static void times(float *w, double *x)
{
    *w = (float)((double)*w * *x);
}

/* Returns how far the largest factor is from 1. */
static double balance(const tr_network *n, const pair *p, double *behind, double *factor)
{
    const tr_param *w = tr_own_weight(n->model, p->a);
    const size_t channels = (size_t)w->dims[0], each = w->count / channels;
    float *v = n->params + w->offset, *bias = tr_network_param(n, p->a->name, "bias");
    double far = 0;
    memset(behind, 0, channels * sizeof *behind);
    each_read(n, p, behind, most);
    for (size_t i = 0; i < channels; i++) {
        double before = 0;
        for (size_t k = 0; k < each; k++) most(&v[i * each + k], &before);
        /* a bias that the weights do not reach would grow with them beyond all other channels */
        if (bias) before = fmax(before, fabs((double)bias[i]) / 16);
        factor[i] = before > 0 && behind[i] > 0 ? sqrt(before / behind[i]) : 1;
        far = fmax(far, fabs(log(factor[i])));
        for (size_t k = 0; k < each; k++) v[i * each + k] /= (float)factor[i];
        if (bias) bias[i] /= (float)factor[i];
        factor[i] = (double)(float)factor[i];
    }
    each_read(n, p, factor, times);
    return far;
}

tr_status tr_quantize_equalize(const tr_network *n, size_t *count, tr_network **out)
{
    tr_status st = TR_OK;
    tr_network *made = NULL;
    pair *pairs = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof *pairs);
    double *behind = NULL, *factor = NULL;
    size_t npairs = 0, widest = 1;
    TR_HAVE(pairs);
    TR_TRY(tr_network_edit(n, NULL, NULL, &made));
    for (size_t i = 0; i < made->model->nlayers; i++) {
        const tr_layer *l = &made->model->layers[i];
        if (!tr_layer_product(l, NULL) || !tr_own_weight(made->model, l)) continue;
        if (!follow(made->model, l, &pairs[npairs])) continue;
        const size_t channels = (size_t)tr_shape_channels(&l->output);
        if (channels > widest) widest = channels;
        npairs++;
    }
    behind = tr_alloc(TR_MEM_OTHER, widest, sizeof *behind);
    factor = tr_alloc(TR_MEM_OTHER, widest, sizeof *factor);
    TR_HAVE(behind && factor);
    double far = 1;
    for (int round = 0; round < ROUNDS && far > 1e-3; round++) {
        far = 0;
        for (size_t i = 0; i < npairs; i++)
            far = fmax(far, balance(made, &pairs[i], behind, factor));
    }
    *count = npairs;
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    tr_free(pairs);
    tr_free(behind);
    tr_free(factor);
    return st;
}
