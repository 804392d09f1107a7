// CUB's stand-in: a stable sort as a task of the stream. With the library it is launches of
// kernels, so faults and counts take it for one. What the library would do wrong silently is a
// violation: arrays that overlap, keys with bits beyond those that are sorted by.
#include "tests/fakegpu/toolkit/cub/device/device_radix_sort.cuh"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/fakegpu/engine.h"

using namespace fakegpu;

namespace
{

const char *const name = "cub::DeviceRadixSort::SortPairs";

struct Part {
    const char *what;
    const void *at;
    size_t nbytes;
};

struct Sort {
    void *temp;
    size_t temp_bytes;
    const uint32_t *keys_in;
    uint32_t *keys_out;
    const uint32_t *values_in;
    uint32_t *values_out;
    size_t n;
    int begin_bit, end_bit;
};

// As much as the library takes: the pairs once more, and some for each of its tiles.
size_t needed(size_t n)
{
    return 8 * n + (n / 5376 + 1) * 1024 + 4096;
}

void check(const char *call, const Sort &s)
{
    const Part parts[] = {{"the keys", s.keys_in, 4 * s.n},
                          {"the values", s.values_in, 4 * s.n},
                          {"the sorted keys", s.keys_out, 4 * s.n},
                          {"the sorted values", s.values_out, 4 * s.n},
                          {"the scratch", s.temp, s.temp_bytes}};
    for (const Part &p : parts) {
        need_device(call, p.what, p.at, p.nbytes);
        need_aligned(call, p.what, p.at, 4);
        for (const Part &q : parts) {
            const char *a = static_cast<const char *>(p.at), *b = static_cast<const char *>(q.at);
            if (&p != &q && a < b + q.nbytes && b < a + p.nbytes)
                violation(call, "%s and %s overlap", p.what, q.what);
        }
    }
}

void sort(const Sort &s)
{
    const uint64_t mask = (UINT64_C(1) << s.end_bit) - (UINT64_C(1) << s.begin_bit);
    std::vector<std::pair<uint32_t, uint32_t>> pairs(s.n);
    for (size_t i = 0; i < s.n; i++) {
        pairs[i] = {s.keys_in[i], s.values_in[i]};
        if (s.keys_in[i] & ~mask)
            violation(name, "key %zu is %u, which has bits outside [%d, %d)", i, s.keys_in[i],
                      s.begin_bit, s.end_bit);
    }
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const auto &a, const auto &b) { return a.first < b.first; });
    memset(s.temp, 0xcd, s.temp_bytes);
    for (size_t i = 0; i < s.n; i++) {
        s.keys_out[i] = pairs[i].first;
        s.values_out[i] = pairs[i].second;
    }
}

} // namespace

cudaError_t cub::DeviceRadixSort::SortPairs(void *temp, size_t &temp_bytes, const uint32_t *keys_in,
                                            uint32_t *keys_out, const uint32_t *values_in,
                                            uint32_t *values_out, int n, int begin_bit, int end_bit,
                                            cudaStream_t stream)
{
    if (n < 0 || begin_bit < 0 || end_bit > 32 || begin_bit >= end_bit)
        return cudaErrorInvalidValue;
    if (!temp) { // only asks
        temp_bytes = needed((size_t)n);
        return cudaSuccess;
    }
    FAKEGPU_ENTER("cudaLaunchKernel");
    if (temp_bytes < needed((size_t)n)) return entry.done(cudaErrorInvalidValue);
    if (n == 0) return cudaSuccess;
    const Sort s{temp,       needed((size_t)n), keys_in,   keys_out, values_in,
                 values_out, (size_t)n,         begin_bit, end_bit};
    check(name, s);
    Task task{};
    task.what = name;
    task.step = [=]() {
        check("cub::DeviceRadixSort::SortPairs, running", s);
        sort(s);
        return true;
    };
    return entry.done(enqueue(stream, task));
}
