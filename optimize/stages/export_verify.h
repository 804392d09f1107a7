/* What the stage `export` wrote as ONNX, read back and run on data beside the network that it was
 * written of. */
#ifndef TR_OPTIMIZE_EXPORT_VERIFY_H
#define TR_OPTIMIZE_EXPORT_VERIFY_H

#include "optimize/stages/stages.h"

/* How a file was written, and on how much it is to be judged. */
typedef struct {
    bool normalize; /* it takes values as data files have them */
    tr_dtype weights;
    uint64_t samples; /* to compare it on, at most */
} tr_export_written;

/* *Collective.* Fails where the file cannot be read, or answers otherwise than job's network.
 * Findings get what was compared; without data at hand, that nothing was, which is told. */
tr_status tr_export_verify(const tr_stage_job *job, const char *path, const tr_export_written *w);

#endif
