/* The run folder: one run's place on disk. Rank 0 only; Local. */
#ifndef TR_RUN_FOLDER_H
#define TR_RUN_FOLDER_H

#include "runtime/config/config.h"

typedef struct tr_run_folder tr_run_folder;

/* Makes the folder (and checkpoints/ in it) and locks it until it is closed, so that two jobs never
 * write to one run. A folder that holds a run is refused (TR_USAGE) unless `resume` or `force`; one
 * that holds files with the names of a run's which no run of ours made is refused in any case, so
 * is one whose checkpoints/ or stages/ is a link.
 * Changes nothing that is there, but for the rest of a run that was being replaced when its job was
 * killed: that goes. When it fails, nothing that it made is left. */
tr_status tr_run_folder_open(const char *folder, bool resume, bool force, tr_run_folder **out);
/* To be called with the run's first result in hand, before anything is written for it: marks the
 * folder as a run's, writes config.yaml, then removes the files of the run that is replaced (not
 * when resuming) and what killed writers left unfinished, and nothing else. Where config.yaml
 * cannot be written, nothing changes. TR_USAGE where another job began one in the folder meanwhile
 * (locks do not work everywhere). Does nothing the second time. */
tr_status tr_run_folder_begin(tr_run_folder *f, const char *config_text);
/* Removes the run that is in the folder, which was opened with `force`: for who knows that it
 * counts for nothing. Nothing of it is ever gone on with, wherever this is killed. */
tr_status tr_run_folder_discard(tr_run_folder *f);
/* Whether this file is the .lock of a folder in which a run began. */
bool tr_run_folder_is_marked(const char *lock);
/* The run begins with one more file, of a name that no run has. Neither text is copied. */
void tr_run_folder_with(tr_run_folder *f, const char *name, const char *text);
/* *Local.* Its config is another one, once it began. */
tr_status tr_run_folder_config(const tr_run_folder *f, const char *config_text);
const char *tr_run_folder_path(const tr_run_folder *f);
/* To be called before something is written: where the folder is now. Its path changes where it was
 * moved (*moved; the one before stays valid until it moves again). TR_IO where it was removed. */
tr_status tr_run_folder_follow(tr_run_folder *f, bool *moved);
/* The folder as open found it, if the run did not begin: what open made is removed where it is
 * empty. */
void tr_run_folder_undo(tr_run_folder *f);
void tr_run_folder_close(tr_run_folder *f); /* undoes first */

#endif
