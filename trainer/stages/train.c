/* The stage `train`. */
#include "trainer/stages/stages.h"

/* There is no model before it to hand on, nor anything milder to try: what misses a bound fails. */
typedef struct {
    tr_budget budget;
} train_options;

static const tr_field fields[] = {
    TR_BLOCK(
        "budget", offsetof(train_options, budget), tr_budget_fields, "",
        "what the model must keep to, or the job ends with status 1 once it is trained; nothing "
        "is before it, so: accuracy, loss, size_mb, latency_ms"),
    TR_END,
};

const tr_budget *tr_train_budget(const tr_config *c, size_t place)
{
    const train_options *o = c->pipeline.items[place].options;
    return o && o->budget.present ? &o->budget : NULL;
}

/* The run folder holds one training: one place for its checkpoints, one model.h5. */
static tr_status check(const tr_config *c, size_t place)
{
    const tr_list_item *items = c->pipeline.items;
    for (size_t i = 0; i < place; i++)
        if (items[i].which == items[place].which)
            return tr_node_fail(items[place].at,
                                "pipeline.%zu: stage train stands twice; it is already at %d:%d",
                                place, items[i].at->line, items[i].at->column);
    const tr_budget *b = tr_train_budget(c, place);
    if (b && tr_budget_compares(b))
        return tr_stage_fail(c, place, "budget",
                             "there is no model before train to compare with: "
                             "give accuracy, loss, size_mb or latency_ms");
    return TR_OK;
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    return job->train(job, NULL, &out->network, agreed);
}

const tr_stage tr_stage_train = {
    .name = "train",
    .makes = true,
    .doc = "Trains the model, as the key `train` says, and writes `model.h5`",
    .fields = fields,
    .options_size = sizeof(train_options),
    .check = check,
    .run = run,
};
