/* The stage `finetune`: the training loop on this model, with keys of `train` of its own. */
#include "optimize/stages/stages.h"

#include <string.h>

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

/* "train.KEY=VALUE" for each key. *out: NULL-ended; to be freed by free_overrides. */
static tr_status overrides_of(const tr_node *train, char ***out, size_t *count)
{
    tr_status st = TR_OK;
    const size_t n = train && train->kind == TR_NODE_MAP ? train->count : 0;
    char **all = tr_alloc(TR_MEM_OTHER, n + 1, sizeof *all), *value = NULL;
    if (!all) return tr_last_status();
    *out = all;
    *count = n;
    for (size_t i = 0; i < n; i++) {
        TR_TRY(tr_node_line(train->values[i], &value));
        all[i] = tr_sprintf("train.%s=%s", train->keys[i]->text, value);
        tr_free(value);
        value = NULL;
        TR_HAVE(all[i]);
    }
out:
    tr_free(value);
    return st;
}

static void free_overrides(char **all)
{
    for (size_t i = 0; all && all[i]; i++) tr_free(all[i]);
    tr_free(all);
}

/* What a training would be started with must be a config. */
static tr_status check(const tr_config *c, size_t place)
{
    const tr_list_item *item = &c->pipeline.items[place];
    const finetune_options *o = item->options;
    tr_config *derived = NULL;
    char **overrides = NULL;
    size_t n = 0;
    tr_status st = TR_OK;
    if (o->train && o->train->kind != TR_NODE_MAP)
        return tr_node_fail(o->train, "pipeline.%zu.train: expected a map of keys of `train`",
                            place);
    TR_TRY(overrides_of(o->train, &overrides, &n));
    st = tr_config_derive(c, (const char *const *)overrides, n, &derived);
    if (st == TR_CONFIG || st == TR_USAGE) {
        const tr_error why = *tr_last_error();
        st = tr_node_fail(item->at, "pipeline.%zu.train: %s", place, why.text);
    }
out:
    tr_config_close(derived);
    free_overrides(overrides);
    return st;
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    const finetune_options *o = job->options;
    char **overrides = NULL;
    size_t n = 0;
    tr_status st = overrides_of(o->train, &overrides, &n);
    TR_TRY(tr_agree(job->comm, st, NULL));
    const tr_training t = {
        .start = job->parent, .overrides = (const char *const *)overrides, .noverrides = n};
    TR_TRY(job->train(job, &t, &out->network, agreed));
out:
    free_overrides(overrides);
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
