/* The stage `finetune`: the training loop on this model, with keys of `train` of its own. */
#include "optimize/stages/stages.h"

typedef struct {
    tr_stage_common common;
    const tr_node *train;
} finetune_options;

static const tr_field fields[] = {
    TR_STAGE_COMMON(finetune_options),
    TR_NODE("train", offsetof(finetune_options, train), "",
            "keys of `train` that are other than the config's: {epochs: 2, optimizer: {sgd: {lr: "
            "0.001}}}"),
    TR_END,
};

static tr_status check(const tr_config *c, size_t place)
{
    const tr_list_item *item = &c->pipeline.items[place];
    return tr_training_keys_check(c, item->at, ((const finetune_options *)item->options)->train,
                                  place);
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    const finetune_options *o = job->options;
    char **overrides = NULL;
    size_t n = 0;
    tr_status st = tr_training_keys(o->train, &overrides, &n);
    TR_TRY(tr_agree(job->comm, st, NULL));
    const tr_training t = {
        .start = job->parent, .overrides = (const char *const *)overrides, .noverrides = n};
    TR_TRY(job->train(job, &t, &out->network, agreed));
out:
    tr_training_keys_free(overrides);
    return st;
}

const tr_stage tr_stage_finetune = {
    .name = "finetune",
    .doc = "Trains the model that it is given, from its weights on. What it needs to go on after a "
           "stop is in "
           "`stages/NN-finetune/`",
    .fields = fields,
    .options_size = sizeof(finetune_options),
    .check = check,
    .run = run,
};
