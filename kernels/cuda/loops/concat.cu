/* Rows put side by side, or taken apart again.
 *
 * Bytes: every element read once, written once: the minimum. All parts in one launch; a thread
 * moves one unit of the whole row, of the most bytes up to 16 that divide all widths and
 * addresses. */
#include "kernels/cuda/loops/arrange.h"
#include "kernels/cuda/loops/divide.cuh"

namespace
{

enum { THREADS = 256 };

struct parts {
    unsigned char *at[TR_MAX_IN];
    size_t begin[TR_MAX_IN], width[TR_MAX_IN]; /* units, in the whole row; SIZE_MAX: no such part */
};

// cost: read 1x write 1x min 2x flops 6 shape 50176x512
template <typename U, bool SPLIT>
__global__ void __launch_bounds__(THREADS) concat(U *whole, parts p, tr_divider width, size_t n)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const size_t row = tr_quotient(width, i), at = i - row * width.by;
    unsigned char *bytes = p.at[0];
    size_t begin = 0, units = p.width[0];
    TR_UNROLL
    for (int k = 1; k < TR_MAX_IN; k++)
        if (at >= p.begin[k]) {
            bytes = p.at[k];
            begin = p.begin[k];
            units = p.width[k];
        }
    if (!bytes) return;
    U *part = reinterpret_cast<U *>(bytes) + row * units + (at - begin);
    if (SPLIT)
        *part = whole[i];
    else
        whole[i] = *part;
}

template <typename U>
tr_status launch(bool split, void *whole, void *const *at, const size_t *part, int count,
                 size_t rows, cudaStream_t stream)
{
    parts p = {};
    size_t width = 0;
    for (int k = 0; k < TR_MAX_IN; k++) {
        p.at[k] = k < count ? static_cast<unsigned char *>(at[k]) : nullptr;
        p.begin[k] = k < count ? width : SIZE_MAX;
        p.width[k] = k < count ? part[k] / sizeof(U) : 0;
        width += p.width[k];
    }
    const size_t n = width * rows;
    const unsigned grid = tr_blocks(n, THREADS, INT32_MAX);
    U *to = static_cast<U *>(whole);
    if (split)
        return TR_LAUNCH(TR_KERNEL(concat<U, true>), grid, THREADS, 0, stream, to, p,
                         tr_divide_by(width), n);
    return TR_LAUNCH(TR_KERNEL(concat<U, false>), grid, THREADS, 0, stream, to, p,
                     tr_divide_by(width), n);
}

} // namespace

tr_status tr_cuda_concat_run(bool split, void *whole, void *const *at, const size_t *part,
                             int count, size_t rows, cudaStream_t stream)
{
    uintptr_t bits = reinterpret_cast<uintptr_t>(whole);
    size_t width = 0;
    for (int k = 0; k < count; k++) {
        bits |= reinterpret_cast<uintptr_t>(at[k]) | part[k];
        width += part[k];
    }
    if (rows == 0 || width == 0) return TR_OK;
    if (bits % 16 == 0) return launch<uint4>(split, whole, at, part, count, rows, stream);
    if (bits % 8 == 0) return launch<uint64_t>(split, whole, at, part, count, rows, stream);
    if (bits % 4 == 0) return launch<uint32_t>(split, whole, at, part, count, rows, stream);
    return launch<uint16_t>(split, whole, at, part, count, rows, stream);
}
