/* Keys of `train` that a stage gives to a training within it. */
#include "optimize/stages/stages.h"

#include <string.h>

#include "optimize/quantize/quantize.h"
#include "runtime/optimizer/groups.h"

tr_status tr_training_keys(const tr_node *train, char ***out, size_t *count)
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

void tr_training_keys_free(char **all)
{
    for (size_t i = 0; all && all[i]; i++) tr_free(all[i]);
    tr_free(all);
}

/* The last error at the key that it speaks of, as one of the stage's: "command line: KEY=VALUE: train.KEY: ...". */
static tr_status blame(const tr_config *c, size_t place, const tr_node *train, char **keys)
{
    static const char given[] = "command line: ";
    const tr_error why = *tr_last_error();
    const size_t n = sizeof given - 1;
    char key[TR_STAGE_KEY];
    for (size_t i = 0; keys[i] && strncmp(why.text, given, n) == 0; i++) {
        const size_t length = strlen(keys[i]);
        if (strncmp(why.text + n, keys[i], length) != 0 || why.text[n + length] != ':') continue;
        tr_stage_key(c, place, "", key);
        return tr_node_fail(train->values[i], "%s%s", key, why.text + n + length + 2);
    }
    return tr_stage_fail(c, place, "train", "%s", why.text);
}

tr_status tr_training_keys_check(const tr_config *c, size_t place, const tr_node *train)
{
    tr_config *derived = NULL;
    char **keys = NULL;
    size_t n = 0;
    if (train && train->kind != TR_NODE_MAP)
        return tr_stage_fail(c, place, "train", "expected a map of keys of `train`");
    tr_status st = tr_training_keys(train, &keys, &n);
    if (st == TR_OK) st = tr_config_derive(c, (const char *const *)keys, n, &derived);
    if (st == TR_CONFIG || st == TR_USAGE) st = blame(c, place, train, keys);
    tr_config_close(derived);
    tr_training_keys_free(keys);
    return st;
}

/* As the training would freeze it; *out stays where that is not known before it begins. */
static tr_status open_model(const tr_stage_outlook *o, const tr_node *train, tr_model **out)
{
    tr_config *c = NULL;
    tr_model *m = NULL;
    char **keys = NULL;
    size_t n = 0;
    tr_status st = tr_training_keys(train, &keys, &n);
    if (st == TR_OK) st = tr_config_derive(o->config, (const char *const *)keys, n, &c);
    if (st == TR_OK) st = tr_model_open(c, 0, &m);
    if (st == TR_OK) st = tr_groups_freeze(c, &m);
    if (st == TR_OK) st = tr_groups_check(c, m);
    if (st == TR_OK)
        *out = m;
    else
        tr_model_close(m);
    if (st == TR_CONFIG || st == TR_USAGE)
        st = o->left & TR_LEAVES_NAMES ? TR_OK : blame(o->config, o->place, train, keys);
    tr_training_keys_free(keys);
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
