/* What backends share whose memory is the host's and whose kernels are done when they return:
 * memory, marks, and the control of a step. */
#ifndef TR_HOST_H
#define TR_HOST_H

#include "runtime/device/backend.h"

extern const tr_device_memory tr_host_memory; /* plain memory; copies are memcpy */

extern const tr_device_marks tr_host_marks; /* by tr_now */

/* Of tr_device_training; what it opens starts with a tr_host_training, zeroed. */
typedef struct tr_host_training {
    int threads;
    tr_control reports[2];
} tr_host_training;
tr_status tr_host_set_input(void *training, tr_control *c, const tr_control_input *in);
tr_status tr_host_lap(void *training, tr_control *c, int lap);
tr_status tr_host_report_begin(void *training, const tr_control *c, int slot);
tr_status tr_host_report_poll(void *training, int slot, tr_control *out, bool *done);

#endif
