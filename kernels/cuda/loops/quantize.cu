/* Weights rounded to 8 bits: a block a row, which it reads for the largest magnitude and once more to
 * round. The rounding is kernels/elementwise.h's. */
#include "kernels/cuda/loops/quantize.h"
#include "kernels/cuda/device.cuh"
#include "kernels/elementwise.h"

namespace
{

enum { THREADS = 256 };

// cost: read 2f write 1f min 2f flops 4 shape 512x4608
template <int V>
__global__ void __launch_bounds__(THREADS) quantize_rows(const float *x, float *y, size_t D)
{
    using pack = tr_pack<float, V>;
    TR_SHARED(float, part, TR_WARP);
    const float *from = x + blockIdx.x * D;
    float *to = y + blockIdx.x * D;
    float most = 0.0f;
    for (size_t i = (size_t)threadIdx.x * V; i < D; i += (size_t)THREADS * V) {
        const pack p = *reinterpret_cast<const pack *>(from + i);
        TR_UNROLL
        for (int j = 0; j < V; j++) most = fabsf(p.v[j]) > most ? fabsf(p.v[j]) : most;
    }
    most = tr_block_max(most, part);
    const float scale = most > 1e-30f ? most / 127.0f : 1.0f;
    for (size_t i = (size_t)threadIdx.x * V; i < D; i += (size_t)THREADS * V) {
        pack p = *reinterpret_cast<const pack *>(from + i);
        TR_UNROLL
        for (int j = 0; j < V; j++) {
            const float q = p.v[j] / scale;
            p.v[j] = TR_NEAREST(TR_CLAMP(q, -127.0f, 127.0f)) * scale;
        }
        tr_put(to + i, p);
    }
}

} // namespace

tr_status tr_cuda_quantize_rows(cudaStream_t stream, const float *x, float *y, size_t rows,
                                size_t D)
{
    enum { V = 4 };
    if (rows == 0 || D == 0) return TR_OK;
    if (D % V == 0 && tr_is_aligned(x, 16) && tr_is_aligned(y, 16))
        return TR_LAUNCH(TR_KERNEL(quantize_rows<V>), (unsigned)rows, THREADS, 0, stream, x, y, D);
    return TR_LAUNCH(TR_KERNEL(quantize_rows<1>), (unsigned)rows, THREADS, 0, stream, x, y, D);
}
