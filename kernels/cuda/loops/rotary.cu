/* Rotary position embedding: a thread V pairs of a head's values, or V of those that stay. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/rotary.h"
#include "kernels/cuda/loops/rows.cuh"

namespace
{

enum { THREADS = 256 };

struct shape {
    tr_divider items, heads, positions; /* of a head (threads), of a row; of a sample */
    size_t total, D, pairs, apart;
    float sign;
    const int32_t *past; /* of samples; nullptr: 0 */
    uint64_t most;       /* positions of the table */
};

// cost: read 1x write 1x min 2x flops 3 shape 8x1024x768
/* V pairs at a time. APART: a pair's values lie s.apart apart, else side by side. */
template <typename T, int V, bool APART>
__global__ void __launch_bounds__(THREADS) rotary(shape s, const T *x, T *y, const float *turn)
{
    using pack = tr_pack<T, V>;
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= s.total) return;
    const uint64_t head = tr_quotient(s.items, at), row = tr_quotient(s.heads, head);
    const size_t k = (at - head * s.items.by) * V, first = head * s.D;
    if (k >= s.pairs) {
        const size_t stays = first + s.pairs + k;
        tr_put(y + stays, *reinterpret_cast<const pack *>(x + stays));
        return;
    }
    const uint64_t sample = tr_quotient(s.positions, row);
    uint64_t position = row - sample * s.positions.by;
    if (s.past) { /* what lies behind the table does not count */
        position += (uint64_t)s.past[sample];
        position = position < s.most ? position : s.most - 1;
    }
    const float *c = turn + 2 * position * s.pairs + k, *z = c + s.pairs;
    const size_t one = first + (APART ? k : 2 * k), other = one + (APART ? s.apart : V);
    pack p[2] = {*reinterpret_cast<const pack *>(x + one),
                 *reinterpret_cast<const pack *>(x + other)};
    TR_UNROLL
    for (int j = 0; j < V; j++) {
        T *a = APART ? &p[0].v[j] : &p[2 * j / V].v[2 * j % V];
        T *b = APART ? &p[1].v[j] : &p[(2 * j + 1) / V].v[(2 * j + 1) % V];
        const float u = tr_load<T>(*a), v = tr_load<T>(*b), w = z[j] * s.sign;
        *a = tr_store<T>(u * c[j] - v * w);
        *b = tr_store<T>(v * c[j] + u * w);
    }
    tr_put(y + one, p[0]);
    tr_put(y + other, p[1]);
}

template <typename T, int V, bool APART>
tr_status launch(const tr_cuda_rotary_args *a, cudaStream_t stream)
{
    const size_t items = (a->D - a->pairs) / V;
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
    return TR_LAUNCH(TR_KERNEL(rotary<T, V, APART>), tr_blocks(s.total, THREADS, INT32_MAX),
                     THREADS, 0, stream, s, static_cast<const T *>(a->x), static_cast<T *>(a->y),
                     a->turn);
}

} // namespace

tr_status tr_cuda_rotary_run(tr_dtype t, const tr_cuda_rotary_args *a, cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(a->x, 16) && tr_is_aligned(a->y, 16);
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        const bool wide = aligned && a->D % V == 0 && a->pairs % V == 0 && a->apart % V == 0;
        if (a->apart) return wide ? launch<T, V, true>(a, stream) : launch<T, 1, true>(a, stream);
        return wide ? launch<T, V, false>(a, stream) : launch<T, 1, false>(a, stream);
    })
    return TR_OK;
}
