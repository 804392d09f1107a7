/* What a config leaves to the data: data.normalize: auto, data.normalize_targets: auto,
 * class_weights: balanced. */
#ifndef TR_TRAINER_RESOLVE_H
#define TR_TRAINER_RESOLVE_H

#include "collectives/collectives.h"
#include "runtime/graph/model.h"

/* "KEY=VALUE", owned, of keys that a config leaves open. */
#define TR_OPEN_MOST 6
typedef struct {
    char *v[TR_OPEN_MOST];
    size_t count;
} tr_found_keys;

/* *Collective.* What tr_data_resolve gives the config; to be freed where it failed, too. */
tr_status tr_data_find(tr_comm *comm, const tr_config *c, const tr_model *m, const char *kept,
                       tr_found_keys *out);
void tr_found_keys_free(tr_found_keys *f);
/* *Collective.* *out, allocated: the config with the numbers of its training data, or with those
 * that the config in `kept` has, a run's folder (NULL: none); NULL: nothing was left open. The same
 * bits for any number of ranks. */
tr_status tr_data_resolve(tr_comm *comm, const tr_config *c, const tr_model *m, const char *kept,
                          tr_config **out);
/* *Local.* "PATH=VALUE" of the config in a run's folder, allocated; *out stays NULL where it has
 * none. */
tr_status tr_config_kept(const char *folder, const char *path, char **out);

#endif
