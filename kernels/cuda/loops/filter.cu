/* A transposition of places and channels within each output channel. A block takes one output
 * channel and as many input channels as fit into shared memory with all their places, or fewer
 * where that leaves the device idle: the stored side of that is one run of memory, the other one
 * run a place. Each element is read and written once (twice read where the gradient is added to),
 * which for weights is little against the convolution. Windows of more than 4096 places go past
 * shared memory. Where channels or places are 1 the orders are the same. */
#include "kernels/cuda/loops/divide.cuh"
#include "kernels/cuda/loops/filter.h"

enum { BLOCK = 256, TILE = 4096, FILL = 4 * 132, LEAST = 32 /* channels: 64 bytes */ };

/* How the input channels are cut; what indices are divided by, all below 2^31. */
struct cut {
    size_t channels, places, tile, tiles;
    tr_divider by_places, by_tile, by_rest; /* channels of a tile, of the last one */
};

static cut cut_of(size_t out, size_t channels, size_t places)
{
    const size_t fit = places < TILE ? TILE / places : 1;
    cut c = {channels, places, fit < channels ? fit : channels, 1, {}, {}, {}};
    c.tiles = (channels + c.tile - 1) / c.tile;
    while (out * c.tiles < FILL && c.tile >= 2 * LEAST) {
        c.tile = (c.tile + 1) / 2;
        c.tiles = (channels + c.tile - 1) / c.tile;
    }
    c.by_places = tr_divide_by(places);
    c.by_tile = tr_divide_by(c.tile);
    c.by_rest = tr_divide_by(channels - (c.tiles - 1) * c.tile);
    return c;
}

/* The block's: its output channel, the first of its input channels, how many. */
struct share {
    size_t out, first;
    uint32_t n, count; /* channels, elements */
    bool fits;
};

static __device__ inline share share_of(const cut &c)
{
    share s;
    const size_t tile = blockIdx.x % c.tiles;
    s.out = blockIdx.x / c.tiles;
    s.first = tile * c.tile;
    s.n = (uint32_t)(c.channels - s.first < c.tile ? c.channels - s.first : c.tile);
    s.count = s.n * (uint32_t)c.places;
    s.fits = s.count <= TILE;
    return s;
}

/* Rounded to R, stored as T. */
// cost: read 1f write 1x min 1f+1x flops 1 shape 512x512x9
template <typename R, typename T> __global__ void pack_kernel(const float *from, T *to, cut c)
{
    TR_SHARED(float, held, TILE);
    const share s = share_of(c);
    const tr_divider by_n = s.n == c.tile ? c.by_tile : c.by_rest;
    const uint32_t places = (uint32_t)c.places;
    const float *in = from + (s.out * c.channels + s.first) * c.places;
    T *at = to + s.out * c.channels * c.places + s.first;
    if (s.fits)
        for (uint32_t i = threadIdx.x; i < s.count; i += BLOCK) held[i] = in[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s.count; i += BLOCK) {
        const uint32_t place = tr_quotient32(by_n, i), k = i - place * s.n;
        const float v = s.fits ? held[k * places + place] : in[k * places + place];
        at[place * c.channels + k] = tr_store<T>(tr_load<R>(tr_store<R>(v)));
    }
}

// cost: read 1x write 1f min 1x+1f flops 0 shape 512x512x9
template <typename T> __global__ void unpack_kernel(const T *from, float *to, cut c, bool add)
{
    TR_SHARED(float, held, TILE);
    const share s = share_of(c);
    const tr_divider by_n = s.n == c.tile ? c.by_tile : c.by_rest;
    const uint32_t places = (uint32_t)c.places;
    const T *in = from + s.out * c.channels * c.places + s.first;
    float *at = to + (s.out * c.channels + s.first) * c.places;
    for (uint32_t i = threadIdx.x; s.fits && i < s.count; i += BLOCK) {
        const uint32_t place = tr_quotient32(by_n, i), k = i - place * s.n;
        held[k * places + place] = tr_load<T>(in[place * c.channels + k]);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < s.count; i += BLOCK) {
        float v;
        if (s.fits) {
            v = held[i];
        } else {
            const uint32_t k = tr_quotient32(c.by_places, i), place = i - k * places;
            v = tr_load<T>(in[place * c.channels + k]);
        }
        at[i] = add ? at[i] + v : v;
    }
}

template <typename R, typename T>
static tr_status pack(cudaStream_t stream, const float *from, void *to, size_t out, size_t channels,
                      size_t places)
{
    const cut c = cut_of(out, channels, places);
    return TR_LAUNCH(TR_KERNEL(pack_kernel<R, T>), (unsigned)(out * c.tiles), BLOCK, 0, stream,
                     from, static_cast<T *>(to), c);
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
    const cut c = cut_of(out, channels, places);
    return TR_LAUNCH(unpack_kernel<T>, (unsigned)(out * c.tiles), BLOCK, 0, stream,
                     static_cast<const T *>(from), to, c, add);
}

tr_status tr_cuda_filter_unpack(cudaStream_t stream, tr_dtype dtype, const void *from, float *to,
                                size_t out, size_t channels, size_t places, bool add)
{
    TR_BY_TYPE(dtype, T, return unpack<T>(stream, from, to, out, channels, places, add));
    return TR_OK;
}
