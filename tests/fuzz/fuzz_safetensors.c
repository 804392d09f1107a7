/* links: trireme_tensors
 * libFuzzer: a safetensors file. */
#include "fuzz_arrays.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_arrays(&tr_arrays_safetensors, bytes, n);
    return 0;
}
