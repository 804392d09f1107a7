/* The files that a run leaves in its folder, known by their names. Local. */
#ifndef TR_RUN_FILES_H
#define TR_RUN_FILES_H

#include "runtime/base/base.h"

/* The first of them that is found there, in *name; "" where there is none. `checkpoints`: also of
 * those in checkpoints/. Temporary files do not count. */
tr_status tr_run_files_find(const char *folder, bool checkpoints, char *name, size_t size);
/* Whether a path within the folder is a name of theirs, or of what stages leave. */
bool tr_run_files_name(const char *within);
/* Removes them, and temporaries whose writer is gone. */
tr_status tr_run_files_remove(const char *folder, bool but_config);
/* Removes temporaries alone. */
tr_status tr_run_files_tidy(const char *folder);
/* Whether the metrics that lie there begin as a run's do: the sign of folders from before they were
 * marked. */
bool tr_run_files_signed(const char *folder);

#endif
