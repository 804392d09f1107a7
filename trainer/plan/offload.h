/* run.offload: what it costs that the optimizer's slots lie in host memory. All Local. */
#ifndef TR_TRAINER_OFFLOAD_H
#define TR_TRAINER_OFFLOAD_H

#include "trainer/plan/plan.h"

/* Bytes of a rank's slots, and of them what a step moves over the link. All 0: nothing is
 * offloaded. */
typedef struct {
    size_t slots, up, down;
} tr_offload_cost;
void tr_offload_cost_of(const tr_memory_of *of, tr_offload_cost *out);

/* "the optimizer's 80 MB in host memory, 80 MB up and 80 MB down a step" */
void tr_offload_describe(const tr_offload_cost *c, char *buf, size_t room);

/* The link's bytes a second from pinned host memory to the device and back, of some copies the
 * fastest. */
tr_status tr_offload_link(const tr_backend *b, void *ctx, double *up, double *down);

/* TR_CONFIG where the backend has nowhere to offload from. */
tr_status tr_offload_check(const tr_config *c, const tr_backend *b);

#endif
