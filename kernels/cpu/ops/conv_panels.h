/* Convolutions that answer, by panels of their weight. Private. */
#ifndef TR_CPU_CONV_PANELS_H
#define TR_CPU_CONV_PANELS_H

#include "kernels/cpu/internal.h"

/* Whether that is faster than oneDNN's. */
bool tr_cpu_takes_conv_panels(const tr_cpu *cpu, const tr_graph *g, const tr_op *op);
tr_cpu_prepare_fn tr_cpu_conv_panels;

#endif
