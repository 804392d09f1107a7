/* A process that looks at an HDF5 file, and what it says. Private to the data room. Local. */
#ifndef TR_DATA_HDF5_PROCESS_H
#define TR_DATA_HDF5_PROCESS_H

#include <sys/types.h>

#include "runtime/data/hdf5.h"

/* What comes back for a dataset; both ends are the same program. It is no better than the file:
 * checked before it is used. */
typedef struct {
    tr_status st;
    char text[TR_ERROR_TEXT];
    int missing; /* not 0: there is no such dataset */
    tr_hdf5_sight sight;
    size_t count; /* of tr_hdf5_listed behind it */
} tr_hdf5_letter;

typedef struct {
    const tr_data_file *file;
    double seconds, deadline; /* deadline: tr_now() + seconds, or earlier */
    pid_t pid;
    int from; /* its stdout */
} tr_looker;

/* At these names, each of which a letter is for, up to the first that fails; without any at all
 * datasets: one letter, and what is listed. To be closed where it was opened. */
tr_status tr_looker_open(tr_looker *p, const tr_data_file *file, const char *const *names,
                         size_t count, double seconds);
/* False: not all of the bytes came until the deadline, or its end. */
bool tr_looker_hear(const tr_looker *p, void *to, size_t nbytes);
/* Ends it. `all`: it said everything; else what became of it at `what` is the failure. */
tr_status tr_looker_close(tr_looker *p, const char *what, bool all);

#endif
