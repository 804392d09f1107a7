/* The gates of a recurrent layer at one row of all samples: a thread a feature of the state, whose
 * gates lie `hidden` apart, so that neighbours read neighbouring values.
 *
 * Bytes: every operand once: the minimum. One row has few of them: the launch and the product
 * before it take the time. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/loops/recurrent.h"

namespace
{

enum { THREADS = 128 };

__device__ inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Feature j of sample n. */
struct place {
    size_t n, j, flat; /* flat: n * hidden + j */
    bool live;         /* the sample has this row */
};

__device__ inline place place_of(const tr_cuda_recurrent_args &a, size_t i, size_t row)
{
    const size_t n = i / a.hidden;
    return {n, i - n * a.hidden, i, !a.lengths || (int64_t)row < a.lengths[n]};
}

/* The gate's value before its activation, but for x: the product and the bias. */
__device__ inline float recurrent_part(const tr_cuda_recurrent_args &a, const place &p,
                                       size_t gates, size_t gate, bool first)
{
    const size_t at = gate * a.hidden + p.j;
    const float bias = a.bias ? a.bias[at] : 0.0f;
    return first ? bias : a.product[p.n * gates * a.hidden + at] + bias;
}

/* Of one feature: the output; gates and kept are written where they are wanted. */
template <typename T>
__device__ inline float lstm_step(const tr_cuda_recurrent_args &a, const place &p, size_t wide,
                                  size_t narrow, bool first, float *state)
{
    const T *x = static_cast<const T *>(a.x) + wide;
    float v[4];
    TR_UNROLL
    for (int g = 0; g < 4; g++)
        v[g] = tr_load<T>(x[g * a.hidden]) + recurrent_part(a, p, 4, (size_t)g, first);
    v[0] = sigmoid(v[0]), v[1] = sigmoid(v[1]), v[2] = tanhf(v[2]), v[3] = sigmoid(v[3]);
    *state = v[1] * *state + v[0] * v[2];
    if (a.kept_gates) {
        TR_UNROLL
        for (int g = 0; g < 4; g++)
            static_cast<T *>(a.kept_gates)[wide + g * a.hidden] = tr_store<T>(v[g]);
        static_cast<float *>(a.kept)[narrow] = *state;
    }
    return v[3] * tanhf(*state);
}

template <typename T>
__device__ inline float gru_step(const tr_cuda_recurrent_args &a, const place &p, size_t wide,
                                 size_t narrow, bool first, float *state)
{
    const T *x = static_cast<const T *>(a.x) + wide;
    const float r = sigmoid(tr_load<T>(x[0]) + recurrent_part(a, p, 3, 0, first));
    const float z = sigmoid(tr_load<T>(x[a.hidden]) + recurrent_part(a, p, 3, 1, first));
    const float own = recurrent_part(a, p, 3, 2, first);
    const float n = tanhf(tr_load<T>(x[2 * a.hidden]) + r * own);
    *state = n + z * (*state - n);
    if (a.kept_gates) {
        T *gates = static_cast<T *>(a.kept_gates) + wide;
        gates[0] = tr_store<T>(r);
        gates[a.hidden] = tr_store<T>(z);
        gates[2 * a.hidden] = tr_store<T>(n);
        static_cast<T *>(a.kept)[narrow] = tr_store<T>(own);
    }
    return *state;
}

// cost: read 4x+5f write 6x+2f min 10x+7f flops 60 shape 64x1024 per feature of the state, LSTM
template <typename T, bool LSTM>
__global__ void __launch_bounds__(THREADS)
    recurrent(tr_cuda_recurrent_args a, size_t row, bool first)
{
    constexpr size_t gates = LSTM ? 4 : 3;
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.samples * a.hidden) return;
    const place p = place_of(a, i, row);
    const size_t line = p.n * a.rows + row, wide = line * gates * a.hidden + p.j;
    const size_t narrow = line * a.hidden + p.j;
    T *h = static_cast<T *>(a.h) + p.flat, *y = static_cast<T *>(a.y) + narrow;
    float state = first ? 0.0f : a.state[p.flat];
    if (p.live) {
        const float out = LSTM ? lstm_step<T>(a, p, wide, narrow, first, &state)
                               : gru_step<T>(a, p, wide, narrow, first, &state);
        *h = *y = tr_store<T>(out);
    } else { /* what is kept must be finite */
        const T was = first ? tr_store<T>(0.0f) : *h;
        *h = was;
        *y = a.hold ? was : tr_store<T>(0.0f);
        for (size_t g = 0; a.kept_gates && g < gates; g++)
            static_cast<T *>(a.kept_gates)[wide + g * a.hidden] = tr_store<T>(0.0f);
        if (a.kept_gates && LSTM) static_cast<float *>(a.kept)[narrow] = 0.0f;
        if (a.kept_gates && !LSTM) static_cast<T *>(a.kept)[narrow] = tr_store<T>(0.0f);
    }
    a.state[p.flat] = state;
}

/* Gradients of the gates before their activations: of x, and of the product where that differs. */
template <typename T, bool LSTM> struct gate_grads {
    float x[LSTM ? 4 : 3], product[LSTM ? 4 : 3];
};

