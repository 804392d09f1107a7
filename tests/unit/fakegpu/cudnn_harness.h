// What the tests of the stand-in for cuDNN share: descriptors in one line, device memory, and a
// convolution written on its own, straight from the definition, in double.
#pragma once

#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "tests/run.h"

typedef cudnnBackendDescriptor_t Desc;
typedef std::vector<int64_t> Ints;

#define OK(call)      assert_int_equal((call), CUDNN_STATUS_SUCCESS)
#define CUDA_OK(call) assert_int_equal((call), cudaSuccess)

// Destroys what it made.
struct Bag {
    std::vector<Desc> all;
    Bag() = default;
    Bag(const Bag &) = delete;
    ~Bag()
    {
        for (Desc d : all) cudnnBackendDestroyDescriptor(d);
    }
    Desc make(cudnnBackendDescriptorType_t type)
    {
        Desc d = nullptr;
        OK(cudnnBackendCreateDescriptor(type, &d));
        all.push_back(d);
        return d;
    }
    Desc finished(Desc d)
    {
        OK(cudnnBackendFinalize(d));
        return d;
    }
};

template <class T>
inline cudnnStatus_t set1(Desc d, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, T v)
{
    return cudnnBackendSetAttribute(d, name, type, 1, &v);
}

inline cudnnStatus_t ints(Desc d, cudnnBackendAttributeName_t name, const Ints &v)
{
    return cudnnBackendSetAttribute(d, name, CUDNN_TYPE_INT64, (int64_t)v.size(), v.data());
}

inline cudnnStatus_t part(Desc d, cudnnBackendAttributeName_t name, Desc v)
{
    return set1(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, v);
}

inline Ints last(const Ints &d) // strides of channels-last storage
{
    return {d[1] * d[2] * d[3], 1, d[3] * d[1], d[1]};
}

// Not finalized.
inline Desc tensor(Bag &b, int64_t uid, const Ints &dim, const Ints &stride,
                   cudnnDataType_t type = CUDNN_DATA_FLOAT, bool is_virtual = false,
                   int64_t align = 16)
{
    Desc d = b.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    OK(set1(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type));
    OK(ints(d, CUDNN_ATTR_TENSOR_DIMENSIONS, dim));
    OK(ints(d, CUDNN_ATTR_TENSOR_STRIDES, stride));
    OK(set1(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid));
    OK(set1(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, align));
    if (is_virtual) OK(set1(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual));
    return d;
}

