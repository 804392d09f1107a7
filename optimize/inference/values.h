/* A network's values where a session reads them, for `m`, a copy of the network's model, which must
 * outlive them. Private to engines. */
#ifndef TR_INFERENCE_VALUES_H
#define TR_INFERENCE_VALUES_H

#include "optimize/network/network.h"
#include "runtime/params/params.h"

/* Copies, in the backend's memory. */
tr_status tr_inference_values(const tr_network *n, const tr_model *m, const tr_backend *b,
                              void *backend_ctx, tr_params **out);
/* The parameters themselves where the host's memory is the backend's: the network has none then.
 * Else copies. */
tr_status tr_inference_take_values(tr_network *n, const tr_model *m, const tr_backend *b,
                                   void *backend_ctx, tr_params **out);

#endif
