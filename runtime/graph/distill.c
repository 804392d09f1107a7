/* Distillation in a train graph: tensors that the teacher fills, and losses that compare with them.
 * The model's own loss counts `hard` times, by attributes that the graph owns. */
#include "runtime/graph/builder.h"
#include "runtime/graph/maker.h"
#include "runtime/graph/ops/registry.h"

#include <string.h>

typedef struct {
    tr_cross_entropy_attrs hard;
    tr_distill_attrs soft, features[TR_MAX_FEATURES];
} attributes;

/* Of the tensor `x` against what the teacher gives in its place. */
static void compare(tr_builder *b, const tr_op_def *def, const char *name, int x,
                    const tr_distill_attrs *a)
{
    const tr_graph *g = b->g;
    const int given = tr_build_given(b, name, x);
    tr_build_op(b, def, "loss", (int)g->model->nlayers, a, TR_PHASE_LOSS,
                TR_IDS(x, given, a->class_weights ? g->target : -1), TR_IDS(-1));
}

static tr_status add_feature(tr_builder *b, const tr_distill_feature *f, tr_distill_attrs *a)
{
    const tr_model *m = b->g->model;
    char name[TR_NAME];
    const tr_layer *l = tr_model_layer(m, f->layer);
    size_t count;
    if (!l)
        return TR_FAIL(TR_CONFIG, "the model has no layer \"%s\" to compare with the teacher's",
                       f->layer);
    tr_shape_count(&l->output, &count);
    a->factor = f->weight / (double)count;
    snprintf(name, sizeof name, "teacher.%.50s", f->layer);
    compare(b, tr_taught_losses[TR_TAUGHT_FEATURE], name, tr_build_result(b, (size_t)l->index), a);
    return TR_OK;
}

tr_status tr_build_distill(tr_builder *b)
{
    tr_graph *g = b->g;
    const tr_distill *d = b->o->distill;
    tr_status st = TR_OK;
    attributes *a = NULL;
    TR_NEED(g->model->labels, TR_CONFIG,
            "a model with %s cannot be distilled: it takes cross_entropy", g->model->loss->name);
    TR_NEED(g->model->rows == 1, TR_CONFIG,
            "a model with a class for each of %lld rows of a sample cannot be distilled: it takes "
            "(classes)",
            (long long)g->model->rows);
    TR_NEED(d->nfeatures <= TR_MAX_FEATURES, TR_CONFIG, "%zu features, expected at most %d",
            d->nfeatures, TR_MAX_FEATURES);
    a = TR_NEW(TR_MEM_OTHER, attributes);
    TR_HAVE(a);
    g->distill = a;
    a->hard = *(const tr_cross_entropy_attrs *)g->model->loss_attrs;
    a->hard.factor = d->hard;
    a->soft = (tr_distill_attrs){.factor = d->soft * d->temperature * d->temperature,
                                 .temperature = d->temperature,
                                 .classes = a->hard.classes,
                                 .class_weights = a->hard.class_weights};
    g->ops[g->nops - 1].attrs = &a->hard;
    TR_TRY(tr_build_reserve(b, 1 + 2 * d->nfeatures, 1 + 2 * d->nfeatures));
    if (d->soft > 0) compare(b, tr_taught_losses[TR_TAUGHT_LOGITS], "teacher", g->logits, &a->soft);
    for (size_t i = 0; i < d->nfeatures; i++) {
        a->features[i] = a->soft;
        TR_TRY(add_feature(b, &d->features[i], &a->features[i]));
    }
out:
    return st;
}
