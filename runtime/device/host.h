/* What backends share whose memory is the host's and whose kernels are done when they return:
 * memory, and the control of a step. */
#ifndef TR_HOST_H
#define TR_HOST_H

#include "runtime/device/backend.h"

extern const tr_device_memory tr_host_memory; /* plain memory; copies are memcpy */

/* Of tr_device_training. */
tr_status tr_host_set_input(void *ctx, tr_control *c, const tr_control_input *in);
tr_status tr_host_lap(void *ctx, tr_control *c, int lap);

#endif
