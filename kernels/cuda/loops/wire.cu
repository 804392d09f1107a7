/* A block takes one part of the table after the other, a thread eight elements: reads and writes of
 * 16 bytes, each element once. What is not rounded is copied. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/wire.h"

enum { THREADS = 256, WIDTH = 8 };

// cost: read 1f write 1x min 1f+1x flops 1 shape 25557032
template <typename T>
static __global__ void __launch_bounds__(THREADS) pack_parts(const tr_wire_part *parts, size_t n)
{
    for (size_t b = blockIdx.x; b < n; b += gridDim.x) {
        const tr_wire_part part = parts[b];
        const bool same = part.type == TR_F32;
        for (size_t i = threadIdx.x * WIDTH; i < part.count; i += THREADS * WIDTH) {
            const tr_pack<float, WIDTH> w =
                *reinterpret_cast<const tr_pack<float, WIDTH> *>(part.weights + i);
            if (same) {
                *reinterpret_cast<tr_pack<float, WIDTH> *>(static_cast<float *>(part.wire) + i) = w;
                continue;
            }
            tr_pack<T, WIDTH> out;
            TR_UNROLL
            for (int k = 0; k < WIDTH; k++) out.v[k] = tr_store<T>(w.v[k]);
            *reinterpret_cast<tr_pack<T, WIDTH> *>(static_cast<T *>(part.wire) + i) = out;
        }
    }
}

// cost: read 1x write 1f min 1x+1f flops 1 shape 25557032
template <typename T>
static __global__ void __launch_bounds__(THREADS) unpack_parts(const tr_wire_part *parts, size_t n)
{
    for (size_t b = blockIdx.x; b < n; b += gridDim.x) {
        const tr_wire_part part = parts[b];
        const bool same = part.type == TR_F32;
        for (size_t i = threadIdx.x * WIDTH; i < part.count; i += THREADS * WIDTH) {
            tr_pack<float, WIDTH> w;
            if (same) {
                w = *reinterpret_cast<const tr_pack<float, WIDTH> *>(
                    static_cast<const float *>(part.wire) + i);
            } else {
                const tr_pack<T, WIDTH> in = *reinterpret_cast<const tr_pack<T, WIDTH> *>(
                    static_cast<const T *>(part.wire) + i);
                TR_UNROLL
                for (int k = 0; k < WIDTH; k++) w.v[k] = tr_load<T>(in.v[k]);
            }
            *reinterpret_cast<tr_pack<float, WIDTH> *>(part.weights + i) = w;
        }
    }
}

tr_status tr_wire_launch(cudaStream_t stream, tr_dtype type, const tr_wire_part *parts,
                         size_t nparts, bool unpack)
{
    const unsigned blocks = tr_rounds(nparts, 1);
    TR_BY_TYPE(type, T, {
        if (unpack) return TR_LAUNCH(unpack_parts<T>, blocks, THREADS, 0, stream, parts, nparts);
        return TR_LAUNCH(pack_parts<T>, blocks, THREADS, 0, stream, parts, nparts);
    });
    return TR_OK;
}
