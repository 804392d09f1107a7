/* Parameter groups and freezing, as the config says: PyTorch's param_groups and requires_grad.
 * Local. */
#ifndef TR_GROUPS_H
#define TR_GROUPS_H

#include "runtime/device/training.h"
#include "runtime/graph/model.h"

/* Freezes what train.freeze names; *model may become another one. TR_CONFIG: a pattern matches
 * nothing. */
tr_status tr_groups_freeze(const tr_config *c, tr_model **model);

/* Of a model that layers were taken away of: train.freeze, or train.groups, without the patterns
 * that match nothing, as an override ("train.freeze=[...]"); NULL: all match. *gone: those
 * patterns, in words. Both to be freed by free. */
tr_status tr_groups_forget(const tr_config *c, const tr_model *m, bool freeze, char **override,
                           char **gone);

typedef struct {
    int group;        /* of train.groups; -1: none */
    double lr_factor; /* of the optimizer's learning rate */
    double decay;     /* weight decay, lr not yet multiplied in */
    bool own;         /* `rates` are not the optimizer's */
    tr_rates rates;
} tr_row_rule;
/* Of each of the model's parameters; to be released by tr_free. The first group that matches
 * counts. */
tr_status tr_groups_rules(const tr_config *c, const tr_model *m, tr_row_rule **out);
/* TR_CONFIG: a group has no parameter that learns. */
tr_status tr_groups_check(const tr_config *c, const tr_model *m);
/* Lines of `trainer plan`; none where there is nothing of the kind. */
tr_status tr_groups_describe(const tr_config *c, const tr_model *m, FILE *to);

#endif
