/* model.init_from: the values of another file that a training starts from. */
#ifndef TR_TRAINER_INIT_FROM_H
#define TR_TRAINER_INIT_FROM_H

#include "collectives/collectives.h"
#include "optimize/network/network.h"
#include "runtime/store/store.h"

/* *Local.* The values of `file` by c's rules (strict where it has none) into `n`, whose rows that
 * are not found keep theirs. origin: the file, and what was taken. */
tr_status tr_init_from_read(const tr_config *c, const char *file, tr_network *n, tr_origin *origin);
/* *Collective.* The network that the config's training starts from: rank 0 reads, all ranks get the
 * same. *out is NULL where training starts from initial values as they are drawn: the config names
 * no file, and no frozen weight is kept in fewer bits, to which drawn ones would have to be
 * rounded. `rounded`: model.round_dims made layers wider, which the error of a file that does not
 * fit mentions. *origin, rank 0's: on entry what a resumed run began from (empty: a new run), and
 * TR_FILE where the config's file is another one; then what was read. */
tr_status tr_init_from_open(const tr_config *c, tr_comm *comm, bool rounded, tr_origin *origin,
                            tr_network **out);

#endif
