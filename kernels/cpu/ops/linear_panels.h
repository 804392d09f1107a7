/* Linear layers that answer, by panels of their weight. Private. */
#ifndef TR_CPU_LINEAR_PANELS_H
#define TR_CPU_LINEAR_PANELS_H

#include "kernels/cpu/internal.h"

/* Whether that is faster than oneDNN's product of so many rows. */
bool tr_cpu_takes_panels(const tr_cpu *cpu, const tr_graph *g, const tr_op *op, int64_t rows);
tr_cpu_prepare_fn tr_cpu_linear_panels;

#endif