template <typename T>
__device__ inline gate_grads<T, true> lstm_grad(const tr_cuda_recurrent_args &a, size_t wide,
                                                size_t narrow, float before, float dh, float *dcell)
{
    const T *gates = static_cast<const T *>(a.kept_gates) + wide;
    const float i = tr_load<T>(gates[0]), f = tr_load<T>(gates[a.hidden]);
    const float g = tr_load<T>(gates[2 * a.hidden]), o = tr_load<T>(gates[3 * a.hidden]);
    const float c = tanhf(static_cast<const float *>(a.kept)[narrow]);
    const float dc = *dcell + dh * o * (1.0f - c * c);
    *dcell = dc * f;
    gate_grads<T, true> d = {};
    d.x[0] = dc * g * i * (1.0f - i);
    d.x[1] = dc * before * f * (1.0f - f);
    d.x[2] = dc * i * (1.0f - g * g);
    d.x[3] = dh * c * o * (1.0f - o);
    TR_UNROLL
    for (int k = 0; k < 4; k++) d.product[k] = d.x[k];
    return d;
}

template <typename T>
__device__ inline gate_grads<T, false> gru_grad(const tr_cuda_recurrent_args &a, size_t wide,
                                                size_t narrow, float before, float dh,
                                                float *through)
{
    const T *gates = static_cast<const T *>(a.kept_gates) + wide;
    const float r = tr_load<T>(gates[0]), z = tr_load<T>(gates[a.hidden]);
    const float n = tr_load<T>(gates[2 * a.hidden]);
    const float own = tr_load<T>(static_cast<const T *>(a.kept)[narrow]);
    const float dn = dh * (1.0f - z) * (1.0f - n * n);
    *through = dh * z;
    gate_grads<T, false> d = {};
    d.x[0] = d.product[0] = dn * own * r * (1.0f - r);
    d.x[1] = d.product[1] = dh * (before - n) * z * (1.0f - z);
    d.x[2] = dn;
    d.product[2] = dn * r;
    return d;
}

// cost: read 6x+5f write 9x+2f min 15x+7f flops 60 shape 64x1024 per feature of the state, LSTM
template <typename T, bool LSTM>
__global__ void __launch_bounds__(THREADS)
    recurrent_grad(tr_cuda_recurrent_args a, size_t row, bool first, bool last)
{
    constexpr size_t gates = LSTM ? 4 : 3;
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.samples * a.hidden) return;
    const place p = place_of(a, i, row);
    const size_t line = p.n * a.rows + row, earlier = a.reverse ? line + 1 : line - 1;
    const size_t wide = line * gates * a.hidden + p.j, narrow = line * a.hidden + p.j;
    const T zero = tr_store<T>(0.0f);
    const T was = last ? zero : static_cast<const T *>(a.y)[earlier * a.hidden + p.j];
    float dh = first ? 0.0f : a.product[p.flat] + a.through[p.flat];
    float through = 0.0f, dcell = first || !LSTM ? 0.0f : a.state[p.flat];
    const float dy = tr_load<T>(static_cast<const T *>(a.dy)[narrow]);
    gate_grads<T, LSTM> d = {};
    if (p.live) {
        dh += dy;
        if constexpr (LSTM) {
            const float cell =
                last ? 0.0f : static_cast<const float *>(a.kept)[earlier * a.hidden + p.j];
            d = lstm_grad<T>(a, wide, narrow, cell, dh, &dcell);
        } else {
            d = gru_grad<T>(a, wide, narrow, tr_load<T>(was), dh, &through);
        }
    } else {
        through = a.hold ? dh + dy : dh;
    }
    a.through[p.flat] = through;
    if (LSTM) a.state[p.flat] = dcell;
    if (a.before) static_cast<T *>(a.before)[narrow] = was;
    TR_UNROLL
    for (size_t g = 0; g < gates; g++) {
        const T product = tr_store<T>(d.product[g]);
        static_cast<T *>(a.dx)[wide + g * a.hidden] = tr_store<T>(d.x[g]);
        static_cast<T *>(a.dg)[p.n * gates * a.hidden + g * a.hidden + p.j] = product;
        if (a.dproduct) static_cast<T *>(a.dproduct)[wide + g * a.hidden] = product;
    }
}

} // namespace

tr_status tr_cuda_recurrent_run(tr_dtype t, const tr_cuda_recurrent_args *a, size_t row, bool first,
                                cudaStream_t stream)
{
    const size_t count = a->samples * a->hidden;
    const unsigned grid = tr_blocks(count, THREADS, INT32_MAX);
    if (count == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        return a->lstm ? TR_LAUNCH(TR_KERNEL(recurrent<T, true>), grid, THREADS, 0, stream, *a, row,
                                   first)
                       : TR_LAUNCH(TR_KERNEL(recurrent<T, false>), grid, THREADS, 0, stream, *a,
                                   row, first);
    })
    return TR_OK;
}

tr_status tr_cuda_recurrent_grad_run(tr_dtype t, const tr_cuda_recurrent_args *a, size_t row,
                                     bool first, bool last, cudaStream_t stream)
{
    const size_t count = a->samples * a->hidden;
    const unsigned grid = tr_blocks(count, THREADS, INT32_MAX);
    if (count == 0) return TR_OK;
    TR_BY_TYPE(t, T, {
        return a->lstm ? TR_LAUNCH(TR_KERNEL(recurrent_grad<T, true>), grid, THREADS, 0, stream, *a,
                                   row, first, last)
                       : TR_LAUNCH(TR_KERNEL(recurrent_grad<T, false>), grid, THREADS, 0, stream,
                                   *a, row, first, last);
    })
    return TR_OK;
}
