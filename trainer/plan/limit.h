/* What a limit on memory comes to in bytes, and what of it goes to programs. */
#ifndef TR_TRAINER_LIMIT_H
#define TR_TRAINER_LIMIT_H

#include "runtime/config/config.h"
#include "runtime/graph/model.h"
#include "trainer/device/space.h"

/* *Local.* What run.memory_limit (auto too) is in bytes, of `have` that are there. */
size_t tr_memory_limit(const tr_config *c, tr_space space, size_t have);
/* *Local.* What a program that holds `rss` bytes at its start counts for: steps of 32 MiB. */
size_t tr_program_start(size_t rss);
/* *Local.* Bytes to set aside for the programs of `ranks` ranks, besides what is planned: for
 * `starting` of them what a program holds by itself, `start`, as that is not yet missing from the
 * memory that is left; and for all of them room for what they will allocate unplanned: kernels for
 * plans of m's shorter models are counted beside (m NULL: there are none). 0 on a GPU. */
size_t tr_program_bytes(tr_space space, const tr_model *m, size_t start, int starting, int ranks);
/* *Local.* The same of the config's limit: one in bytes is of whole processes, so that it has to
 * cover all `ranks` programs; auto is of what is left beside them. */
size_t tr_memory_programs(const tr_config *c, tr_space space, const tr_model *m, size_t start,
                          int ranks);
/* "about ", or "": what programs take differs from start to start. */
const char *tr_about(tr_space space);

#endif
