/* libFuzzer target for run files: any bytes end in a report or a TR_FILE error with a text.
 *   fuzz_store tests/fuzz/corpus/store -max_total_time=60
 * The first byte says what the rest is:
 *   'F'  a whole file;
 *   'P'  patches of a good file, 4 bytes each: offset (3, little-endian), value. What then reads as
 *        whole must be what was written;
 *   'H'  changes made through HDF5 itself, 4 bytes each, so that its checksums are right: links
 * cut, made soft, or crossed; datasets of other types, dims and layouts; attributes lost or
 * changed. */
#include "fuzz_store.h"

#include <hdf5.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);
const char *__lsan_default_suppressions(void);

/* HDF5 loses a little memory of its own on damaged files; ours is counted below. */
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

static void patch(const char *path, const uint8_t *bytes, size_t nbytes)
{
    FILE *file = fopen(path, "r+b");
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    for (; nbytes >= 4; bytes += 4, nbytes -= 4) {
        fseek(file, (bytes[0] | bytes[1] << 8 | bytes[2] << 16) % size, SEEK_SET);
        fputc(bytes[3], file);
    }
    fclose(file);
}

static const char *const places[] = {"/model/params/linear1/weight",
                                     "/model/params/linear1/bias",
                                     "/model/state/norm/mean",
                                     "/optimizer/m/linear1/weight",
                                     "/history/loss",
                                     "/history/eval_step",
                                     "/history/confusion",
                                     "/history/step",
                                     "/model/params/linear1",
                                     "/model/params",
                                     "/model",
                                     "/optimizer/m",
                                     "/history",
                                     "/train",
                                     "/model/params/extra",
                                     "/stages"};

static void dataset(hid_t file, const char *where, unsigned a, unsigned b)
{
    const hid_t types[] = {H5T_IEEE_F32LE, H5T_IEEE_F64LE, H5T_STD_I64LE, H5T_IEEE_F32BE,
                           H5T_C_S1,       H5T_STD_U8LE,   H5T_STD_I32LE, H5T_STD_REF_OBJ};
    const hsize_t lengths[] = {0, 1, 2, 3, 4, 5, 1ull << 31, 1ull << 62};
    hsize_t dims[10];
    int ndim = (int)(b % 10);
    for (int i = 0; i < 10; i++) dims[i] = lengths[(a / 8 + (unsigned)i * (b / 10)) % 8];
    hid_t space =
        ndim ? H5Screate_simple(ndim, dims, NULL) : H5Screate(b & 64 ? H5S_NULL : H5S_SCALAR);
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    if (b % 7 == 0) H5Pset_external(plist, "/etc/hostname", 0, H5F_UNLIMITED);
    bool small = true; /* HDF5 1.10 writes past its memory where compact data do not fit a header */
    for (int i = 0; i < ndim; i++) small = small && dims[i] < 6 && ndim < 5;
    if (b % 11 == 0 && small) H5Pset_layout(plist, H5D_COMPACT);
    if (b % 3 == 0) H5Pset_alloc_time(plist, H5D_ALLOC_TIME_LATE);
    H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER);
    hid_t set = H5Dcreate2(file, where, types[a % 8], space, H5P_DEFAULT, plist, H5P_DEFAULT);
    hid_t scalar = H5Screate(H5S_SCALAR);
    uint32_t crc = 0;
    hid_t attr = H5Acreate2(set, "crc32c", a & 128 ? H5T_STD_U64LE : H5T_STD_U32LE, scalar,
                            H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attr, H5T_NATIVE_UINT32, &crc);
    H5Aclose(attr);
    H5Sclose(scalar);
    H5Dclose(set);
    H5Pclose(plist);
    H5Sclose(space);
}

static void attribute(hid_t file, const char *where, unsigned a, unsigned b)
{
    static const char *const names[] = {"format", "format_version", "config",     "crc32c",
                                        "step",   "seconds",        "loss_scale", "kind"};
    hid_t object = H5Oopen(file, where, H5P_DEFAULT);
    hid_t type = H5Tcopy(a & 8 ? H5T_C_S1 : a & 16 ? H5T_STD_U64LE : H5T_IEEE_F64LE);
    if (a & 8) H5Tset_size(type, a & 32 ? H5T_VARIABLE : b + 1);
    hsize_t two = 2;
    hid_t space = a & 64 ? H5Screate_simple(1, &two, NULL) : H5Screate(H5S_SCALAR);
    char value[1024];
    memset(value, (int)b, sizeof value);
    H5Adelete(object, names[a % 8]);
    if (a & 128) {
        hid_t attr = H5Acreate2(object, names[a % 8], type, space, H5P_DEFAULT, H5P_DEFAULT);
        if (!(a & 8 && a & 32)) H5Awrite(attr, type, value);
        H5Aclose(attr);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Oclose(object);
}

static void change(const char *path, const uint8_t *bytes, size_t nbytes)
{
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    for (int n = 0; nbytes >= 4 && n < 16; bytes += 4, nbytes -= 4, n++) {
        const char *where = places[bytes[1] % 16], *other = places[bytes[2] % 16];
        switch (bytes[0] % 6) {
        case 0:
            H5Ldelete(file, where, H5P_DEFAULT);
            break;
        case 1:
            H5Lcreate_soft(other, file, where, H5P_DEFAULT, H5P_DEFAULT);
            break;
        case 2:
            H5Lcreate_hard(file, other, file, where, H5P_DEFAULT, H5P_DEFAULT);
            break;
        case 3:
            H5Lcreate_external("other.h5", other, file, where, H5P_DEFAULT, H5P_DEFAULT);
            break;
        case 4:
            dataset(file, where, bytes[2], bytes[3]);
            break;
        default:
            attribute(file, bytes[1] & 16 ? "/" : where, bytes[2], bytes[3]);
            break;
        }
    }
    H5Fclose(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
    char path[64];
    good g;
    if (nbytes == 0) return 0;
    make(&g);
    size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_SNAPSHOT);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    snprintf(path, sizeof path, "fuzz-store-%ld.h5", (long)getpid());
    if (bytes[0] == 'F') {
        FILE *file = fopen(path, "wb");
        need(file && fwrite(bytes + 1, 1, nbytes - 1, file) == nbytes - 1, "preparing");
        fclose(file);
    } else if (bytes[0] == 'P' || bytes[0] == 'H') {
        need(tr_store_write(path, &g.model, &g.snapshot, NULL) == TR_OK, "writing");
        if (bytes[0] == 'P')
            patch(path, bytes + 1, nbytes - 1);
        else
            change(path, bytes + 1, nbytes - 1);
    } else {
        return 0;
    }
    check(path, &g, bytes[0] == 'P');
    unlink(path);
    need(tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_SNAPSHOT) == held, "memory is lost");
    return 0;
}
