/* What run files a folder of a run holds. Local. */
#ifndef TR_RUN_LIST_H
#define TR_RUN_LIST_H

#include "runtime/base/base.h"

bool tr_is_folder(const char *path);
/* Lists them in `to` (NULL: nowhere), a line each with its size. *file, allocated: model.h5, or
 * before training has ended the newest checkpoint. TR_FILE where there is neither. */
tr_status tr_run_list(const char *folder, FILE *to, char **file);
/* A run's folder stands for its run file: *path is then *found, allocated; else *found stays
 * NULL. */
tr_status tr_run_file_of(const char **path, char **found);

#endif
