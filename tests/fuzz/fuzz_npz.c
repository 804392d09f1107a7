/* links: trireme_tensors
 * libFuzzer: an NPZ file (ZIP, NPY). */
#include "fuzz_arrays.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    fuzz_arrays(&tr_arrays_npz, bytes, n);
    return 0;
}
