/* libFuzzer: an NPY file, opened and read as a user's would be. */
#include "fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[32];
    tr_array *a;
    int fd = fuzz_file(bytes, n, path);
    if (tr_npy_open(path, &a) == TR_OK) fuzz_read(a);
    close(fd);
    return 0;
}
