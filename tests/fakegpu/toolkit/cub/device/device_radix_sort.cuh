// CUB's stand-in, found before the toolkit's: the one sort that the backend asks for (cub.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace cub
{

struct DeviceRadixSort {
    static cudaError_t SortPairs(void *temp, size_t &temp_bytes, const uint32_t *keys_in,
                                 uint32_t *keys_out, const uint32_t *values_in,
                                 uint32_t *values_out, int n, int begin_bit, int end_bit,
                                 cudaStream_t stream);
};

} // namespace cub
