/* Where memory lies, and how much of which kind. */
#ifndef TR_SPACE_H
#define TR_SPACE_H

#include "runtime/device/backend.h"

/* Where memory lies: a device's own, all else. */
typedef enum { TR_SPACE_DEVICE, TR_SPACE_HOST, TR_SPACES } tr_space;

/* Memory that grows with the model, the batch or the data. TR_MEM_OTHER (op lists, kernels, the
 * config) stays 0: it is neither predicted nor counted as held. */
typedef struct {
    size_t bytes[TR_SPACES][TR_MEM_KINDS];
    size_t total[TR_SPACES];
} tr_memory_total;

/* Where the backend's kernels work. */
static inline tr_space tr_space_of(const tr_backend *b)
{
    return b->host ? TR_SPACE_HOST : TR_SPACE_DEVICE;
}

#endif
