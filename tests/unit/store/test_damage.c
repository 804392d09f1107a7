/* Damaged, truncated, foreign and hostile files: an error that names the place, or the identical
 * data; never a crash, never silently something else. */
#include "fixture.h"
#include "runtime/store/internal.h"

#include <fcntl.h>
#include <sys/stat.h>

static unsigned char *slurp(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*n);
    assert_int_equal(fread(bytes, 1, *n, file), *n);
    fclose(file);
    return bytes;
}

static void spill(const char *path, const unsigned char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

static void poke(const char *path, off_t at, unsigned char byte)
{
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Opens a good file for mischief, with the checksum of its metadata kept right by HDF5 itself. */
static hid_t reopen(fixture *f)
{
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    hid_t file = H5Fopen(f->path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(file >= 0);
    return file;
}

/* What is read, and whether it is what was written. */
typedef tr_status read_fn(const fixture *f, readback *r);
typedef bool same_fn(const fixture *f, const readback *r);

/* Every byte of the file, one bit of it in turn. At least so many of them are missed. */
static void flip_every_byte(fixture *f, read_fn *read, same_fn *same, size_t least)
{
    readback r;
    size_t n, refused = 0, unharmed = 0;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    unsigned char *bytes = slurp(f->path, &n);
    for (size_t i = 0; i < n; i++) {
        poke(f->path, (off_t)i, (unsigned char)(bytes[i] ^ (1u << (i % 8))));
        if (read(f, &r) == TR_OK) {
            if (!same(f, &r)) fail_msg("byte %zu changes what is read", i);
            check_config(f->path, f->snapshot.config_text);
            unharmed++;
        } else {
            assert_non_null(strstr(tr_last_error()->text, f->path));
            refused++;
        }
        tr_history_free(&r.history);
        poke(f->path, (off_t)i, bytes[i]);
    }
    assert_ok(tr_store_verify(f->path, NULL));
    assert_int_equal(refused + unharmed, n);
    assert_true(refused > least);
    free(bytes);
}

static tr_status read_checkpoint(const fixture *f, readback *r)
{
    return read_back(f, f->path, r);
}

static void long_every_flipped_byte(void **state)
{
    flip_every_byte(*state, read_checkpoint, same_snapshot,
                    6000); /* arrays alone are more than that */
}

static tr_status read_packed(const fixture *f, readback *r)
{
    memset(r, 0, sizeof *r);
    r->snapshot = (tr_snapshot){.params = r->p, .states = r->s};
    return tr_store_read(f->path, &f->model, &r->snapshot, &r->history);
}

static bool same_packed(const fixture *f, const readback *r)
{
    return same_params(f, f->p, r->p) && memcmp(f->s, r->s, 16) == 0 &&
           memcmp(r->history.steps, f->steps, sizeof f->steps) == 0 &&
           memcmp(r->history.confusion, f->confusion, sizeof f->confusion) == 0;
}

/* The same of a model in fewer bits: its texts are deflated, its small arrays have one checksum. */
static void long_every_flipped_byte_packed(void **state)
{
    fixture *f = *state;
    char text[2000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + tr_philox_at(1, TR_RNG_TEST, 5, i, 0).v[0] % 5);
    text[sizeof text - 1] = 0;
    set_stored(f);
    f->snapshot.config_text = text;
    flip_every_byte(f, read_packed, same_packed, 4000);
}

/* What an editor of HDF5 files leaves: its checksums are right, ours are not. */
static void changed_by_hand(void **state)
{
    fixture *f = *state;
    readback r;
    tr_snapshot *s = &r.snapshot;
    const float bias[10] = {1};
    set_stored(f);
    hid_t file = reopen(f);
    hid_t set = H5Dopen2(file, "/model/params/head/bias", H5P_DEFAULT);
    assert_true(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, bias) >= 0);
    H5Dclose(set);
    H5Fclose(file);
    memset(&r, 0, sizeof r);
    *s = (tr_snapshot){.params = r.p, .states = r.s};
    assert_error(tr_store_read(f->path, &f->model, s, NULL), TR_FILE,
                 "damaged: checksum of the small arrays together");
    tr_store_accept_unverified(true);
    const tr_status st = tr_store_read(f->path, &f->model, s, NULL);
    tr_store_accept_unverified(false);
    assert_int_equal(st, TR_OK);
    assert_true(r.p[f->params[3].offset] == 1);

    file = reopen(f);
    assert_true(H5Adelete(file, TR_TOGETHER_SUM) >= 0);
    H5Fclose(file);
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "it has no checksum");

    file = reopen(f); /* one that was taken away, too */
    assert_true(H5Ldelete(file, "/history/confusion", H5P_DEFAULT) >= 0);
    H5Fclose(file);
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "of the small arrays together");
}

