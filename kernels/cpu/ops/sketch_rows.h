/* A product of a sketched layer where answers are of one sample. Private. */
#ifndef TR_CPU_SKETCH_ROWS_H
#define TR_CPU_SKETCH_ROWS_H

#include "kernels/cpu/internal.h"

/* Whether signs as bits are faster: where no rows share what is read of the matrix. */
bool tr_cpu_takes_sketch_rows(const tr_cpu *cpu, const tr_graph *g, const tr_op *op, int64_t rows);
tr_cpu_prepare_fn tr_cpu_sketch_rows;

#endif
