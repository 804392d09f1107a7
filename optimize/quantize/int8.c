/* A network of 8 bits, step by step: equalized, calibrated, its layers chosen, rounded,
 * corrected. */
#include "optimize/quantize/choose.h"

#include <math.h>
#include <string.h>

typedef struct {
    tr_evaluator *e;
    tr_comm *comm;
    const tr_config *config;
    const tr_int8_options *o;
    size_t nlayers, values;
    const tr_network *n; /* as it is rounded: the caller's, or `own` */
    tr_network *own;
    bool *chosen, *wanted;
    tr_value_range *ranges;
    double *sqnr;
    tr_output_error *errors;
    tr_int8_layer *layers;
} work;

static void close_work(work *w)
{
    tr_network_close(w->own);
    tr_free(w->wanted);
    tr_free(w->ranges);
    tr_free(w->sqnr);
    tr_output_errors_free(w->errors, w->nlayers);
}

static tr_status open_work(work *w)
{
    tr_status st = TR_OK;
    TR_HAVE(w->wanted = tr_alloc(TR_MEM_OTHER, w->values, sizeof *w->wanted));
    TR_HAVE(w->ranges = tr_alloc(TR_MEM_OTHER, w->values, sizeof *w->ranges));
    TR_HAVE(w->sqnr = tr_alloc(TR_MEM_OTHER, w->nlayers, sizeof *w->sqnr));
    TR_HAVE(w->errors = tr_alloc(TR_MEM_OTHER, w->nlayers, sizeof *w->errors));
    for (size_t i = 0; i < w->nlayers; i++)
        w->layers[i] = (tr_int8_layer){.weight_sqnr = NAN,
                                       .output_sqnr = NAN,
                                       .weight_sqnr_nearest = NAN,
                                       .output_sqnr_nearest = NAN,
                                       .float_us = NAN,
                                       .int8_us = NAN};
out:
    return st;
}

/* `made` takes the place of the network. */
static void go_on_with(work *w, tr_network *made)
{
    tr_network_close(w->own);
    w->n = w->own = made;
}

static tr_status calibrate(work *w)
{
    if (w->o->dynamic) {
        tr_quantize_dynamic(w->n, w->ranges);
        return TR_OK;
    }
    tr_quantize_places(w->n, w->chosen, w->wanted);
    const tr_status st =
        tr_calibrate(w->e, w->n, w->config, &w->o->calibration, w->wanted, w->ranges);
    if (st == TR_OK) tr_quantize_share_ranges(w->n, w->wanted, w->ranges);
    return st;
}

/* Of q: what its outputs lose. With dynamic ranges only where something is decided by it: data need
 * not be there. */
static tr_status measure(work *w, const tr_network *q)
{
    const tr_int8_options *o = w->o;
    if (o->dynamic && !o->bias_correction && !o->adaround && !o->by_loss && o->keep_float == 0)
        return TR_OK;
    for (size_t i = 0; i < w->nlayers; i++) {
        tr_free(w->errors[i].mean);
        w->errors[i] = (tr_output_error){0};
    }
    return tr_quantize_errors(w->e, w->n, q, w->config, w->o->calibration.samples, w->chosen,
                              w->ranges, w->errors);
}

static double output_sqnr(const work *w, size_t i)
{
    return w->errors[i].mean ? tr_decibels(w->errors[i].signal, w->errors[i].noise) : NAN;
}

/* *Collective.* Rounding to nearest and no more, as the others are compared with. */
static tr_status nearest(work *w, tr_network **q)
{
    tr_status st = tr_quantize_static(w->n, w->chosen, w->ranges, w->o->per_tensor, w->sqnr, q);
    TR_TRY(tr_agree(w->comm, st, NULL));
    TR_TRY(measure(w, *q));
    for (size_t i = 0; i < w->nlayers; i++) {
        if (!w->chosen[i]) continue;
        w->layers[i].weight_sqnr_nearest = w->layers[i].weight_sqnr = w->sqnr[i];
        w->layers[i].output_sqnr_nearest = w->layers[i].output_sqnr = output_sqnr(w, i);
    }
out:
    return st;
}

static tr_status equalize(work *w, size_t *pairs)
{
    tr_status st;
    tr_network *q = NULL, *made = NULL;
    TR_TRY(calibrate(w));
    TR_TRY(nearest(w, &q));
    st = tr_quantize_equalize(w->n, pairs, &made);
    TR_TRY(tr_agree(w->comm, st, NULL));
    go_on_with(w, made);
    made = NULL;
out:
    tr_network_close(made);
    tr_network_close(q);
    return st;
}