static void every_length(void **state)
{
    fixture *f = *state;
    size_t n;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    unsigned char *bytes = slurp(f->path, &n);
    for (size_t cut = 0; cut < n; cut += cut < 256 ? 1 : 61) {
        spill(f->path, bytes, cut);
        assert_int_equal(tr_store_verify(f->path, NULL), TR_FILE);
        assert_non_null(strstr(tr_last_error()->text, f->path));
    }
    spill(f->path, bytes, n - 1);
    assert_int_equal(tr_store_verify(f->path, NULL), TR_FILE);
    spill(f->path, bytes, n);
    assert_ok(tr_store_verify(f->path, NULL));
    free(bytes);
}

/* A damaged array is named, and only it. */
static void names_the_array(void **state)
{
    fixture *f = *state;
    tr_index ix;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    assert_ok(tr_index_open(f->path, &ix));
    for (size_t i = 0; i < ix.count; i++) {
        unsigned char byte = 0;
        off_t at = (off_t)(ix.entries[i].offset + ix.entries[i].nbytes / 2);
        char want[128];
        if (ix.entries[i].nbytes >= 4096) assert_int_equal(ix.entries[i].offset % 64, 0);
        assert_int_equal(pread(ix.fd, &byte, 1, at), 1);
        poke(f->path, at, byte ^ 0x10);
        snprintf(want, sizeof want, "a.h5: %s: damaged: checksum", ix.entries[i].where);
        assert_error(tr_store_verify(f->path, NULL), TR_FILE, want);
        poke(f->path, at, byte);
    }
    assert_ok(tr_store_verify(f->path, NULL));
    tr_index_close(&ix);
}

static void not_a_run_file(void **state)
{
    fixture *f = *state;
    char path[128];
    assert_error(tr_store_verify(f->path, NULL), TR_IO, "No such file");
    assert_error(tr_store_verify(f->folder, NULL), TR_IO, "is a folder, expected a file");
    assert_error(tr_store_verify("/dev/zero", NULL), TR_IO, "is a device, expected a file");
    snprintf(path, sizeof path, "%s/pipe", f->folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_error(tr_store_verify(path, NULL), TR_IO, "is a pipe, expected a file");
    spill(f->path, (const unsigned char *)"", 0);
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "empty");
    spill(f->path, (const unsigned char *)"name: digits\n", 13);
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "not an HDF5 file");
}

static hid_t make(const char *path, bool old)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (!old) H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    assert_true(file >= 0);
    return file;
}

static void foreign_hdf5(void **state)
{
    fixture *f = *state;
    tr_attrs a = {0};
    H5Fclose(make(f->path, true));
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "superblock version 0, expected 2 or 3");
    H5Fclose(make(f->path, false));
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "no checksum");
    hid_t file = make(f->path, false);
    assert_ok(tr_attrs_add_text(&a, "format", "other"));
    assert_ok(tr_attrs_write(&a, file, f->path, "/", false));
    H5Fclose(file);
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "not a run file");
    tr_attrs_free(&a);

    file = make(f->path, false);
    assert_ok(tr_attrs_add_text(&a, "format", "trireme"));
    assert_ok(tr_attrs_add_count(&a, "format_version", TR_FORMAT_VERSION + 1));
    assert_ok(tr_attrs_write(&a, file, f->path, "/", false));
    H5Fclose(file);
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "format_version 3 is newer");
    tr_attrs_free(&a);
}

