/* Keys of `train` that a stage gives to a training within it. */
#include "optimize/stages/stages.h"

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

tr_status tr_training_keys_check(const tr_config *c, const tr_node *at, const tr_node *train,
                                 size_t place)
{
    tr_config *derived = NULL;
    char **overrides = NULL;
    size_t n = 0;
    tr_status st = TR_OK;
    if (train && train->kind != TR_NODE_MAP)
        return tr_node_fail(train, "pipeline.%zu.train: expected a map of keys of `train`", place);
    TR_TRY(tr_training_keys(train, &overrides, &n));
    st = tr_config_derive(c, (const char *const *)overrides, n, &derived);
    if (st == TR_CONFIG || st == TR_USAGE) {
        const tr_error why = *tr_last_error();
        st = tr_node_fail(at, "pipeline.%zu.train: %s", place, why.text);
    }
out:
    tr_config_close(derived);
    tr_training_keys_free(overrides);
    return st;
}
