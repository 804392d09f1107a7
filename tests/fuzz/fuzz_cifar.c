/* libFuzzer: CIFAR batches of both kinds, one file or the same file twice. */
#include "fuzz_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[32], *paths[2] = {path, path};
    tr_array *x, *y;
    bool hundred;
    int fd = fuzz_file(bytes, n, path);
    if (tr_cifar_kind(path, &hundred) == TR_OK &&
        tr_cifar_open(paths, 1 + n % 2, hundred, n % 3 ? "fine" : "coarse", &x, &y) == TR_OK) {
        fuzz_read(x);
        fuzz_read(y);
    }
    close(fd);
    return 0;
}
