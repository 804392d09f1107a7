/* What writing and reading LSTM and GRU share. Private to these. */
#ifndef TR_ONNX_OPS_RECURRENT_H
#define TR_ONNX_OPS_RECURRENT_H

#include "optimize/onnx/ops/ops.h"

/* Blocks of `size` values, one a gate, from PyTorch's order into the operators', or back. */
void tr_onnx_reorder(size_t gates, const float *from, float *to, size_t size, bool back);

/* Transposes: of (batch, rows, features) and back, and of the operators' (rows, directions, batch,
 * hidden) to the batch first. */
static const int64_t tr_onnx_rows_first[] = {1, 0, 2}, tr_onnx_batch_first[] = {2, 0, 1, 3};

/* {0} ends them. */
extern const tr_onnx_layer tr_onnx_recurrent_layers[];

#endif
