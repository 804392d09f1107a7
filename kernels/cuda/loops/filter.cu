/* A transposition of places and channels within each output channel. A block takes one output
 * channel and as many input channels as fit into shared memory with all their places: the stored
 * side of that is one run of memory, the other one run a place. Each element is read and written
 * once (twice read where the gradient is added to), which for weights is little against the
 * convolution. Windows of more than 4096 places go past shared memory. Where channels or places are
 * 1 the orders are the same. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/filter.h"

enum { BLOCK = 256, TILE = 4096 };

/* Channels that a block takes. */
static size_t tile_channels(size_t channels, size_t places)
{
    const size_t fit = places < TILE ? TILE / places : 1;
    return fit < channels ? fit : channels;
}

/* Rounded to R, stored as T. */
// cost: read 1f write 1x min 1f+1x flops 1 shape 512x512x9
template <typename R, typename T>
__global__ void pack_kernel(const float *from, T *to, size_t channels, size_t places, size_t tile,
                            size_t tiles)
{
    TR_SHARED(float, held, TILE);
    const size_t out = blockIdx.x / tiles, first = blockIdx.x % tiles * tile;
    const size_t n = channels - first < tile ? channels - first : tile, count = n * places;
    const float *in = from + (out * channels + first) * places;
    T *at = to + out * channels * places + first;
    const bool fits = count <= TILE;
    if (fits)
        for (size_t i = threadIdx.x; i < count; i += blockDim.x) held[i] = in[i];
    __syncthreads();
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) {
        const size_t place = i / n, c = i % n;
        at[place * channels + c] = tr_store<T>(
            tr_load<R>(tr_store<R>(fits ? held[c * places + place] : in[c * places + place])));
    }
}

// cost: read 1x write 1f min 1x+1f flops 0 shape 512x512x9
template <typename T>
__global__ void unpack_kernel(const T *from, float *to, size_t channels, size_t places, size_t tile,
                              size_t tiles, bool add)
{
    TR_SHARED(float, held, TILE);
    const size_t out = blockIdx.x / tiles, first = blockIdx.x % tiles * tile;
    const size_t n = channels - first < tile ? channels - first : tile, count = n * places;
    const T *in = from + out * channels * places + first;
    float *at = to + (out * channels + first) * places;
    const bool fits = count <= TILE;
    if (fits)
        for (size_t i = threadIdx.x; i < count; i += blockDim.x)
            held[i % n * places + i / n] = tr_load<T>(in[i / n * channels + i % n]);
    __syncthreads();
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) {
        const float v = fits ? held[i] : tr_load<T>(in[i % places * channels + i / places]);
        at[i] = add ? at[i] + v : v;
    }
}

template <typename R, typename T>
static tr_status pack(cudaStream_t stream, const float *from, void *to, size_t out, size_t channels,
                      size_t places)
{
    const size_t tile = tile_channels(channels, places), tiles = (channels + tile - 1) / tile;
    return TR_LAUNCH(TR_KERNEL(pack_kernel<R, T>), (unsigned)(out * tiles), BLOCK, 0, stream, from,
                     static_cast<T *>(to), channels, places, tile, tiles);
}

tr_status tr_cuda_filter_pack(cudaStream_t stream, tr_dtype dtype, bool wide, const float *from,
                              void *to, size_t out, size_t channels, size_t places)
{
    TR_BY_TYPE(dtype, T, {
        if (wide) return pack<T, float>(stream, from, to, out, channels, places);
        return pack<T, T>(stream, from, to, out, channels, places);
    });
    return TR_OK;
}

template <typename T>
static tr_status unpack(cudaStream_t stream, const void *from, float *to, size_t out,
                        size_t channels, size_t places, bool add)
{
    const size_t tile = tile_channels(channels, places), tiles = (channels + tile - 1) / tile;
    return TR_LAUNCH(unpack_kernel<T>, (unsigned)(out * tiles), BLOCK, 0, stream,
                     static_cast<const T *>(from), to, channels, places, tile, tiles, add);
}

tr_status tr_cuda_filter_unpack(cudaStream_t stream, tr_dtype dtype, const void *from, float *to,
                                size_t out, size_t channels, size_t places, bool add)
{
    TR_BY_TYPE(dtype, T, return unpack<T>(stream, from, to, out, channels, places, add));
    return TR_OK;
}
