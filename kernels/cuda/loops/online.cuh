/* The largest of a row and the sum of exponentials below it, in one pass (Milakov and Gimelshein,
 * "Online normalizer calculation for softmax", 2018), with what NaN and infinities do to two plain
 * passes: a NaN is not seen by the maximum but makes the sum NaN; so does +inf, and a row of
 * nothing but -inf. */
#ifndef TR_CUDA_ONLINE_CUH
#define TR_CUDA_ONLINE_CUH

#include "kernels/cuda/loops/rows.cuh"

/* sum of exp(v - top) over what was seen. */
struct tr_online {
    float top;
    double sum;
};

__device__ inline tr_online tr_online_start()
{
    return tr_online{-INFINITY, 0.0};
}

template <typename T, int V, int K>
__device__ void tr_online_add(tr_online &o, tr_piece<T, V, K> &z)
{
    float top = o.top, some = 0.0f;
    z.each([&](float &v, int) { top = fmaxf(v, top); });
    /* with nothing but -inf so far, only a NaN counts */
    const float shift = top == -INFINITY ? 0.0f : top;
    z.each([&](float &v, int) { some += tr_exp_below<T>(v - shift); });
    if (top != o.top) o.sum *= (double)tr_exp_below<T>(o.top - top);
    o.sum += (double)some;
    o.top = top;
}

/* Of all threads of a team. */
template <typename T, bool BLOCK>
__device__ tr_online tr_online_merge(const tr_online &o, const tr_team<BLOCK> &team)
{
    const float top = team.most(o.top);
    const double sum =
        team.sum(o.top == top ? o.sum : o.sum * (double)tr_exp_below<T>(o.top - top));
    return tr_online{top, top == -INFINITY ? (double)NAN : sum};
}

#endif
