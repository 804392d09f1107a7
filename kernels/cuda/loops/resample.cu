/* Weighted sums over rows and columns in the gathering form: a thread owns 16 bytes of channels of
 * one place that is written and walks its taps, of which there are few; the lists of an image's
 * side stay in the first-level cache. So there are no atomics, sums are in float32 in a fixed order
 * and rounded once.
 *
 * Bytes: x and y once each; places that several others are made of come from cache. Where channels
 * fill no 16 bytes, a thread owns one. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/resample.h"

enum { BLOCK = 256 };

/* What is written, in packs. */
struct shape {
    unsigned packs, width; /* all packs; those of a place's channels */
    tr_divider by_width, by_columns, by_rows;
};

// cost: read 0.25x write 1x min 1.25x flops 6 shape 64x112x112x64 per y, bilinear to twice the size
template <typename T, int V>
__global__ void resample_kernel(tr_cuda_resampling p, const tr_pack<T, V> *x, tr_pack<T, V> *y,
                                shape s)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s.packs;
         i += gridDim.x * blockDim.x) {
        const unsigned at = tr_quotient32(s.by_width, i);
        const unsigned line = tr_quotient32(s.by_columns, at);
        const unsigned image = tr_quotient32(s.by_rows, line);
        const unsigned row = line - image * (unsigned)s.by_rows.by,
                       column = at - line * (unsigned)s.by_columns.by, pack = i - at * s.width;
        const int h0 = p.begin[0][row], h1 = p.begin[0][row + 1];
        const int w0 = p.begin[1][column], w1 = p.begin[1][column + 1];
        float sum[V];
        for (int k = 0; k < V; k++) sum[k] = h0 == h1 || w0 == w1 ? p.value : 0;
        for (int h = h0; h < h1; h++)
            for (int w = w0; w < w1; w++) {
                const tr_tap a = p.taps[0][h], b = p.taps[1][w];
                const float weight = a.weight * b.weight;
                const size_t from =
                    ((size_t)image * (size_t)p.from[0] + (size_t)a.from) * (size_t)p.from[1] +
                    (size_t)b.from;
                const tr_pack<T, V> v = x[from * s.width + pack];
                for (int k = 0; k < V; k++) sum[k] += weight * tr_load<T>(v.v[k]);
            }
        tr_pack<T, V> out;
        for (int k = 0; k < V; k++) out.v[k] = tr_store<T>(sum[k]);
        tr_put(reinterpret_cast<T *>(y + i), out);
    }
}

template <typename T, int V>
static tr_status launch(cudaStream_t stream, const tr_cuda_resampling *p, const void *x, void *y)
{
    const unsigned width = p->channels / (unsigned)V;
    const size_t packs = (size_t)p->batch * (size_t)p->to[0] * (size_t)p->to[1] * width;
    if (packs == 0) return TR_OK;
    const shape s = {(unsigned)packs, width, tr_divide_by(width), tr_divide_by((uint64_t)p->to[1]),
                     tr_divide_by((uint64_t)p->to[0])};
    return TR_LAUNCH(TR_KERNEL(resample_kernel<T, V>), tr_rounds(packs, BLOCK), BLOCK, 0, stream,
                     *p, static_cast<const tr_pack<T, V> *>(x), static_cast<tr_pack<T, V> *>(y), s);
}

tr_status tr_cuda_resample_run(cudaStream_t stream, const tr_cuda_resampling *p, const void *x,
                               void *y)
{
    TR_BY_TYPE(p->type, T, {
        constexpr int V = 16 / sizeof(T);
        if (p->channels % V == 0) return (launch<T, V>(stream, p, x, y));
        return (launch<T, 1>(stream, p, x, y));
    })
    return TR_OK;
}
