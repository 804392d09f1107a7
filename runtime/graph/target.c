/* What the model is trained towards: the loss from model.loss, and the target's shape from the last
 * layer's. */
#include "runtime/graph/maker.h"
#include "runtime/graph/ops/registry.h"

#include <string.h>

static tr_status cross_entropy(tr_maker *mk, const tr_layer *last)
{
    tr_model *m = mk->m;
    const tr_config *c = mk->config;
    const tr_reals *weights = &c->model.loss.class_weights;
    if (last->output.ndim != 1) {
        char t[TR_SHAPE_TEXT];
        return tr_layer_fail(last, TR_SHAPE,
                             "cross_entropy takes (classes), but the last layer gives %s",
                             tr_shape_text(&last->output, t));
    }
    if (weights->count && weights->count != (size_t)last->output.dims[0])
        return tr_layer_fail(last, TR_SHAPE,
                             "it gives %lld classes, but model.loss has %zu "
                             "class_weights",
                             (long long)last->output.dims[0], weights->count);
    if (strcmp(last->def->name, "softmax") == 0)
        tr_log(TR_LOG_WARN,
               "%s:%d:%d: layer \"%s\": cross_entropy takes logits and applies softmax itself",
               last->at->source, last->at->line, last->at->column, last->name);
    tr_cross_entropy_attrs *a = TR_NEW(TR_MEM_OTHER, tr_cross_entropy_attrs);
    if (!a) return TR_MEMORY;
    *a = (tr_cross_entropy_attrs){.label_smoothing = c->model.loss.label_smoothing,
                                  .classes = (size_t)last->output.dims[0],
                                  .class_weights = weights->count ? weights->v : NULL};
    m->loss_attrs = a;
    m->labels = true;
    return TR_OK;
}

tr_status tr_parse_loss(tr_maker *mk, const tr_layer *last)
{
    tr_model *m = mk->m;
    int kind = mk->config->model.loss.kind.which;
    m->loss = &tr_ops_loss[kind];
    size_t count = 1;
    tr_shape_count(&last->output, &count);
    m->outputs = (int64_t)count;
    if (kind == TR_LOSS_CROSS_ENTROPY) return cross_entropy(mk, last);
    m->ndim_target = last->output.ndim;
    memcpy(m->target_dims, last->output.dims, sizeof(m->target_dims));
    return TR_OK;
}
