/* The inference engine: a network that answers. Opened once, then run on any number of samples up
 * to a limit, any number of times. Engines are independent of each other: each has its own kernels,
 * threads and memory, and any number of them may be at work at once, each in one thread at a time
 * (two calls on one engine must not overlap).
 *
 * Arrays are as PyTorch has them: channels first, float32, ids int32, samples one behind the other.
 * All Local. */
#ifndef TR_INFERENCE_H
#define TR_INFERENCE_H

#include "optimize/network/network.h"
#include "runtime/plan/plan.h"

typedef struct tr_inference tr_inference;

typedef struct {
    const tr_backend *backend; /* both borrowed */
    void *backend_ctx;
    int threads;       /* of the host, for its kernels; 0: 1 */
    int64_t max_batch; /* samples a call; 0: 1 */
    tr_precision precision;
    unsigned skip_passes;       /* of the graphs: a set of TR_PASS_IS */
    const char *const *outputs; /* layers whose outputs are wanted; none: the last one's */
    size_t noutputs;
    /* Numbers of samples that are got ready for at once; none: max_batch. Others are when they come
     * first. */
    const int64_t *sizes;
    size_t nsizes;
} tr_inference_options;

/* Values are copied and packed: `n` may be closed. TR_CONFIG: no such layer, a size that does not
 * fit max_batch. */
tr_status tr_inference_open(const tr_network *n, const tr_inference_options *o, tr_inference **out);
/* The same without a copy where the backend's memory is the host's: `n` hands over its parameters,
 * keeps its model and can only be closed or looked at then. So weights are in memory once while
 * they are packed, not twice. After an error they may be gone, too. */
tr_status tr_inference_take(tr_network *n, const tr_inference_options *o, tr_inference **out);
void tr_inference_close(tr_inference *inf);
/* Bytes that an engine of these options would take, planned dry; of a device 0: it says itself what
 * it cannot give. */
tr_status tr_inference_needs(const tr_network *n, const tr_inference_options *o, size_t *nbytes);

/* outputs[k] = what output k is for inputs[0..], of `n` samples each; 1 <= n <= max_batch.
 * The first call with a number of samples gets ready for it: that takes milliseconds, and memory.
 * After TR_INFERENCE_SIZES different numbers, a new one is run in parts that are powers of two, so
 * that memory stays bounded. Any later call allocates nothing. After an error the next call is as
 * good as any. Inputs that are aligned to 64 bytes are read where they lie when the model reads
 * them as they are (float32 without channels behind each other). */
#define TR_INFERENCE_SIZES 16
tr_status tr_inference_run(tr_inference *inf, const void *const *inputs, int64_t n,
                           float *const *outputs);

/* One sample of an input or output. */
typedef struct {
    const char *name; /* of the input, of the layer */
    int ndim;
    const int64_t *dims;
    size_t count;
    bool ids; /* int32, else float32 */
} tr_inference_value;
size_t tr_inference_inputs(const tr_inference *inf);
size_t tr_inference_outputs(const tr_inference *inf);
tr_inference_value tr_inference_input(const tr_inference *inf, size_t i);
tr_inference_value tr_inference_output(const tr_inference *inf, size_t i);
int64_t tr_inference_max_batch(const tr_inference *inf);
/* The plan for a number of samples, for reports and to time its ops; NULL before its first call. */
tr_plan *tr_inference_plan(tr_inference *inf, int64_t n);
/* What it takes, by kind. */
void tr_inference_memory(const tr_inference *inf, tr_memory_plan *out);

#endif
