/* Rows rounded to 8 bits by their own ranges, in two kernels: the largest value of each piece of a
 * row; then each block takes the largest of its row's pieces and rounds its own. A row of a linear
 * layer is one piece, which both kernels read: the second time from cache. Products to values: each
 * byte once. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/dynamic.h"
#include "kernels/elementwise.h"

namespace
{

enum { THREADS = 256, PIECE = 16384, PIECES = 64 /* of a row at most */ };

struct cut {
    size_t D, each; /* of a row, of a piece: a multiple of 16 but where there is one */
    unsigned pieces;
    tr_divider by_pieces;
};

/* A block's piece: [begin, end) of its row. */
struct piece {
    unsigned row;
    size_t begin, end;
};

__device__ inline piece piece_of(const cut &c)
{
    const unsigned row = tr_quotient32(c.by_pieces, blockIdx.x);
    const size_t begin = (blockIdx.x - row * c.pieces) * c.each,
                 end = begin + c.each < c.D ? begin + c.each : c.D;
    return {row, begin, end};
}

// cost: read 1x min 1x flops 2 shape 4096x4096
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) largest(const T *x, float *parts, bool is_signed, cut c)
{
    TR_SHARED(float, part, TR_WARP);
    const piece p = piece_of(c);
    const T *from = x + p.row * c.D;
    float most = 0.0f;
    for (size_t i = p.begin + (size_t)threadIdx.x * V; i < p.end; i += (size_t)THREADS * V) {
        const tr_pack<T, V> in = *reinterpret_cast<const tr_pack<T, V> *>(from + i);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float v = is_signed ? fabsf(tr_load<T>(in.v[j])) : tr_load<T>(in.v[j]);
            most = v > most ? v : most;
        }
    }
    most = tr_block_max(most, part);
    if (threadIdx.x == 0) parts[blockIdx.x] = most;
}

template <typename Y> __device__ inline Y rounded(float q, float scale)
{
    return tr_store<Y>(q * scale);
}
template <> __device__ inline uint8_t rounded<uint8_t>(float q, float)
{
    return (uint8_t)(int32_t)q;
}

// cost: read 1x write 1b min 1x+1b flops 5 shape 4096x4096
template <typename T, typename Y, int V>
__global__ void __launch_bounds__(THREADS)
    round_rows(const T *x, Y *y, float *scales, const float *parts, bool is_signed, cut c)
{
    const piece p = piece_of(c);
    const float steps = TR_DYNAMIC_STEPS(is_signed), least = is_signed ? -steps : 0.0f;
    float most = 0.0f;
    for (unsigned i = 0; i < c.pieces; i++) {
        const float v = parts[p.row * c.pieces + i];
        most = v > most ? v : most;
    }
    const float scale = TR_DYNAMIC_SCALE(most, steps), inverse = 1.0f / scale;
    if (scales && threadIdx.x == 0 && p.begin == 0) scales[p.row] = scale;
    const size_t row = p.row * c.D;
    for (size_t i = p.begin + (size_t)threadIdx.x * V; i < p.end; i += (size_t)THREADS * V) {
        const tr_pack<T, V> in = *reinterpret_cast<const tr_pack<T, V> *>(x + row + i);
        tr_pack<Y, V> out;
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            float v = tr_load<T>(in.v[j]) * inverse;
            if (sizeof(Y) == 1) v = v > least ? v : least; /* NaN too, which else stays */
            v = TR_CLAMP(v, least, steps);
            out.v[j] = rounded<Y>(TR_NEAREST(v), scale);
        }
        tr_put(y + row + i, out);
    }
}

