/* Which device computes: what the config says, for runs and plans alike, and what ranks can
 * have. */
#ifndef TR_TRAINER_DEVICE_H
#define TR_TRAINER_DEVICE_H

#include "collectives/collectives.h"
#include "runtime/config/config.h"
#include "runtime/device/backend.h"

/* What a job computes and reduces with. */
typedef struct {
    const tr_backend *backend;
    const tr_gpu_reducers *reducers; /* NULL on CPUs */
    tr_backend_options options;
    bool nccl;        /* GPUs: the reducer */
    uint64_t without; /* bit i: the job does not use the i-th GPU that this process sees */
} tr_chosen_device;

/* How device: auto came to CPUs, for the message about a config that only fits GPUs. */
typedef struct {
    const char *tried, *why; /* "device: auto looked for a GPU", what it found */
    const char *instead;     /* "start ... where there is one": besides changing the value */
} tr_cpu_reason;

/* ---- What the config says: Local, pure ---- */

/* TR_CONFIG where the config asks for what CPUs, or GPUs, do not have. `reason` NULL: device:
 * cpu. */
tr_status tr_config_fits_cpu(const tr_config *c, const tr_cpu_reason *reason);
tr_status tr_config_fits_gpu(const tr_config *c);

/* Fails where the config asks for a device or a precision that this program lacks. */
tr_status tr_device_check(const tr_config *c);
/* Gradients of GPUs go through NCCL; else through the host's memory and MPI, which cannot be
 * recorded. */
bool tr_config_nccl(const tr_config *c);
/* Whether every run gives the same bits: on CPUs (`host`) always, on GPUs where the config asks for
 * it. */
bool tr_config_deterministic(const tr_config *c, bool host);
/* How the backend of GPU `device` is opened. */
tr_backend_options tr_gpu_options(const tr_config *c, int device, bool nccl);
/* The backend's own text and, where kernels run on the host, on how many threads. */
void tr_device_describe(const tr_backend *b, void *ctx, int threads, char *buf, size_t size);

/* ---- What ranks can have ---- */

/* *Collective.* What the config's device asks for and every rank can have, with its options, but
 * for the threads; device: auto takes GPUs where all ranks have one, else says once why not, but
 * where the machine has no driver: that only a training says (`trains`). */
tr_status tr_device_choose(const tr_config *c, tr_comm *comm, bool trains, tr_chosen_device *out);

/* How a rank's GPU could not be used. */
typedef struct {
    bool here;       /* it was this rank's */
    bool connecting; /* it was open, and was to be connected with the others */
} tr_device_failure;

/* *Collective.* After *d could not be used on some rank, with the agreed `st` and its record: for
 * device: auto other GPUs of the nodes, without those that failed, or where there are none, CPUs,
 * saying once why; else `st`. */
tr_status tr_device_next(const tr_config *c, tr_comm *comm, tr_status st, tr_device_failure how,
                         tr_chosen_device *d);

#endif
