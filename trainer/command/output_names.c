/* Names of what a model puts out, as far as its config has them. */
#include "optimize/predict/predict.h"
#include "trainer/command/by_hand.h"

/* Those of the config, or the texts of a table's column of labels. */
static const tr_node *class_names(const tr_config *c)
{
    if (c->data.class_names || !c->data.train.labels) return c->data.class_names;
    return tr_node_get(c->data.table.categories, c->data.train.labels);
}

tr_status tr_output_names_of(const tr_config *c, size_t outputs, size_t classes,
                             tr_output_names *out)
{
    const tr_node *targets = c->data.train.targets, *names = class_names(c);
    const char *column = c->data.train.labels; /* of the only output */
    const bool table = tr_source_kind(c, &c->data.train) == TR_FORMAT_CSV;
    *out = (tr_output_names){0};
    const bool each = c->model.loss.kind.which != TR_LOSS_CROSS_ENTROPY; /* output has a target */
    if (each && targets && targets->count == outputs)
        *out = (tr_output_names){.count = outputs, .targets = true};
    else if (names && names->kind == TR_NODE_LIST && names->count == classes)
        *out = (tr_output_names){.count = classes};
    else if (table && column && outputs == 1 && tr_predict_values(c->model.loss.kind.which))
        *out = (tr_output_names){.count = 1, .targets = true};
    if (out->count == 0) return TR_OK;
    out->of = tr_alloc(TR_MEM_OTHER, out->count, sizeof *out->of);
    if (!out->of) return tr_last_status();
    if (!out->targets) targets = names;
    for (size_t k = 0; k < out->count; k++)
        out->of[k] = targets ? targets->values[k]->text : column;
    return TR_OK;
}
