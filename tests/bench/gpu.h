/* The verbs of bench_gpu; each prints lines of JSON. */
#ifndef TR_BENCH_GPU_H
#define TR_BENCH_GPU_H

#include "runtime/base/base.h"

/* *Local.* `ops`, `step`, `plan` of a config: gpu_ops.c. */
tr_status bench_config(const char *verb, int argc, char **argv);
/* *Collective.* `allreduce`: gpu_allreduce.c. */
tr_status bench_allreduce(int argc, char **argv);

#endif
