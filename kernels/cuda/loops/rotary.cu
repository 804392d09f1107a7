/* Rotary position embedding: a thread a pair of a head's values, or one of those that stay. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/rotary.h"

namespace
{

enum { THREADS = 256 };

struct shape {
    tr_divider items, heads, positions; /* of a head, of a row; of a sample */
    size_t total, D, pairs, apart;
    float sign;
    const int32_t *past; /* of samples; nullptr: 0 */
    uint64_t most;       /* positions of the table */
};

// cost: read 1x write 1x min 2x flops 3 shape 8x1024x768
template <typename T>
__global__ void __launch_bounds__(THREADS) rotary(shape s, const T *x, T *y, const float *turn)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= s.total) return;
    const uint64_t head = tr_quotient(s.items, at), row = tr_quotient(s.heads, head);
    const size_t k = at - head * s.items.by, first = head * s.D;
    if (k >= s.pairs) {
        y[first + s.pairs + k] = x[first + s.pairs + k];
        return;
    }
    const uint64_t sample = tr_quotient(s.positions, row);
    uint64_t position = row - sample * s.positions.by;
    if (s.past) { /* what lies behind the table does not count */
        position += (uint64_t)s.past[sample];
        position = position < s.most ? position : s.most - 1;
    }
    const float c = turn[2 * position * s.pairs + k],
                z = turn[(2 * position + 1) * s.pairs + k] * s.sign;
    const size_t one = first + (s.apart ? k : 2 * k), other = one + (s.apart ? s.apart : 1);
    const float a = tr_load<T>(x[one]), b = tr_load<T>(x[other]);
    y[one] = tr_store<T>(a * c - b * z);
    y[other] = tr_store<T>(b * c + a * z);
}

} // namespace

tr_status tr_cuda_rotary_run(tr_dtype t, const tr_cuda_rotary_args *a, cudaStream_t stream)
{
    const size_t items = a->D - a->pairs;
    const shape s = {tr_divide_by(items),
                     tr_divide_by(a->heads),
                     tr_divide_by(a->positions),
                     a->rows * a->heads * items,
                     a->D,
                     a->pairs,
                     a->apart,
                     a->sign,
                     a->past,
                     a->table ? a->table : a->positions};
    if (s.total == 0) return TR_OK;
    TR_BY_TYPE(t, T,
               return TR_LAUNCH(rotary<T>, tr_blocks(s.total, THREADS, INT32_MAX), THREADS, 0,
                                stream, s, static_cast<const T *>(a->x), static_cast<T *>(a->y),
                                a->turn))
    return TR_OK;
}
