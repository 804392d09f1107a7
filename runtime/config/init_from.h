/* model.init_from: the file that a training starts from, and how its arrays become the model's. Local. */
#ifndef TR_CONFIG_INIT_FROM_H
#define TR_CONFIG_INIT_FROM_H

#include "runtime/config/config.h"

/* A pattern of the file's names, and what these become: no more * than in `from`; "": left out. Both are the config's. */
typedef struct tr_init_rule {
    const char *from, *to;
} tr_init_rule;

/* file NULL: there is none. */
typedef struct {
    char *file; /* owned; as it is written: tr_config_path */
    bool strict;
    size_t nrules, ntransposed;
    tr_init_rule *rules;      /* owned; the first that matches counts */
    tr_init_rule *transposed; /* owned; `from` alone */
} tr_init_from;
tr_status tr_config_init_from(const tr_config *c, tr_init_from *out);
void tr_init_from_free(tr_init_from *o);

#endif
