/* Learning from a teacher: the fields of train.distill and of stages that take the same. All
 * functions are Local. */
#ifndef TR_CONFIG_DISTILL_H
#define TR_CONFIG_DISTILL_H

#include "runtime/config/sections.h"

/* What a model learns from another one. */
typedef struct {
    bool present;            /* the block stands in the config */
    char *teacher;           /* run file; NULL or "": none, and nothing of this counts */
    double temperature;      /* of the soft loss */
    double hard, soft;       /* weights of the two losses */
    const tr_node *features; /* tr_config_features */
} tr_distill_config;
/* Entries of a table for it at `at` in its struct. */
#define TR_DISTILL_FIELDS(at)                                                                      \
    TR_TEXT("teacher", (at) + offsetof(tr_distill_config, teacher), "",                            \
            "run file of a model with the same inputs and classes, which is learned from; absent " \
            "or \"\": none"),                                                                      \
        TR_REAL("temperature", (at) + offsetof(tr_distill_config, temperature), "4", 0.01, 1000,   \
                NULL, "T: what logits are divided by before the soft loss compares them"),         \
        TR_REAL("hard", (at) + offsetof(tr_distill_config, hard), "0.5", 0, 1e6, NULL,             \
                "weight of the model's own loss"),                                                 \
        TR_REAL(                                                                                   \
            "soft", (at) + offsetof(tr_distill_config, soft), "0.5", 0, 1e6, NULL,                 \
            "weight of T^2 * the KL divergence of softmax(logits / T) from softmax(teacher / T)"), \
        TR_NODE("features", (at) + offsetof(tr_distill_config, features), "",                      \
                "list of {student: LAYER, teacher: LAYER, weight: 1}: the mean squared distance "  \
                "of the two layers' outputs, which must have one shape, times the weight")

typedef struct {
    char *student, *teacher; /* layers */
    double weight;
} tr_feature_config;
#define TR_FEATURES_MAX 7

/* The features of d, at most TR_FEATURES_MAX, to be released by tr_features_free, also after a
 * failure: *count says how many. `path`: of the block, for errors. */
tr_status tr_config_features(const tr_distill_config *d, const char *path,
                             tr_feature_config out[TR_FEATURES_MAX], size_t *count);
void tr_features_free(tr_feature_config *f, size_t count);
/* What its table cannot say; `loss`: the model's; `weighted`: samples have weights; `at`: for
 * errors. */
tr_status tr_distill_check(const tr_distill_config *d, const tr_loss_config *loss, bool weighted,
                           const tr_node *at, const char *path);

#endif
