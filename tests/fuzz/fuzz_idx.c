/* libFuzzer: an IDX file, plain or gzip, opened and read as a user's would be.
 * corpus/idx holds a valid file of each kind. */
#include "fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[32];
    tr_array *a;
    int fd = fuzz_file(bytes, n, path);
    if (tr_idx_open(path, 1 << 20, &a) == TR_OK) fuzz_read(a);
    close(fd);
    return 0;
}
