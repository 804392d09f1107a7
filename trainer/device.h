/* What the config says of devices, for runs and plans alike. All Local, all pure. */
#ifndef TR_TRAINER_DEVICE_H
#define TR_TRAINER_DEVICE_H

#include "runtime/backend.h"
#include "runtime/config/config.h"

/* TR_CONFIG where the config asks for what CPUs, or GPUs, do not have. */
tr_status tr_config_fits_cpu(const tr_config *c);
tr_status tr_config_fits_gpu(const tr_config *c);

/* Gradients of GPUs go through NCCL; else through the host's memory and MPI, which cannot be
 * recorded. */
bool tr_config_nccl(const tr_config *c);
/* How the backend of GPU `device` is opened. */
tr_backend_options tr_gpu_options(const tr_config *c, int threads, int device);

#endif
