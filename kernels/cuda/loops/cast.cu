/* A thread converts eight elements at a time where `from` is aligned to 16 bytes, else one. 2 + 4
 * bytes an element, the minimum. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/cast.h"

enum { BLOCK = 256 };

// cost: read 1x write 1f min 1x+1f flops 1 shape 25557032
template <typename T, int V> __global__ void to_f32_kernel(const T *from, float *to, size_t count)
{
    const size_t step = (size_t)gridDim.x * blockDim.x, packs = count / V;
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (size_t i = first; i < packs; i += step) {
        const tr_pack<T, V> in = reinterpret_cast<const tr_pack<T, V> *>(from)[i];
        tr_pack<float, V> out;
        for (int k = 0; k < V; k++) out.v[k] = tr_load<T>(in.v[k]);
        tr_put(to + i * V, out);
    }
    for (size_t i = packs * V + first; i < count; i += step) to[i] = tr_load<T>(from[i]);
}

template <typename T, int V>
static tr_status to_f32(cudaStream_t stream, const void *from, float *to, size_t count)
{
    return TR_LAUNCH(TR_KERNEL(to_f32_kernel<T, V>), tr_rounds(count, BLOCK * V), BLOCK, 0, stream,
                     static_cast<const T *>(from), to, count);
}

tr_status tr_cuda_cast_to_f32(cudaStream_t stream, tr_dtype dtype, const void *from, float *to,
                              size_t count)
{
    if (count == 0) return TR_OK;
    /* eight float32 are 32 bytes, which `to` need not be aligned to on its own account */
    const bool wide =
        reinterpret_cast<uintptr_t>(from) % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 32 == 0;
    TR_BY_TYPE(dtype, T, {
        if (wide) return to_f32<T, 8>(stream, from, to, count);
        return to_f32<T, 1>(stream, from, to, count);
    });
    return TR_OK;
}
