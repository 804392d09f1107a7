/* What a resumed run keeps of how it was started. */
#ifndef TR_TRAINER_KEEP_H
#define TR_TRAINER_KEEP_H

#include "collectives/collectives.h"
#include "runtime/config/config.h"

/* *Collective.* Sets run.deterministic as config.yaml of the run folder has it, where `c` does not
 * give the key: its default was another once, and a run that promised the same bits goes on to keep
 * that promise. Rank 0 reads, and says what was kept. A folder without the file, or without the key
 * in it, changes nothing. TR_CONFIG where `on` is to be kept and `c` asks for run.benchmark, which
 * the same bits exclude. */
tr_status tr_config_keep(tr_config *c, tr_comm *comm);

#endif
