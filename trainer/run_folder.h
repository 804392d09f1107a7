/* The run folder: one run's place on disk. Rank 0 only; Local. */
#ifndef TR_RUN_FOLDER_H
#define TR_RUN_FOLDER_H

#include "runtime/config/config.h"

typedef struct tr_run_folder tr_run_folder;

/* Makes the folder (and checkpoints/ in it) and locks it until it is closed, so that two jobs never
 * write to one run. A folder that holds a run is refused (TR_USAGE) unless `resume` or `force`.
 * Changes nothing that is there; when it fails, nothing that it made is left. */
tr_status tr_run_folder_open(const char *folder, bool resume, bool force, tr_run_folder **out);
/* `undo`: the run did not begin. Folders that open made are removed again where they are empty. */
void tr_run_folder_close(tr_run_folder *f, bool undo);
/* Once all else is known to work: removes the files of the run that is replaced (not when
 * resuming), and nothing else; writes config.yaml. */
tr_status tr_run_folder_begin(const char *folder, const char *config_text, bool resume);

#endif
