/* libFuzzer: an HDF5 file with the datasets "x" and "y". What HDF5 itself does with hostile bytes
 * is HDF5's; our part is to check what it reports before it is used. */
#include "fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[32];
    tr_array *a;
    int fd = fuzz_file(bytes, n, path);
    if (tr_hdf5_array_open(path, "x", &a) == TR_OK) fuzz_read(a);
    if (tr_hdf5_array_open(path, "y", &a) == TR_OK) fuzz_read(a);
    close(fd);
    return 0;
}
