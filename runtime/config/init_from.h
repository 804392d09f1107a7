/* model.init_from: the file that a training starts from, and how its arrays become the model's.
 * Local. */
#ifndef TR_CONFIG_INIT_FROM_H
#define TR_CONFIG_INIT_FROM_H

#include "runtime/config/config.h"
#include "runtime/config/renames.h"

/* file NULL: there is none. */
typedef struct {
    char *file; /* owned; as it is written: tr_config_path */
    bool strict;
    tr_renames names; /* owned */
} tr_init_from;
tr_status tr_config_init_from(const tr_config *c, tr_init_from *out);
void tr_init_from_free(tr_init_from *o);

#endif
