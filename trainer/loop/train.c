/* The stage `train`, and the training loop as a function for stages that train. */
#include "runtime/optimizer/groups.h"
#include "trainer/pipeline/stages.h"
#include "trainer/loop/trainer.h"

tr_status tr_train(const tr_trainer_options *o, bool *agreed)
{
    tr_trainer *t = NULL;
    tr_status st = tr_trainer_open(o, &t);
    *agreed = true;
    if (st != TR_OK) return st;
    st = tr_trainer_run(t);
    *agreed = st == TR_OK || st == TR_STOPPED || st == TR_NONFINITE || t->agreed;
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_trainer_close(t);
        tr_set_error(&why);
    }
    return st;
}

/* As data.buckets says. */
static tr_status shorten(const tr_config *c, tr_model *m)
{
    static const char key[] = "data.buckets";
    if (c->data.buckets.count > 0 && tr_config_mixes(c))
        return tr_config_fail(c, key, "a mixed sample has no length: not with data.augment.%s",
                              c->data.augment.mixup.present ? "mixup" : "cutmix");
    if (c->data.buckets.count > 0 && tr_config_distills(c))
        return tr_config_fail(c, key,
                              "the teacher has no plans for fewer rows: not with train.distill");
    const tr_status st = tr_model_shorten(m, &c->data.buckets);
    if (st != TR_CONFIG) return st;
    char text[TR_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", tr_last_error()->text);
    return tr_config_fail(c, key, "%s", text);
}

/* PyTorch's optimizers refuse an empty list of parameters, its losses a graph without any. */
tr_status tr_train_model(const tr_config *c, tr_model **out)
{
    tr_model *m = NULL;
    tr_status st;
    int *segments = NULL;
    TR_TRY(tr_model_open(c, 0, &m));
    TR_TRY(tr_groups_freeze(c, &m));
    TR_NEED(m->nparams > 0, TR_CONFIG, "model: no layer has parameters: there is nothing to train");
    TR_NEED(m->learned_count > 0, TR_CONFIG,
            "model: every parameter is frozen: there is nothing to train; leave `freeze: true` out "
            "where a layer shall learn%s",
            c->train.freeze ? ", and patterns out of train.freeze" : "");
    TR_TRY(tr_groups_check(c, m));
    TR_TRY(tr_segments_read(c, m, &segments));
    TR_TRY(shorten(c, m));
    *out = m;
out:
    tr_free(segments);
    if (st != TR_OK) tr_model_close(m);
    return st;
}

/* A small first bucket: communication starts early. GPUs: what NCCL needs to come near the bandwidth of
 * its links; PyTorch's sizes, too. */
tr_status tr_train_buckets(const tr_config *c, const tr_backend *b, tr_model *m)
{
    const size_t mib = (size_t)1 << 20, chosen = (size_t)(c->run.bucket_mb * 1e6);
    const tr_status st = chosen > 0 ? tr_model_cut(m, chosen, chosen)
                                    : tr_model_cut(m, mib, b->host ? 4 * mib : 25 * mib);
    return st == TR_OK ? shorten(c, m) : st;
}

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
