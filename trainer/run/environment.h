/* What a run is computed on and by, as it was at the time: for metrics.jsonl, and the files of
 * stages. Local. */
#ifndef TR_ENVIRONMENT_H
#define TR_ENVIRONMENT_H

#include "runtime/base/host.h"
#include "runtime/device/backend.h"
#include "runtime/store/store.h"

typedef struct {
    tr_host host;
    char backend[128]; /* what computes: "AVX-512 BF16, oneDNN 2.6.3, 1 thread" */
    char mpi[64];      /* "Open MPI v4.1.4"; "" without MPI */
    char hdf5[24];     /* "1.10.8" */
} tr_environment;
void tr_environment_look(const tr_backend *b, void *ctx, int threads, tr_environment *out);
/* The same as attributes, but for texts that are empty and the host's name. */
tr_status tr_environment_add(const tr_backend *b, void *ctx, int threads, tr_attrs *a);

#endif
