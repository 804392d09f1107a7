/* What the stage `export` wrote as ONNX, read back and run on data beside the network that it was written of. */
#ifndef TR_OPTIMIZE_EXPORT_VERIFY_H
#define TR_OPTIMIZE_EXPORT_VERIFY_H

#include "optimize/stages/stages.h"

/* What a file was written by. */
typedef struct {
    bool normalize; /* it takes values as data files have them */
    tr_dtype weights;
    uint64_t samples; /* to compare it on, at most */
} tr_export_written;

/* *Collective.* Fails where it answers otherwise than job's network, or is not read. Findings get what was compared; where no data is
 * at hand that nothing was, which is told. */
tr_status tr_export_verify(const tr_stage_job *job, const char *path, const tr_export_written *w);

#endif
