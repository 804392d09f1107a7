/* train.distill beyond its table: the list of features, and keys that belong together. */
#include "runtime/config/internal.h"

#include <string.h>

static const tr_field feature[] = {
    TR_TEXT("student", offsetof(tr_feature_config, student), NULL, "layer of the model"),
    TR_TEXT("teacher", offsetof(tr_feature_config, teacher), NULL, "layer of the teacher"),
    TR_REAL("weight", offsetof(tr_feature_config, weight), "1", 0, 1e9, NULL, "of their distance"),
    TR_END,
};

void tr_features_free(tr_feature_config *f, size_t count)
{
    for (size_t i = 0; i < count; i++) tr_fields_free(feature, &f[i]);
}

tr_status tr_config_features(const tr_distill_config *d, const char *path,
                             tr_feature_config out[TR_FEATURES_MAX], size_t *count)
{
    const tr_node *n = tr_node_empty(d->features) ? NULL : d->features;
    tr_status st = TR_OK;
    char show[TR_SHOW], at[TR_PATH], index[32];
    *count = 0;
    memset(out, 0, TR_FEATURES_MAX * sizeof *out);
    if (!n) return TR_OK;
    tr_path_join(path, "features", at);
    if (n->kind != TR_NODE_LIST || n->count > TR_FEATURES_MAX)
        return tr_node_fail(
            n, "%s: found %s, expected a list of at most %d maps {student, teacher, weight}", at,
            tr_node_show(n, show), TR_FEATURES_MAX);
    for (size_t i = 0; i < n->count; i++) {
        char where[TR_PATH];
        snprintf(index, sizeof index, "%zu", i);
        TR_TRY(tr_fields_read(n->values[i], feature, tr_path_join(at, index, where), &out[i]));
        *count = i + 1;
    }
out:
    return st;
}

tr_status tr_distill_check(const tr_distill_config *d, const tr_loss_config *loss, bool weighted,
                           const tr_node *at, const char *path)
{
    tr_status st;
    tr_feature_config features[TR_FEATURES_MAX];
    size_t n = 0;
    if (!d->teacher || !*d->teacher) return TR_OK;
    if (loss->kind.which != TR_LOSS_CROSS_ENTROPY)
        return tr_node_fail(at,
                            "%s: model.loss is not cross_entropy: there are no classes to learn "
                            "from a teacher",
                            path);
    if (weighted)
        return tr_node_fail(
            at, "%s: data.train.weights is given: beside a teacher all samples count alike", path);
    if (tr_loss_soft(loss) || loss->ignore_index != TR_NO_LABEL || loss->gamma > 0)
        return tr_node_fail(
            at,
            "%s: model.loss has %s: expected class labels, all of which count alike, "
            "beside a teacher",
            path,
            tr_loss_soft(loss)                  ? "targets: probabilities"
            : loss->ignore_index != TR_NO_LABEL ? "ignore_index"
                                                : "gamma");
    TR_TRY(tr_config_features(d, path, features, &n));
    if (d->hard == 0 && d->soft == 0 && n == 0)
        st = tr_node_fail(at,
                          "%s: hard and soft are 0, and there are no features: nothing would be "
                          "learned",
                          path);
out:
    tr_features_free(features, n);
    return st;
}
