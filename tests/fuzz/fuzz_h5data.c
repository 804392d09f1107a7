/* libFuzzer: an HDF5 file with the datasets "x" and "y". HDF5 1.10 itself crashes on many of these;
 * that happens in the process that looks at a file (hdf5_process.c) and must not reach this
 * process. Coverage of the child is not seen by the fuzzer, so this is chance more than guidance:
 * 70 files a second. Run with ASAN_OPTIONS=allocator_may_return_null=1: HDF5 asks for whatever a
 * file claims. */
#include "fuzz_data.h"

#include <hdf5.h>

/* HDF5 1.10 leaks on some of its own error paths; what we leave open is counted below instead. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[] = "/tmp/fuzz-h5data-XXXXXX"; /* HDF5 wants a path that it can resolve: no memfd */
    tr_array *a;
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
    if (tr_hdf5_arrays_open(path, (const char *[]){"x"}, 1, &a, NULL) == TR_OK) fuzz_read(a);
    if (tr_hdf5_arrays_open(path, (const char *[]){"y"}, 1, &a, NULL) == TR_OK) fuzz_read(a);
    if (H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL) != 0) abort();
    unlink(path);
    close(fd);
    return 0;
}
