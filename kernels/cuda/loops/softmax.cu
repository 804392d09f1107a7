/* Softmax over rows of D values and its gradient.
 *
 * Bytes: x once and y once; dy and y once and dx once: the minimum. Rows beyond 8192 values that do
 * not fit into shared memory are read twice. The largest value is taken off first, so exp never
 * overflows; a NaN makes its whole row NaN. */
#include "kernels/cuda/loops/softmax.h"
#include "kernels/cuda/loops/online.cuh"

namespace
{

// cost: read 1x write 1x min 2x flops 14 shape 8192x1024
template <typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(tr_rows_threads<V, BLOCK>())
    softmax_held(const T *x, T *y, size_t rows, int D, int some)
{
    TR_SHARED(double, part, TR_WARP);
    const int lanes = tr_rows_lanes<V, K, BLOCK>(some);
    const tr_team<BLOCK> team(lanes, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / lanes;
    for (size_t base = blockIdx.x * per_block; base < rows; base += gridDim.x * per_block) {
        const size_t row = base + (BLOCK ? 0 : threadIdx.x / lanes);
        tr_piece<T, V, K> z(row < rows ? D : 0, 0, team.lane, lanes);
        float top = -INFINITY, sum = 0.0f;
        z.read(x + row * D);
        z.each([&](float &v, int) { top = fmaxf(v, top); });
        top = team.most(top);
        z.each([&](float &v, int) {
            v = tr_exp_below<T>(v - top);
            sum += v;
        });
        const float scale = 1.0f / (float)team.sum(sum);
        z.each([&](float &v, int) { v *= scale; });
        z.write(y + row * D);
    }
}

// cost: read 1x write 1x min 2x flops 24 shape 1024x32768
template <typename T, int V, int K>
__global__ void __launch_bounds__(TR_ROWS_LONG_THREADS, 2)
    softmax_long(const T *x, T *y, size_t rows, int D, bool kept)
{
    TR_SHARED(double, part, TR_WARP);
    TR_SHARED_BYTES(room);
    T *keep = kept ? reinterpret_cast<T *>(room) : nullptr;
    const int size = (int)blockDim.x;
    const tr_team<true> team(size, part);
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        tr_online o = tr_online_start();
        for (int from = 0; from < D; from += K * V * size) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            z.read(x + row * D, keep);
            tr_online_add(o, z);
        }
        o = tr_online_merge<T>(o, team);
        const float scale = (float)(1.0 / o.sum);
        for (int from = 0; from < D; from += K * V * size) {
            tr_piece<T, V, K> z(D, from, team.lane, size);
            z.read(keep ? keep : x + row * D);
            z.each([&](float &v, int) { v = tr_exp_below<T>(v - o.top) * scale; });
            z.write(y + row * D);
        }
    }
}

// cost: read 2x write 1x min 3x flops 6 shape 8192x1024
template <typename T, int V, int K, bool BLOCK>
__global__ void __launch_bounds__(tr_rows_threads<V, BLOCK>(), V == 1 ? 1 : 2)
    softmax_grad_held(const T *dy, const T *y, T *dx, size_t rows, int D, int some)
{
    TR_SHARED(double, part, TR_WARP);
    const int lanes = tr_rows_lanes<V, K, BLOCK>(some);
    const tr_team<BLOCK> team(lanes, part);
    const size_t per_block = BLOCK ? 1 : blockDim.x / lanes;
    for (size_t base = blockIdx.x * per_block; base < rows; base += gridDim.x * per_block) {
        const size_t row = base + (BLOCK ? 0 : threadIdx.x / lanes);
        tr_piece<T, V, K> g(row < rows ? D : 0, 0, team.lane, lanes), p(g);
        tr_raw<T, V, K> raw_g = {}, raw_p = raw_g;
        float dot = 0.0f;
        g.fetch(dy + row * D, raw_g);
        p.fetch(y + row * D, raw_p);
        g.take(raw_g);
        p.take(raw_p);
        g.each(p, [&](float &v, float &u, int) { dot += v * u; });
        const float mean = (float)team.sum(dot);
        g.each(p, [&](float &v, float &u, int) { v = u * (v - mean); });
        g.write(dx + row * D);
    }
}

// cost: read 2x write 1x min 3x flops 6 shape 1024x32768
template <typename T, int V, int K>
__global__ void __launch_bounds__(TR_ROWS_LONG_THREADS, 2)
    softmax_grad_long(const T *dy, const T *y, T *dx, size_t rows, int D, bool kept)
{
    TR_SHARED(double, part, TR_WARP);
    TR_SHARED_BYTES(room);
    T *keep_g = kept ? reinterpret_cast<T *>(room) : nullptr, *keep_p = kept ? keep_g + D : nullptr;
    const int size = (int)blockDim.x;
    const tr_team<true> team(size, part);
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        double dot = 0.0;
        for (int from = 0; from < D; from += K * V * size) {
            tr_piece<T, V, K> g(D, from, team.lane, size), p(g);
            float some = 0.0f;
            g.read(dy + row * D, keep_g);
            p.read(y + row * D, keep_p);
            g.each(p, [&](float &v, float &u, int) { some += v * u; });
            dot += some;
        }
        const float mean = (float)team.sum(dot);
        for (int from = 0; from < D; from += K * V * size) {
            tr_piece<T, V, K> g(D, from, team.lane, size), p(g);
            g.read(kept ? keep_g : dy + row * D);
            p.read(kept ? keep_p : y + row * D);
            g.each(p, [&](float &v, float &u, int) { v = u * (v - mean); });
            g.write(dx + row * D);
        }
    }
}

