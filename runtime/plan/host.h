/* The functions of a backend whose memory is the host's and whose kernels are done when they
 * return: everything but ops, updates, reports and marks. A backend's definition starts with
 * TR_HOST_BACKEND. */
#ifndef TR_HOST_H
#define TR_HOST_H

#include "runtime/backend.h"

int tr_host_devices(char *why, size_t size);
bool tr_host_load(void *ctx, tr_device_load *out);
void *tr_host_alloc(void *ctx, tr_mem_kind kind, size_t nbytes);
void tr_host_free(void *ctx, void *p);
tr_status tr_host_zero(void *ctx, void *p, size_t nbytes);
tr_status tr_host_copy(void *ctx, void *to, const void *from, size_t nbytes);
tr_status tr_host_done(void *ctx);
tr_status tr_host_stage_reserve(void *ctx, size_t nbytes);
tr_status tr_host_stage(void *ctx, const void *data, size_t nbytes, void **where);
tr_status tr_host_staged(void *ctx, bool *done);
tr_status tr_host_set_input(void *ctx, tr_control *c, const tr_control_input *in);
tr_status tr_host_lap(void *ctx, tr_control *c, int lap);
tr_status tr_host_section_begin(void *ctx, uint64_t key, bool *replay);
tr_status tr_host_section_end(void *ctx, tr_status st);
void *tr_host_stream(void *ctx);

#define TR_HOST_BACKEND                                                                            \
    .host = true, .devices = tr_host_devices, .load = tr_host_load, .alloc = tr_host_alloc,        \
    .free = tr_host_free, .host_alloc = tr_host_alloc, .host_free = tr_host_free,                  \
    .zero = tr_host_zero, .copy = tr_host_copy, .upload = tr_host_copy, .download = tr_host_copy,  \
    .finish = tr_host_done, .stage_reserve = tr_host_stage_reserve, .stage_begin = tr_host_done,   \
    .stage = tr_host_stage, .stage_poll = tr_host_staged, .set_input = tr_host_set_input,          \
    .lap = tr_host_lap, .section_begin = tr_host_section_begin,                                    \
    .section_end = tr_host_section_end, .stream = tr_host_stream

#endif
