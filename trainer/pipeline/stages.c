/* The one list of stages. */
#include "trainer/pipeline/stages.h"

const tr_stage *const tr_stages[TR_STAGES] = {
    &tr_stage_train,  &tr_stage_benchmark, &tr_stage_finetune, &tr_stage_fold,   &tr_stage_prune,
    &tr_stage_sketch, &tr_stage_quantize,  &tr_stage_profile,  &tr_stage_report, &tr_stage_export};

void tr_stages_known(tr_variant_def out[TR_STAGES + 1])
{
    for (size_t i = 0; i < TR_STAGES; i++)
        out[i] = (tr_variant_def){.name = tr_stages[i]->name,
                                  .fields = tr_stages[i]->fields,
                                  .doc = tr_stages[i]->doc,
                                  .size = tr_stages[i]->options_size};
    out[TR_STAGES] = (tr_variant_def){.name = NULL};
}

tr_status tr_stages_check(const tr_config *c)
{
    for (size_t i = 0; i < c->pipeline.count; i++) {
        const tr_stage *s = tr_stages[c->pipeline.items[i].which];
        const tr_status st = s->check ? s->check(c, i) : TR_OK;
        if (st != TR_OK) return st;
    }
    return TR_OK;
}

tr_status tr_stages_check_first(const tr_config *c)
{
    const tr_list_item *first = c->pipeline.items;
    if (c->pipeline.count > 0 && tr_stages[first->which] == &tr_stage_train) return TR_OK;
    return tr_node_fail(first ? first->at : c->document.root,
                        "pipeline: the first stage is train, which makes the model that the others "
                        "work on; on a model that is there: trainer STAGE FILE");
}
