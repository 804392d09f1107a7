/* Keys of `train` that a stage gives to a training within it. */
#include "optimize/stages/stages.h"

#include <string.h>

#include "optimize/quantize/quantize.h"
#include "runtime/optimizer/groups.h"

/* A key may be right in itself, and wrong in this stage's training alone. Returns st. */
static tr_status within(const tr_config *c, size_t place, tr_status st)
{
    if (st != TR_CONFIG || tr_last_error()->hearsay) return st;
    return tr_fail_behind(st, " (in the training of pipeline.%zu.%s)", place,
                          tr_stage_name(c, place));
}

tr_status tr_training_keys_check(const tr_config *c, size_t place, const tr_overrides *o)
{
    tr_config *derived = NULL;
    if (o->train && o->train->kind != TR_NODE_MAP)
        return tr_stage_fail(c, place, "train", "expected a map of keys of `train`");
    const tr_status st = tr_config_derive(c, o, &derived);
    tr_config_close(derived);
    return within(c, place, st);
}

/* As the training would freeze it; *out stays where that is not known before it begins. */
static tr_status open_model(const tr_stage_outlook *o, const tr_node *train, tr_model **out)
{
    tr_config *c = NULL;
    tr_model *m = NULL;
    tr_status st = tr_config_derive(o->config, &(tr_overrides){.train = train}, &c);
    if (st == TR_OK) st = tr_model_open(c, 0, &m);
    if (st == TR_OK) st = tr_groups_freeze(c, &m);
    if (st == TR_OK) st = tr_groups_check(c, m);
    if (st == TR_OK)
        *out = m;
    else
        tr_model_close(m);
    st = st == TR_CONFIG && o->left & TR_LEAVES_NAMES ? TR_OK : within(o->config, o->place, st);
    tr_config_close(c);
    return st;
}

tr_status tr_training_model_check(const tr_stage_outlook *o, const char *option,
                                  const tr_node *train)
{
    tr_status st;
    tr_model *m = NULL;
    /* of 8 bits perhaps, which can be trained */
    const bool halves = o->left & TR_LEAVES_16_BITS && !(o->left & TR_LEAVES_INT8);
    TR_TRY(open_model(o, train, &m));
    if (!m) goto out;
    if (m->learned_count == 0 && !(o->left & TR_LEAVES_NAMES))
        st = tr_stage_fail(o->config, o->place, option,
                           "every parameter is frozen: there is nothing to train");
    for (size_t i = 0; i < m->nlayers && halves && st == TR_OK; i++) {
        const tr_layer *l = &m->layers[i];
        if (tr_quantize_stores(m, l) && !m->params[l->params[0]].frozen)
            st = tr_stage_fail(o->config, o->place, option,
                               "quantize stands before and leaves the weight of layer \"%s\" in "
                               "16 bits, which cannot be trained: quantize behind, or to int8",
                               l->name);
    }
out:
    tr_model_close(m);
    return st;
}

tr_status tr_training_run(const tr_stage_job *job, const tr_training *t, tr_network **out,
                          bool *agreed)
{
    return within(job->config, job->place, job->train(job, t, out, agreed));
}