// cost: read 1f write 1x min 1f+1x flops 3 shape 200704x256
template <typename Y, int V>
__global__ void rescale(tr_cuda_rescale_args a, unsigned packs, tr_divider by_width,
                        tr_divider by_places)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs;
         i += gridDim.x * blockDim.x) {
        const unsigned row = tr_quotient32(by_width, i);
        const size_t c = (i - row * (unsigned)by_width.by) * (size_t)V, at = (size_t)i * V;
        const float scale = a.scales[tr_quotient32(by_places, row)];
        const tr_pack<float, V> in = *reinterpret_cast<const tr_pack<float, V> *>(a.x + at);
        tr_pack<Y, V> add = {}, out;
        if (a.residual)
            add = *reinterpret_cast<const tr_pack<Y, V> *>(static_cast<const Y *>(a.residual) + at);
        TR_UNROLL
        for (int k = 0; k < V; k++) {
            float v = fmaf(in.v[k], scale, a.bias ? a.bias[c + k] : 0.0f);
            if (a.residual) v += tr_load<Y>(add.v[k]);
            out.v[k] = tr_store<Y>(tr_activate(a.act, v));
        }
        tr_put(static_cast<Y *>(a.y) + at, out);
    }
}

cut cut_of(size_t D)
{
    size_t pieces = (D + PIECE - 1) / PIECE;
    if (pieces > PIECES) pieces = PIECES;
    if (pieces < 1) pieces = 1;
    const size_t each = pieces == 1 ? D : ((D + pieces - 1) / pieces + 15) / 16 * 16;
    return {D, each, (unsigned)pieces, tr_divide_by(pieces)};
}

template <typename T, typename Y, int V>
tr_status rounded_rows(cudaStream_t stream, const tr_cuda_dynamic_args *a, const cut &c)
{
    tr_status st = TR_OK;
    const unsigned blocks = (unsigned)(a->rows * c.pieces);
    const T *x = static_cast<const T *>(a->x);
    TR_TRY(TR_LAUNCH(TR_KERNEL(largest<T, V>), blocks, THREADS, 0, stream, x, a->parts,
                     a->is_signed, c));
    TR_TRY(TR_LAUNCH(TR_KERNEL(round_rows<T, Y, V>), blocks, THREADS, 0, stream, x,
                     static_cast<Y *>(a->y), a->scales, a->parts, a->is_signed, c));
out:
    return st;
}

template <typename T, typename Y>
tr_status by_width(cudaStream_t stream, const tr_cuda_dynamic_args *a)
{
    constexpr int V = 16 / (sizeof(Y) < sizeof(T) ? sizeof(Y) : sizeof(T));
    const cut c = cut_of(a->D);
    if (a->D % V == 0 && tr_is_aligned(a->x, V * sizeof(T)) && tr_is_aligned(a->y, V * sizeof(Y)))
        return rounded_rows<T, Y, V>(stream, a, c);
    return rounded_rows<T, Y, 1>(stream, a, c);
}

template <typename Y, int V> tr_status rescaled(cudaStream_t stream, const tr_cuda_rescale_args *a)
{
    const size_t packs = a->rows * a->channels / V;
    return TR_LAUNCH(TR_KERNEL(rescale<Y, V>), tr_rounds(packs, THREADS), THREADS, 0, stream, *a,
                     (unsigned)packs, tr_divide_by(a->channels / V), tr_divide_by(a->places));
}

} // namespace

size_t tr_cuda_dynamic_parts(size_t rows, size_t D)
{
    return rows * cut_of(D).pieces;
}

tr_status tr_cuda_dynamic_run(cudaStream_t stream, tr_dtype dtype, const tr_cuda_dynamic_args *a)
{
    if (a->rows * a->D == 0) return TR_OK;
    TR_BY_TYPE(dtype, T, {
        if (a->scales) return by_width<T, uint8_t>(stream, a);
        return by_width<T, T>(stream, a);
    });
    return TR_OK;
}

tr_status tr_cuda_rescale_run(cudaStream_t stream, tr_dtype dtype, const tr_cuda_rescale_args *a)
{
    if (a->rows * a->channels == 0) return TR_OK;
    TR_BY_TYPE(dtype, T, {
        constexpr int V = 16 / sizeof(T);
        if (a->channels % V == 0) return rescaled<T, V>(stream, a);
        return rescaled<T, 1>(stream, a);
    });
    return TR_OK;
}