static void add_dataset(hid_t file, const char *where, hid_t type, int ndim, const hsize_t *dims,
                        hid_t plist)
{
    hid_t space = H5Screate_simple(ndim, dims, NULL);
    hid_t set = H5Dcreate2(file, where, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    assert_true(set >= 0);
    H5Dclose(set);
    H5Sclose(space);
}

static void wrong_datasets(void **state)
{
    fixture *f = *state;
    const hsize_t dims[2] = {10, 28}, huge[2] = {1ull << 40, 1ull << 20},
                  product[2] = {1ull << 33, 1ull << 33};
    const char *head = "/model/params/head/weight";
    readback r;
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    hid_t file = reopen(f);
    H5Ldelete(file, head, H5P_DEFAULT);
    add_dataset(file, head, H5T_IEEE_F64LE, 2, dims, H5P_DEFAULT);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "/model/params/head/weight: ");

    file = reopen(f);
    H5Ldelete(file, head, H5P_DEFAULT);
    add_dataset(file, head, H5T_IEEE_F32BE, 2, dims, H5P_DEFAULT);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "expected a little-endian");

    file = reopen(f);
    H5Ldelete(file, head, H5P_DEFAULT);
    H5Pset_chunk(plist, 2, dims);
    add_dataset(file, head, H5T_IEEE_F32LE, 2, dims, plist);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "expected a contiguous dataset");
    H5Pclose(plist);

    file = reopen(f);
    H5Ldelete(file, head, H5P_DEFAULT);
    add_dataset(file, head, H5T_IEEE_F32LE, 2, huge, H5P_DEFAULT);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "do not lie in the file");

    file = reopen(f);
    plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(plist, 2, dims);
    H5Ldelete(file, head, H5P_DEFAULT);
    add_dataset(file, head, H5T_IEEE_F32LE, 2, product, plist);
    H5Pclose(plist);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "do not fit a size");

    file = reopen(f);
    plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(plist, "/etc/passwd", 0, H5F_UNLIMITED);
    H5Ldelete(file, head, H5P_DEFAULT);
    add_dataset(file, head, H5T_IEEE_F32LE, 2, dims, plist);
    H5Pclose(plist);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "expected a contiguous dataset");
}

/* A dataset that is read through chunks: with each filter that HDF5 has built in, of chunks smaller
 * than it, written and not, and in a group that is only looked at. */
static void filtered_datasets(void **state)
{
    fixture *f = *state;
    const hsize_t dims[2] = {10, 28}, chunk[2] = {5, 14};
    const char *const places[] = {"/model/params/head/weight", "/history/loss"};
    const float values[280] = {1};
    for (int filter = 0; filter < 8; filter++) {
        readback r;
        const char *where = places[filter / 4];
        hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_chunk(plist, 2, chunk);
        if (filter % 4 == 0) assert_true(H5Pset_deflate(plist, 6) >= 0);
        if (filter % 4 == 1) assert_true(H5Pset_shuffle(plist) >= 0);
        if (filter % 4 == 2) assert_true(H5Pset_fletcher32(plist) >= 0);
        hid_t file = reopen(f);
        H5Ldelete(file, where, H5P_DEFAULT);
        add_dataset(file, where, H5T_IEEE_F32LE, 2, dims, plist);
        H5Pclose(plist);
        hid_t set = H5Dopen2(file, where, H5P_DEFAULT);
        if (filter % 4 < 3)
            assert_true(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >=
                        0);
        H5Dclose(set);
        H5Fclose(file);
        assert_error(read_back(f, f->path, &r), TR_FILE, "expected a contiguous dataset");
        assert_non_null(strstr(tr_last_error()->text, where));
        assert_error(tr_store_verify(f->path, NULL), TR_FILE, "expected a contiguous dataset");
    }
}

