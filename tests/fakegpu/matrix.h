// Matrix products of a warp, and copies to shared memory that go on beside the thread: what
// kernels/cuda/mma.cuh has by PTX on the device. Fragments are those of the PTX ISA ("Matrix
// Fragments for mma.m16n8k16 with floating point type", "ldmatrix", "cp.async"). All 32 lanes of a
// warp must be there: one that ended or that waits elsewhere is a violation. Part of device.h; what
// is inline here is compiled with the kernels, so that races.cc sees their accesses; static, so
// that no other file's code for it, which may not be watched, takes its place.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define TR_MATRIX_UNITS 1

namespace fakegpu
{

// c += a b: rows of 16, 16 and 8 values over the lanes.
void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool bf16);
// The rows of 16 bytes of all lanes. Each is aligned, and in the block's shared memory.
void exchange_rows(const unsigned char *(&rows)[32], const void *mine);
// A copy begins; the next one of the thread's that began, or false.
struct AsyncCopy {
    void *to;
    const void *from; // nullptr: zeros
    size_t nbytes;    // 16 or 4
};
void begin_copy(void *to, const void *from, size_t nbytes, bool some);
bool next_copy(AsyncCopy *out);
inline int lane();

typedef unsigned Quad __attribute__((vector_size(16), may_alias));
typedef uint16_t Half __attribute__((may_alias));
typedef uint32_t Word __attribute__((may_alias));

// Four matrices of 8 x 8 values of 2 bytes; lane i names row i % 8 of matrix i / 8.
static inline void ldmatrix(unsigned (&to)[4], const void *row, bool transposed)
{
    const unsigned char *rows[32];
    exchange_rows(rows, row);
    const int group = lane() / 4, in = lane() % 4;
    for (int i = 0; i < 4; i++) {
        const unsigned char *const *of = rows + 8 * i;
        if (transposed)
            to[i] = *reinterpret_cast<const Half *>(of[2 * in] + 2 * group) |
                    (unsigned)*reinterpret_cast<const Half *>(of[2 * in + 1] + 2 * group) << 16;
        else
            to[i] = *reinterpret_cast<const Word *>(of[group] + 4 * in);
    }
}

} // namespace fakegpu

template <typename T> void tr_mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    static_assert(std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>, "16-bit types");
    ::fakegpu::mma(c, a, b0, b1, std::is_same_v<T, __nv_bfloat16>);
}
static inline void tr_ldmatrix(unsigned (&to)[4], const void *row)
{
    ::fakegpu::ldmatrix(to, row, false);
}
static inline void tr_ldmatrix_transposed(unsigned (&to)[4], const void *row)
{
    ::fakegpu::ldmatrix(to, row, true);
}
// The bytes are written when the copy begins, with what no kernel can use, and when it is waited
// for: at any time between.
static inline void tr_async_copy(void *to, const void *from, bool some)
{
    ::fakegpu::begin_copy(to, from, 16, some);
    *static_cast<::fakegpu::Quad *>(to) = ~::fakegpu::Quad{};
}
static inline void tr_async_copy_word(float *to, const float *from, bool some)
{
    ::fakegpu::begin_copy(to, from, 4, some);
    *reinterpret_cast<::fakegpu::Word *>(to) = ~0u;
}
static inline void tr_async_wait()
{
    using ::fakegpu::Quad, ::fakegpu::Word;
    for (::fakegpu::AsyncCopy c; ::fakegpu::next_copy(&c);)
        if (c.nbytes == 4)
            *static_cast<Word *>(c.to) = c.from != nullptr ? *static_cast<const Word *>(c.from) : 0;
        else
            *static_cast<Quad *>(c.to) =
                c.from != nullptr ? *static_cast<const Quad *>(c.from) : Quad{};
}
