/* What the model is trained towards: the loss, and the target's shape from the last layer's. */
#include "runtime/graph/maker.h"
#include "runtime/graph/ops/registry.h"

#include <string.h>

/* Targets of the output's shape. */
static void take_target(tr_model *m, const tr_layer *last)
{
    m->ndim_target = last->output.ndim;
    m->target_layout = last->output.ndim == 2 ? TR_LAYOUT_PLAIN : last->output.layout;
    memcpy(m->target_dims, last->output.dims, sizeof m->target_dims);
}

/* Labels of the output's shape without its classes: those are an image's first dimension, else the
 * last. */
static void take_labels(tr_model *m, const tr_shape *y, int classes)
{
    m->ndim_target = 0;
    m->target_layout = TR_LAYOUT_PLAIN;
    for (int d = 0; d < y->ndim; d++)
        if (d != classes) m->target_dims[m->ndim_target++] = y->dims[d];
}

static tr_status cross_entropy(tr_model *m, const tr_layer *last, const tr_loss_config *c)
{
    const size_t n = c->class_weights.count;
    const tr_shape *y = &last->output;
    const bool image = y->ndim == 3 && y->layout == TR_LAYOUT_CHANNELS_LAST;
    if (y->ndim != 1 && y->ndim != 2 && !image) {
        char t[TR_SHAPE_TEXT];
        return tr_layer_fail(last, TR_SHAPE,
                             "cross_entropy takes (classes), (rows, classes) or (classes, height, "
                             "width), but the last layer gives %s",
                             tr_shape_text(y, t));
    }
    m->classes = tr_shape_channels(y);
    if (y->ndim == 2) m->classes = y->dims[1];
    m->rows = m->outputs / m->classes;
    if (m->classes == 1)
        return tr_layer_fail(
            last, TR_SHAPE,
            "it gives one output, of which cross_entropy learns nothing: model.loss: "
            "bce takes one for yes or no (labels 0 and 1), cross_entropy one a class");
    if (n && n != (size_t)m->classes)
        return TR_FAIL(TR_SHAPE,
                       "model.loss.cross_entropy.class_weights: %zu class_weights, but layer "
                       "\"%s\" gives %lld classes",
                       n, last->name, (long long)m->classes);
    /* The weights stand behind the struct. */
    tr_cross_entropy_attrs *a = tr_alloc(TR_MEM_OTHER, sizeof *a + n * sizeof(double), 1);
    if (!a) return tr_last_status();
    double *weights = (double *)(a + 1);
    for (size_t i = 0; i < n; i++) weights[i] = c->class_weights.v[i];
    *a = (tr_cross_entropy_attrs){.label_smoothing = c->label_smoothing,
                                  .classes = (size_t)m->classes,
                                  .class_weights = n ? weights : NULL,
                                  .factor = 1,
                                  .gamma = c->gamma,
                                  .ignores = c->ignore_index != TR_NO_LABEL};
    if (a->ignores) a->ignore_index = (int32_t)c->ignore_index;
    m->loss_attrs = a;
    m->labels = !tr_loss_soft(c);
    if (m->labels)
        take_labels(m, y, image ? 0 : y->ndim - 1);
    else
        take_target(m, last);
    return TR_OK;
}

/* Of outputs each with a target of its own. */
static tr_status elementwise(tr_model *m, const tr_layer *last, const tr_loss_config *c)
{
    const int kind = c->kind.which;
    const size_t n = kind == TR_LOSS_BCE ? c->pos_weight.count : 0;
    const bool image = last->output.layout == TR_LAYOUT_CHANNELS_LAST;
    const size_t places = (size_t)last->output.dims[image ? 0 : last->output.ndim - 1];
    if (n > 1 && n != places)
        return TR_FAIL(TR_SHAPE,
                       "model.loss.bce.pos_weight: %zu pos_weights, but layer \"%s\" gives %zu %s",
                       n, last->name, places, image ? "channels" : "outputs");
    /* The weights stand behind the struct. */
    tr_elementwise_loss_attrs *a = tr_alloc(TR_MEM_OTHER, sizeof *a + n * sizeof(float), 1);
    if (!a) return tr_last_status();
    float *weights = (float *)(a + 1);
    for (size_t i = 0; i < n; i++) weights[i] = (float)c->pos_weight.v[i];
    *a = (tr_elementwise_loss_attrs){.kind = kind,
                                     .slope = 1,
                                     .gamma = (float)c->gamma,
                                     .alpha = (float)c->alpha,
                                     .npos = n,
                                     .pos_weight = n ? weights : NULL};
    if (kind == TR_LOSS_HUBER || kind == TR_LOSS_SMOOTH_L1) a->delta = (float)c->delta;
    if (kind == TR_LOSS_HUBER) {
        a->curve = 1;
        a->slope = a->delta;
    } else if (a->delta > 0) {
        a->curve = 1 / a->delta;
    }
    m->loss_attrs = a;
    take_target(m, last);
    return TR_OK;
}

/* The model's own: what stood behind the config's is copied. */
static tr_status copy_config(tr_loss_config *to, const tr_loss_config *from)
{
    const tr_reals *const in[] = {&from->class_weights, &from->pos_weight};
    tr_reals *const out[] = {&to->class_weights, &to->pos_weight};
    tr_status st = TR_OK;
    *to = *from;
    for (size_t i = 0; i < TR_COUNT(in); i++) *out[i] = (tr_reals){0};
    for (size_t i = 0; i < TR_COUNT(in); i++) {
        if (!in[i]->count) continue;
        TR_HAVE(out[i]->v = tr_alloc(TR_MEM_OTHER, in[i]->count, sizeof(double)));
        memcpy(out[i]->v, in[i]->v, in[i]->count * sizeof(double));
        out[i]->count = in[i]->count;
    }
out:
    return st;
}

tr_status tr_maker_loss(tr_maker *mk, const tr_loss_config *loss)
{
    tr_model *m = mk->m;
    tr_status st = TR_OK;
    size_t count = 1;
    TR_NEED(m->nlayers && !m->loss, TR_CONFIG, "a model's one loss comes after its layers");
    const tr_layer *last = &m->layers[m->nlayers - 1];
    m->loss = tr_losses[loss->kind.which];
    TR_NEED(m->loss, TR_INTERNAL, "loss %d has no op", loss->kind.which);
    TR_TRY(copy_config(&m->loss_config, loss));
    tr_shape_count(&last->output, &count);
    m->outputs = (int64_t)count;
    m->rows = 1;
    if (m->loss->applies == last->def)
        tr_log_once(TR_LOG_WARN, last->where ? last->where : last->name,
                    "%s%slayer \"%s\": %s takes logits and applies %s itself",
                    last->where ? last->where : "", last->where ? ": " : "", last->name,
                    m->loss->name, last->def->name);
    return (loss->kind.which == TR_LOSS_CROSS_ENTROPY ? cross_entropy : elementwise)(m, last, loss);
out:
    return st;
}
