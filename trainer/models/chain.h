/* What a pipeline has come to: the network in the last file that it wrote, on every rank. */
#ifndef TR_CHAIN_H
#define TR_CHAIN_H

#include "collectives/collectives.h"
#include "optimize/network/network.h"
#include "runtime/store/store.h"

typedef struct {
    char *file;              /* where it is; NULL: the pipeline has made none yet */
    char sha256[65];         /* of the file */
    char teacher_sha256[65]; /* in it; rank 0's */
    tr_origin origin;        /* likewise */
    uint64_t nbytes;         /* of the model in it (tr_store_model_nbytes) */
    tr_network *network;     /* in it */
    tr_config *config;       /* in it */
    tr_lineage lineage;      /* in it; rank 0's */
    tr_train_state train;    /* in it; rank 0's */
} tr_chain;

/* *Collective.* Rank 0 reads the file, the others get all from it. `overrides` of its config. What
 * `c` held is released; after a failure it is empty. */
tr_status tr_chain_load(tr_comm *comm, const char *file, const char *const *overrides,
                        size_t noverrides, tr_chain *c);
void tr_chain_free(tr_chain *c);
/* *Local.* The config and the model of a run file, without values; both the caller's. */
tr_status tr_chain_model(const char *file, tr_config **config, tr_model **m);

#endif