inline Desc conv(Bag &b, const Ints &stride = {1, 1}, const Ints &pad = {1, 1},
                 const Ints &dilation = {1, 1},
                 cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION)
{
    Desc d = b.make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    OK(set1(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
    OK(set1(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, mode));
    OK(set1(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, (int64_t)stride.size()));
    OK(ints(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, stride));
    OK(ints(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, pad));
    OK(ints(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, pad));
    OK(ints(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, dilation));
    return d;
}

enum Pass { FORWARD, DATA, FILTER };

inline Desc conv_op(Bag &b, Pass pass, Desc c, Desc x, Desc w, Desc y, float beta = 0)
{
    Desc d = nullptr;
#define OP(type, n, X, W, Y)                                                                       \
    d = b.make(CUDNN_BACKEND_OPERATION_CONVOLUTION_##type##_DESCRIPTOR);                           \
    if (c) OK(part(d, CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_CONV_DESC, c));                       \
    if (x) OK(part(d, CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_##X, x));                             \
    if (w) OK(part(d, CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_##W, w));                             \
    if (y) OK(part(d, CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_##Y, y));                             \
    OK(set1(d, CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_ALPHA, CUDNN_TYPE_FLOAT, 1.0f));             \
    OK(set1(d, CUDNN_ATTR_OPERATION_CONVOLUTION_##n##_BETA, CUDNN_TYPE_FLOAT, beta))
    if (pass == FORWARD) {
        OP(FORWARD, FORWARD, X, W, Y);
    } else if (pass == DATA) {
        OP(BACKWARD_DATA, BWD_DATA, DX, W, DY);
    } else {
        OP(BACKWARD_FILTER, BWD_FILTER, X, DW, DY);
    }
#undef OP
    return d;
}

inline Desc pointwise_op(Bag &b, cudnnPointwiseMode_t mode, Desc x, Desc with, Desc y)
{
    Desc p = b.make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    OK(set1(p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode));
    OK(set1(p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
    OK(cudnnBackendFinalize(p));
    Desc d = b.make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    OK(part(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p));
    OK(part(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x));
    if (with) OK(part(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, with));
    if (y) OK(part(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
    return d;
}

// A shape of convolution: images, channels, size, results, kernel, groups, stride, padding,
// dilation.
struct Case {
    int64_t n, c, h, w, k, r, s, g, stride[2], pad[2], dil[2];
    int64_t p() const
    {
        return (h + 2 * pad[0] - (r - 1) * dil[0] - 1) / stride[0] + 1;
    }
    int64_t q() const
    {
        return (w + 2 * pad[1] - (s - 1) * dil[1] - 1) / stride[1] + 1;
    }
    Ints x() const
    {
        return {n, c, h, w};
    }
    Ints f() const
    {
        return {k, c / g, r, s};
    }
    Ints y() const
    {
        return {n, k, p(), q()};
    }
};

inline int64_t numel(const Ints &d)
{
    int64_t n = 1;
    for (int64_t v : d) n *= v;
    return n;
}

// The definition: calls f(place in x, place in w, place in y) for each product, channels-last.
template <class F> inline void products(const Case &z, F f)
{
    const int64_t cg = z.c / z.g, kg = z.k / z.g;
    for (int64_t n = 0; n < z.n; n++)
        for (int64_t k = 0; k < z.k; k++)
            for (int64_t p = 0; p < z.p(); p++)
                for (int64_t q = 0; q < z.q(); q++)
                    for (int64_t c = 0; c < cg; c++)
                        for (int64_t r = 0; r < z.r; r++)
                            for (int64_t s = 0; s < z.s; s++) {
                                const int64_t i = p * z.stride[0] + r * z.dil[0] - z.pad[0];
                                const int64_t j = q * z.stride[1] + s * z.dil[1] - z.pad[1];
                                if (i < 0 || j < 0 || i >= z.h || j >= z.w) continue;
                                f(((n * z.h + i) * z.w + j) * z.c + k / kg * cg + c,
                                  ((k * z.r + r) * z.s + s) * cg + c,
                                  ((n * z.p() + p) * z.q() + q) * z.k + k);
                            }
}

// ---- Memory ----

inline size_t bytes(cudnnDataType_t t)
{
    return t == CUDNN_DATA_FLOAT ? 4 : 2;
}

// bfloat16 and half by the compiler's own types, not the stand-in's code.
inline void encode(cudnnDataType_t t, float v, void *to)
{
    if (t == CUDNN_DATA_FLOAT) {
        memcpy(to, &v, 4);
    } else if (t == CUDNN_DATA_HALF) {
        const _Float16 h = (_Float16)v;
        memcpy(to, &h, 2);
    } else {
        uint32_t u;
        memcpy(&u, &v, 4);
        u += 0x7fff + ((u >> 16) & 1);
        const uint16_t h = (uint16_t)(u >> 16);
        memcpy(to, &h, 2);
    }
}

inline float decode(cudnnDataType_t t, const void *from)
{
    float v;
    uint16_t h;
    _Float16 f;
    if (t == CUDNN_DATA_FLOAT) return memcpy(&v, from, 4), v;
    if (t == CUDNN_DATA_HALF) return memcpy(&f, from, 2), (float)f;
    memcpy(&h, from, 2);
    const uint32_t u = (uint32_t)h << 16;
    return memcpy(&v, &u, 4), v;
}

struct Memory {
    cudnnDataType_t type;
    int64_t count;
    void *p = nullptr;
    Memory(cudnnDataType_t t, int64_t n) : type(t), count(n)
    {
        CUDA_OK(cudaMalloc(&p, (size_t)n * bytes(t)));
    }
    Memory(const Memory &) = delete;
    ~Memory()
    {
        cudaFree(p);
    }
    void put(const std::vector<float> &v)
    {
        std::vector<char> raw((size_t)count * bytes(type));
        for (int64_t i = 0; i < count; i++)
            encode(type, v[(size_t)i], &raw[(size_t)i * bytes(type)]);
        CUDA_OK(cudaMemcpy(p, raw.data(), raw.size(), cudaMemcpyHostToDevice));
    }
    std::vector<float> get()
    {
        std::vector<char> raw((size_t)count * bytes(type));
        std::vector<float> v((size_t)count);
        CUDA_OK(cudaMemcpy(raw.data(), p, raw.size(), cudaMemcpyDeviceToHost));
        for (int64_t i = 0; i < count; i++)
            v[(size_t)i] = decode(type, &raw[(size_t)i * bytes(type)]);
        return v;
    }
};

// Values that every type holds exactly: multiples of 1/8 in [-2, 2].
inline std::vector<float> values(int64_t n, unsigned seed)
{
    std::vector<float> v((size_t)n);
    uint32_t x = seed * 2654435761u + 12345;
    for (float &f : v) x = x * 1664525u + 1013904223u, f = (float)((int)(x >> 16) % 17 - 8) / 4.0f;
    return v;
}

// Runs f in a child; the stand-in ends a process that did what the real library cannot bear
// with 99.
template <class F> inline int status_of_child(F f)
{
    fflush(nullptr);
    const pid_t child = fork();
    int status = 0;
    if (child == 0) {
        f();
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
