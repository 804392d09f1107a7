/* The files of stages, in the folder stages/ of a run: NN-NAME.h5, what a stage makes beside it
 * (NN-NAME.onnx, ...), the folders NN-NAME/ of trainings within a stage. Rank 0's; Local. */
#ifndef TR_STAGE_FILES_H
#define TR_STAGE_FILES_H

#include "runtime/base/base.h"

/* FOLDER/stages/NN-NAME, to which extensions are added. Allocated. */
char *tr_stage_path(const char *folder, size_t number, const char *name);
/* "NN-NAME", "NN-NAME.EXTENSION" or what is in a folder of such a name, with the name of a stage.
 */
bool tr_stage_files_name(const char *name);
/* Makes FOLDER/stages where it is not there. */
tr_status tr_stage_files_make(const char *folder);
/* Removes what stages of numbers from `first` on left there, and of stage `first` only what bears
 * another name than `keep` (NULL: all). Each is said in the log where `say`. */
tr_status tr_stage_files_remove(const char *folder, size_t first, const char *keep, bool say);
/* Says what stages of numbers from `first` on left there, which no pipeline has asked for since; it
 * stays, as what comes back into the pipeline may be done. */
tr_status tr_stage_files_left(const char *folder, size_t first);
/* Removes what killed writers left there under temporary names. */
tr_status tr_stage_files_tidy(const char *folder);

#endif
