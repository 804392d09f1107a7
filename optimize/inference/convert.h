/* Between arrays as callers have them (channels first, float32, int32) and as a graph's tensors lie
 * in memory. Private. */
#ifndef TR_INFERENCE_CONVERT_H
#define TR_INFERENCE_CONVERT_H

#include "runtime/graph/graph.h"

/* The tensor's bytes are the caller's as they are. */
bool tr_convert_none(const tr_tensor *t);
/* A whole tensor from the caller's array, and back; `t`: an input, an output, whose rows may stand
 * apart. */
void tr_convert_in(const tr_tensor *t, const void *from, void *to);
void tr_convert_out(const tr_tensor *t, const void *from, float *to);

#endif
