/* The run folder: one run's place on disk. Rank 0 only; Local. */
#ifndef TR_RUN_FOLDER_H
#define TR_RUN_FOLDER_H

#include "runtime/config/config.h"

/* Makes the folder (and checkpoints/ in it) and locks it for as long as the process lives, so that
 * two jobs never write to one run. A folder that holds a run is refused (TR_USAGE) unless `resume`
 * or `force`. Changes nothing in it yet. *lock: keep it open. */
tr_status tr_run_folder_open(const char *folder, bool resume, bool force, int *lock);
/* Once all else is known to work: removes the files of the run that is replaced (not when
 * resuming), and nothing else; writes config.yaml. */
tr_status tr_run_folder_begin(const char *folder, const char *config_text, bool resume);

#endif