/* One that is another's values: of this file, or of another. */
static void virtual_datasets(void **state)
{
    fixture *f = *state;
    const hsize_t dims[2] = {10, 28};
    const char *const files[] = {".", "other.h5", "/etc/passwd"};
    const char *const head = "/model/params/head/weight";
    for (size_t i = 0; i < TR_COUNT(files); i++) {
        readback r;
        hid_t space = H5Screate_simple(2, dims, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
        assert_true(
            H5Pset_virtual(plist, space, files[i], "/optimizer/exp_avg/head/weight", space) >= 0);
        hid_t file = reopen(f);
        H5Ldelete(file, head, H5P_DEFAULT);
        add_dataset(file, head, H5T_IEEE_F32LE, 2, dims, plist);
        H5Pclose(plist);
        H5Sclose(space);
        H5Fclose(file);
        assert_error(read_back(f, f->path, &r), TR_FILE, "/model/params/head/weight: ");
        assert_error(tr_store_verify(f->path, NULL), TR_FILE, "expected a contiguous dataset");
    }
}

static void wrong_links(void **state)
{
    fixture *f = *state;
    const char *head = "/model/params/head/weight";
    readback r;
    hid_t file = reopen(f);
    H5Ldelete(file, head, H5P_DEFAULT);
    H5Lcreate_soft("/optimizer/exp_avg/head/weight", file, head, H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE,
                 "weight: expected a group or a dataset, found "
                 "a soft link");
    file = reopen(f);
    H5Ldelete(file, head, H5P_DEFAULT);
    H5Lcreate_external("other.h5", "/x", file, head, H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "found an external link");

    file = reopen(f);
    H5Ldelete(file, "/train", H5P_DEFAULT);
    H5Lcreate_soft("/", file, "/train", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "/train: ");

    file = reopen(f); /* a group inside itself, four times */
    static const char *const inside[] = {"/model/a", "/model/b", "/model/c", "/model/d"};
    for (size_t i = 0; i < TR_COUNT(inside); i++)
        H5Lcreate_hard(file, "/model", file, inside[i], H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "it contains itself");

    file = reopen(f);
    H5Ldelete(file, head, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(file, head, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "expected float32[10,28], found nothing");

    file = reopen(f);
    H5Ldelete(file, "/history/loss", H5P_DEFAULT);
    H5Lcreate_hard(file, "/history/eval_loss", file, "/history/loss", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE,
                 "/history/loss: expected float64[50] as the columns before it, found float64[5]");
}

static void changed_attributes(void **state)
{
    fixture *f = *state;
    readback r;
    hid_t file = reopen(f);
    uint64_t step = 201;
    hid_t train = H5Gopen2(file, "/train", H5P_DEFAULT);
    hid_t attr = H5Aopen(train, "step", H5P_DEFAULT);
    assert_true(H5Awrite(attr, H5T_NATIVE_UINT64, &step) >= 0);
    H5Aclose(attr);
    H5Gclose(train);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "/train: the attributes are damaged");

    file = reopen(f);
    assert_true(H5Adelete(file, "config") >= 0);
    H5Fclose(file);
    assert_error(read_back(f, f->path, &r), TR_FILE, "/: the attributes are damaged");

    file = reopen(f);
    hid_t set = H5Dopen2(file, "/history/loss", H5P_DEFAULT);
    assert_true(H5Adelete(set, "crc32c") >= 0);
    H5Dclose(set);
    H5Fclose(file);
    assert_error(tr_store_verify(f->path, NULL), TR_FILE, "/history/loss: it has no checksum");
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(long_every_flipped_byte, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(long_every_flipped_byte_packed, fixture_open,
                                        fixture_close),
        cmocka_unit_test_setup_teardown(changed_by_hand, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(every_length, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(names_the_array, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(not_a_run_file, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(foreign_hdf5, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(wrong_datasets, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(filtered_datasets, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(virtual_datasets, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(wrong_links, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(changed_attributes, fixture_open, fixture_close),
    };
    return cmocka_run_group_tests_name("store: damage", tests, NULL, NULL);
}
