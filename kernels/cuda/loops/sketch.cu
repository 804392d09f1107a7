/* A thread makes one element, so that neighbours write neighbours: the 40 integer operations of a
 * Philox block, which 128 threads make again, cost less than the write of what they make. */
#include "kernels/cuda/loops/philox.cuh"
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/sketch.h"

enum { BLOCK = 256 };

// cost: read 0.5f write 1x min 1x+0.5f flops 60 shape 1024x512 per value written
template <typename T>
__global__ void sketch_kernel(tr_cuda_sketch_args a, tr_divider by_width, T *to)
{
    const size_t step = (size_t)gridDim.x * blockDim.x, count = a.rows * a.width;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const size_t row = tr_quotient(by_width, i), column = i - row * a.width;
        float v;
        if (row < a.learned_rows && column >= a.column) {
            v = a.learned[row * (a.width - a.column) + column - a.column];
        } else {
            const tr_philox w =
                tr_device_philox(a.key, row - a.first_signs, (uint32_t)(column / 128));
            const unsigned bit = (unsigned)(column % 128), at = bit / 32;
            const uint32_t word = at == 0 ? w.v[0] : at == 1 ? w.v[1] : at == 2 ? w.v[2] : w.v[3];
            v = word >> (bit % 32) & 1u ? a.unit : -a.unit;
        }
        to[i] = tr_store<T>(v);
    }
}

tr_status tr_cuda_sketch(cudaStream_t stream, tr_dtype type, const tr_cuda_sketch_args *a, void *to)
{
    const size_t count = a->rows * a->width;
    if (count == 0) return TR_OK;
    TR_BY_TYPE(type, T, {
        return TR_LAUNCH(sketch_kernel<T>, tr_rounds(count, BLOCK), BLOCK, 0, stream, *a,
                         tr_divide_by(a->width), static_cast<T *>(to));
    });
    return TR_OK;
}