static double weight_sqnr(const work *w, const tr_network *q, const tr_layer *l)
{
    const tr_param *p = tr_own_weight(w->n->model, l), *r = tr_network_row(q, l->name, "weight");
    double signal = 0, noise = 0;
    for (size_t i = 0; i < p->count; i++) {
        const double v = w->n->params[p->offset + i], d = v - q->params[r->offset + i];
        signal += v * v;
        noise += d * d;
    }
    return tr_decibels(signal, noise);
}

/* *Collective.* What comes behind rounding to nearest. */
static tr_status refine(work *w, tr_network *q)
{
    tr_status st = TR_OK;
    if (w->o->adaround)
        TR_TRY(tr_quantize_adaround(w->e, w->n, w->config, w->o, w->chosen, w->ranges, q));
    if (w->o->adaround || w->o->bias_correction) TR_TRY(measure(w, q));
    for (size_t i = 0; i < w->nlayers; i++) {
        if (!w->chosen[i]) continue;
        const tr_layer *l = &w->n->model->layers[i];
        if (w->o->bias_correction) tr_quantize_correct(q, l, &w->errors[i]);
        w->layers[i].weight_sqnr = weight_sqnr(w, q, l);
        w->layers[i].output_sqnr = output_sqnr(w, i);
    }
out:
    return st;
}

/* The choice is made: what is measured of the others stays. */
static void tell(const work *w)
{
    for (size_t i = 0; i < w->nlayers; i++) {
        w->layers[i].is_int8 = w->chosen[i];
        if (w->chosen[i]) w->layers[i].input = w->ranges[w->n->model->layers[i].in[0]];
    }
}

static bool any(const work *w)
{
    bool is = false;
    for (size_t i = 0; i < w->nlayers; i++) is |= w->chosen[i];
    return is;
}

/* *Collective.* Of the layers that are left; NULL: none is. */
static tr_status again(work *w, tr_network **q)
{
    tr_network_close(*q);
    *q = NULL;
    if (!any(w)) return TR_OK;
    return tr_agree(w->comm,
                    tr_quantize_static(w->n, w->chosen, w->ranges, w->o->per_tensor, w->sqnr, q),
                    NULL);
}

/* *Collective.* What layers take, and with o->choose which of them are worth it. */
static tr_status look_at_times(work *w, tr_int8_story *story)
{
    choosing k = {.e = w->e,
                  .n = w->n,
                  .config = w->config,
                  .o = w->o,
                  .ranges = w->ranges,
                  .chosen = w->chosen,
                  .layers = w->layers,
                  .measure = tr_quantize_measure,
                  .story = story};
    return w->o->choose ? tr_quantize_choose(&k) : tr_quantize_tell_times(&k);
}

tr_status tr_quantize_int8(tr_evaluator *e, const tr_network *n, const tr_config *config,
                           const tr_int8_options *o, bool *chosen, tr_int8_layer *layers,
                           tr_int8_story *story, tr_network **out)
{
    work w = {.e = e,
              .comm = tr_evaluator_comm(e),
              .config = config,
              .o = o,
              .nlayers = n->model->nlayers,
              .values = n->model->ninputs + n->model->nlayers,
              .n = n,
              .chosen = chosen,
              .layers = layers};
    tr_network *q = NULL, *with = NULL;
    tr_int8_layer *before = NULL;
    tr_status st = open_work(&w);
    *story = (tr_int8_story){.float_ms = NAN, .int8_ms = NAN};
    *out = NULL;
    if (st == TR_OK) st = tr_network_finite(n);
    TR_TRY(tr_agree(w.comm, st, NULL));
    if (o->bias_correction) {
        st = tr_quantize_with_biases(w.n, chosen, &with);
        TR_TRY(tr_agree(w.comm, st, NULL));
        go_on_with(&w, with);
    }
    if (o->equalize) {
        TR_TRY(equalize(&w, &story->pairs));
        before = tr_alloc(TR_MEM_OTHER, w.nlayers, sizeof *before);
        TR_TRY(tr_agree(w.comm, before ? TR_OK : tr_last_status(), NULL));
        memcpy(before, layers, w.nlayers * sizeof *before);
    }
    TR_TRY(calibrate(&w));
    TR_TRY(nearest(&w, &q));
    tr_quantize_leave_worst(w.n->model, layers, o->keep_float, chosen);
    if (o->choose) TR_TRY(look_at_times(&w, story));
    if (o->choose || o->keep_float > 0) TR_TRY(again(&w, &q));
    if (q) TR_TRY(refine(&w, q));
    if (!o->choose) TR_TRY(look_at_times(&w, story));
    for (size_t i = 0; before && i < w.nlayers; i++) {
        layers[i].weight_sqnr_nearest = before[i].weight_sqnr_nearest;
        layers[i].output_sqnr_nearest = before[i].output_sqnr_nearest;
    }
    tell(&w);
    *out = q;
    q = NULL;
out:
    tr_free(before);
    tr_network_close(q);
    close_work(&w);
    return st;
}