template <typename T, int V>
tr_status forward(const T *x, T *y, size_t rows, size_t D, size_t keep, cudaStream_t stream)
{
    using packs = tr_rows_packs<V>;
    const tr_rows_plan p = tr_rows_of<V>(D);
    const unsigned grid = tr_rounds(rows, p.rows);
    const size_t room = p.kind == TR_ROWS_LONG ? tr_rows_keep<T>(D, 1, keep) : 0;
    switch (p.kind) {
    case TR_ROWS_WARP8:
        return TR_LAUNCH(TR_KERNEL(softmax_held<T, V, packs::FEW, false>), grid, p.block, 0, stream,
                         x, y, rows, (int)D, p.lanes);
    case TR_ROWS_WARP32:
        return TR_LAUNCH(TR_KERNEL(softmax_held<T, V, packs::WARP, false>), grid, p.block, 0,
                         stream, x, y, rows, (int)D, p.lanes);
    case TR_ROWS_BLOCK:
        return TR_LAUNCH(TR_KERNEL(softmax_held<T, V, packs::BLOCK, true>), grid, p.block, 0,
                         stream, x, y, rows, (int)D, p.lanes);
    default:
        return TR_LAUNCH(TR_KERNEL(softmax_long<T, V, packs::LONG>), grid, p.block, room, stream, x,
                         y, rows, (int)D, room > 0);
    }
}

template <typename T, int V>
tr_status backward(const T *dy, const T *y, T *dx, size_t rows, size_t D, size_t keep,
                   cudaStream_t stream)
{
    using packs = tr_rows_packs<V>;
    const tr_rows_plan p = tr_rows_of<V>(D);
    const unsigned grid = tr_rounds(rows, p.rows);
    const size_t room = p.kind == TR_ROWS_LONG ? tr_rows_keep<T>(D, 2, keep) : 0;
    switch (p.kind) {
    case TR_ROWS_WARP8:
        return TR_LAUNCH(TR_KERNEL(softmax_grad_held<T, V, packs::FEW, false>), grid, p.block, 0,
                         stream, dy, y, dx, rows, (int)D, p.lanes);
    case TR_ROWS_WARP32:
        return TR_LAUNCH(TR_KERNEL(softmax_grad_held<T, V, packs::WARP, false>), grid, p.block, 0,
                         stream, dy, y, dx, rows, (int)D, p.lanes);
    case TR_ROWS_BLOCK:
        return TR_LAUNCH(TR_KERNEL(softmax_grad_held<T, V, packs::BLOCK, true>), grid, p.block, 0,
                         stream, dy, y, dx, rows, (int)D, p.lanes);
    default:
        return TR_LAUNCH(TR_KERNEL(softmax_grad_long<T, V, packs::FEW>), grid, p.block, room,
                         stream, dy, y, dx, rows, (int)D, room > 0);
    }
}

template <typename T, int V> struct long_kernels {
    using packs = tr_rows_packs<V>;
    const void *at[2] = {reinterpret_cast<const void *>(&softmax_long<T, V, packs::LONG>),
                         reinterpret_cast<const void *>(&softmax_grad_long<T, V, packs::FEW>)};
};

} // namespace

tr_status tr_cuda_softmax_ready(tr_dtype t, size_t keep)
{
    return tr_rows_allow<long_kernels>(t, keep, "cudaFuncSetAttribute(softmax, shared memory)");
}

tr_status tr_cuda_softmax_run(tr_dtype t, const void *x, void *y, size_t rows, size_t D,
                              size_t keep, cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(x, 16) && tr_is_aligned(y, 16);
    if (rows == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        const T *from = static_cast<const T *>(x);
        T *to = static_cast<T *>(y);
        return aligned && D % V == 0 ? forward<T, V>(from, to, rows, D, keep, stream)
                                     : forward<T, 1>(from, to, rows, D, keep, stream);
    })
    return TR_OK;
}

tr_status tr_cuda_softmax_grad_run(tr_dtype t, const void *dy, const void *y, void *dx, size_t rows,
                                   size_t D, size_t keep, cudaStream_t stream)
{
    const bool aligned = tr_is_aligned(dy, 16) && tr_is_aligned(y, 16) && tr_is_aligned(dx, 16);
    if (rows == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        constexpr int V = tr_wide<T>::V;
        const T *from = static_cast<const T *>(dy), *saved = static_cast<const T *>(y);
        T *to = static_cast<T *>(dx);
        return aligned && D % V == 0 ? backward<T, V>(from, saved, to, rows, D, keep, stream)
                                     : backward<T, 1>(from, saved, to, rows, D, keep, stream);
    })
    return TR_OK;
}
