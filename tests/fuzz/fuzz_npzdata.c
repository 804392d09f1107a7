/* libFuzzer: an NPZ file as data: its arrays listed, then each opened and read, once in place where
 * that can be, once held. */
#include "fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const uint64_t limits[] = {0, 1 << 20};
    char path[32];
    tr_hdf5_listed *v;
    size_t count;
    const size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_DATA);
    const int fd = fuzz_file(bytes, n, path);
    if (tr_npz_list(path, &v, &count) == TR_OK) {
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k < 2; k++) {
                tr_array *a;
                const tr_status st = tr_npz_open(path, v[i].name, limits[k], &a);
                if (st == TR_OK && v[i].fault[0]) abort();
                if (st != TR_OK && !*tr_last_error()->text) abort();
                if (st == TR_OK) fuzz_read(a);
            }
        tr_free(v);
    }
    close(fd);
    if (tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_DATA) != held) abort();
    return 0;
}
