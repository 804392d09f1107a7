/* Kernels say what happened in terms of their own; which key of the config changes it is said
 * here. */
#include "trainer/device/advice.h"

const char *tr_advice(tr_hint hint)
{
    switch (hint) {
    case TR_HINT_NONE:
    case TR_HINT_NO_DRIVER:
        break;
    case TR_HINT_DEVICE_MEMORY:
        return "lower train.micro_batch, set train.recompute, or end what else runs on this GPU";
    case TR_HINT_PINNED_MEMORY:
        return "raise the limit of locked memory (ulimit -l) or the job's memory, or lower "
               "train.micro_batch";
    case TR_HINT_BATCH:
        return "lower train.micro_batch";
    case TR_HINT_WORKSPACE:
        return "raise run.workspace_mb";
    case TR_HINT_RECORDING:
        return "run.cuda_graph: off does without";
    case TR_HINT_DISK_FULL:
        return "make room there"; /* older checkpoints have given theirs */
    }
    return NULL;
}

void tr_log_failure(tr_log_level level)
{
    const tr_error *e = tr_last_error();
    const char *advice = tr_advice(e->hint);
    tr_log(level, "%s%s%s", e->text, advice ? ": " : "", advice ? advice : "");
}
