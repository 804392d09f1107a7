/* Values: HDF5 datasets of every layout and type, CIFAR batches, files that change under a reader,
 * named inputs, and memory that runs out at any moment. */
#include "hdf5_files.h"

static void hdf5_layouts(void **state)
{
    (void)state;
    const hid_t types[] = {H5T_IEEE_F32LE, H5T_IEEE_F32BE, H5T_IEEE_F64LE, H5T_IEEE_F64BE,
                           H5T_STD_U8LE,   H5T_STD_I8LE,   H5T_STD_I16BE,  H5T_STD_U16LE,
                           H5T_STD_I32LE,  H5T_STD_U32BE,  H5T_STD_I64LE,  H5T_STD_I64BE,
                           H5T_STD_U64LE};
    float x[60];
    int32_t y[10];
    fill(x, y);
    for (size_t t = 0; t < TR_COUNT(types); t++) {
        world w;
        world_open(&w, 2, (int64_t[]){2, 3}, 3);
        write_h5(&w, "a.h5", "flat", types[t], H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
        write_h5(&w, "a.h5", "chunks", types[t], H5T_NATIVE_FLOAT, 3, x_dims, 4, 0, x);
        write_h5(&w, "a.h5", "packed", types[t], H5T_NATIVE_FLOAT, 3, x_dims, 3, 6, x);
        write_h5(&w, "a.h5", "y", types[t], H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
        const char *const names[] = {"flat", "chunks", "packed"};
        for (int k = 0; k < 6; k++) {
            w.c.data.cache_mb = k % 2;
            use(&w, "a.h5", names[k / 2], "y");
            tr_dataset *d = opens(&w);
            assert_int_equal(tr_dataset_samples(d), 10);
            const size_t cache = k == 2 || k == 4 ? (size_t)4 << 20 : 0; /* of streamed chunks */
            if (k % 2)
                assert_true(tr_dataset_held(d) > 0 && tr_dataset_held(d) < 1000);
            else
                assert_int_equal(tr_dataset_held(d), cache);
            assert_true(tr_mem_held(TR_MEM_DATA) >= tr_dataset_held(d));
            assert_true(tr_mem_held(TR_MEM_DATA) < cache + 4096);
            for (uint64_t i = 0; i < 10; i++) {
                for (size_t e = 0; e < 6; e++)
                    assert_true(input_at(d, 0, i, e) == (double)(i * 6 + e));
                assert_true(target_at(d, i, 0) == (double)(i % 3));
            }
            tr_dataset_close(d);
        }
        /* the first so many, and more than there are */
        w.c.data.train.samples = 7;
        tr_dataset *d = opens(&w);
        assert_int_equal(tr_dataset_samples(d), 7);
        tr_dataset_close(d);
        w.c.data.train.samples = 11;
        fails(&w, TR_CONFIG, "test.yaml:1:1: data.train.samples: 11, but ", "has 10 samples", NULL);
        world_close(&w);
    }
}

/* A dataset through a filter that HDF5 has (scaleoffset), or may be taught (lzf, h5py's): not read,
 * and said so before a value is missed. */
static void put_filtered(const world *w, const char *name, H5Z_filter_t filter)
{
    const hsize_t chunk[] = {5, 2, 3};
    const hid_t f = H5Fopen(in_folder(w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(3, x_dims, NULL), p = H5Pcreate(H5P_DATASET_CREATE);
    assert_true(H5Pset_chunk(p, 3, chunk) >= 0);
    if (filter == H5Z_FILTER_SCALEOFFSET)
        assert_true(H5Pset_scaleoffset(p, H5Z_SO_INT, 0) >= 0);
    else
        assert_true(H5Pset_filter(p, filter, H5Z_FLAG_OPTIONAL, 0, NULL) >= 0);
    const hid_t d = H5Dcreate2(f, name, H5T_STD_I32LE, space, H5P_DEFAULT, p, H5P_DEFAULT);
    int32_t v[60] = {0};
    assert_true(d >= 0);
    assert_true(H5Dwrite(d, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0);
    H5Dclose(d);
    H5Pclose(p);
    H5Sclose(space);
    assert_true(H5Fclose(f) >= 0);
}

static void hdf5_bad(void **state)
{
    (void)state;
    world w;
    float x[60];
    int32_t y[10];
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    use(&w, "a.h5", "images", "y");
    fails(&w, TR_DATA, "a.h5", "No such file", NULL);
    write_bytes(&w, "a.h5", "not this", 8);
    fails(&w, TR_DATA, "a.h5", "not an HDF5 file", NULL);
    assert_int_equal(unlink(in_folder(&w, "a.h5")), 0);
    write_h5(&w, "a.h5", "images", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
    use(&w, "a.h5", "image", "y");
    fails(&w, TR_DATA, "no dataset \"image\"", "did you mean \"images\"", NULL);
    use(&w, "a.h5", "zzzzzzzz", "y");
    fails(&w, TR_DATA, "no dataset \"zzzzzzzz\"", "images, y", NULL);
    use(&w, "a.h5", NULL, "y");
    fails(&w, TR_CONFIG, "data.train.inputs", NULL);
    use(&w, "a.h5", "images", NULL);
    fails(&w, TR_CONFIG, "data.train.labels", NULL);
    w.c.data.train.format = TR_FORMAT_HDF5;
    use(&w, NULL, "images", "y");
    fails(&w, TR_CONFIG, "data.train.path", NULL);

    /* what was never written, in whole or in part, is not read as zeros */
    write_h5(&w, "a.h5", "empty", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, NULL);
    use(&w, "a.h5", "empty", "y");
    fails(&w, TR_DATA, "dataset empty", "never written", NULL);
    write_h5(&w, "a.h5", "gaps", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 2, 1, NULL);
    use(&w, "a.h5", "gaps", "y");
    fails(&w, TR_DATA, "dataset gaps", "0 chunks are stored, expected 5", NULL);
    hid_t s = H5Tcopy(H5T_C_S1);
    H5Tset_size(s, 4);
    write_h5(&w, "a.h5", "text", s, s, 1, y_dims, 0, 0, "0000111122223333444455556666777788889999");
    H5Tclose(s);
    use(&w, "a.h5", "text", "y");
    fails(&w, TR_DATA, "dataset text", "element type", NULL);
    const hsize_t zero[] = {0, 2, 3}, six[] = {1, 1, 1, 1, 2, 3}, nine[] = {9};
    write_h5(&w, "a.h5", "none", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, zero, 0, 0, NULL);
    use(&w, "a.h5", "none", "y");
    fails(&w, TR_DATA, "dataset none", "dimension 0 is 0", NULL);
    write_h5(&w, "a.h5", "deep", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 6, six, 0, 0, x);
    use(&w, "a.h5", "deep", "y");
    fails(&w, TR_DATA, "dataset deep", "6 dimensions", NULL);
    write_h5(&w, "a.h5", "y9", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, nine, 0, 0, y);
    use(&w, "a.h5", "images", "y9");
    fails(&w, TR_DATA, "10 samples, expected 9", "dataset y9", NULL);
    static const struct {
        const char *name, *said;
        H5Z_filter_t id;
    } filters[] = {{"lzf", "dataset lzf: filter 32000 is not read", 32000},
                   {"scaled", "dataset scaled: filter 6 is not read", H5Z_FILTER_SCALEOFFSET}};
    for (size_t i = 0; i < TR_COUNT(filters); i++) {
        put_filtered(&w, filters[i].name, filters[i].id);
        use(&w, "a.h5", filters[i].name, "y");
        fails(&w, TR_DATA, "a.h5", filters[i].said, "h5repack -f GZIP=4", NULL);
    }
    y[7] = 5;
    write_h5(&w, "a.h5", "bad", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 4, 1, y);
    use(&w, "a.h5", "images", "bad");
    fails(&w, TR_DATA, "dataset bad: sample 7", "label 5", "0 to 2", NULL);

    /* cut anywhere */
    struct stat info;
    assert_int_equal(stat(in_folder(&w, "a.h5"), &info), 0);
    use(&w, "a.h5", "images", "y");
    for (off_t cut = info.st_size - 1; cut > 0; cut -= 1 + cut / 40) {
        assert_int_equal(truncate(in_folder(&w, "a.h5"), cut), 0);
        fails(&w, TR_DATA, "a.h5", NULL);
    }
    world_close(&w);
}

/* Streamed chunks count with their cache; a chunk beyond the limit is refused. */
static void hdf5_chunks(void **state)
{
    (void)state;
    world w;
    int32_t y[10] = {0};
    const hsize_t wide[] = {10, 1 << 20}, chunk[] = {65, 1 << 20};
    const hsize_t unlimited[] = {H5S_UNLIMITED, 1 << 20};
    world_open(&w, 1, (int64_t[]){1 << 20}, 3);
    w.c.data.cache_mb = 0;
    write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
    float *x = calloc(10 << 20, sizeof *x);
    assert_non_null(x);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 2, wide, 2, 1, x);
    free(x);
    use(&w, "a.h5", "x", "y");
    tr_dataset *d = opens(&w);
    /* HDF5's, and as it is stored */
    assert_in_range(tr_dataset_held(d), 16 << 20, (16 << 20) + 8192);
    assert_int_equal(tr_mem_held(TR_MEM_DATA), tr_dataset_held(d));
    tr_dataset_close(d);
    assert_int_equal(tr_mem_held(TR_MEM_DATA), 0);

    hid_t f = H5Fopen(in_folder(&w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t space = H5Screate_simple(2, wide, unlimited), p = H5Pcreate(H5P_DATASET_CREATE);
    assert_true(H5Pset_chunk(p, 2, chunk) >= 0);
    hid_t set = H5Dcreate2(f, "huge", H5T_IEEE_F32LE, space, H5P_DEFAULT, p, H5P_DEFAULT);
    assert_true(set >= 0);
    H5Dclose(set);
    H5Pclose(p);
    H5Sclose(space);
    H5Fclose(f);
    use(&w, "a.h5", "huge", "y");
    fails(&w, TR_DATA, "dataset huge", "a chunk of 272629760 bytes", "at most 268435456", NULL);
    world_close(&w);
}

/* The chunk of samples 4 and 5, of 48 bytes. With deflate: 12 zeros; without, its entry in the tree
 * of chunks (bytes, filters that are left out, place) says 11 bytes. */
/* A type that was seen, but that HDF5 does not read as: refused, in the place of float64, which is
 * as wide as none. */
static void hdf5_unread_type(void **state)
{
    (void)state;
    world w;
    float v[8] = {0};
    tr_data_file file = {.fd = -1};
    tr_hdf5_sight sight;
    tr_array *a = NULL;
    world_open(&w, 1, (int64_t[]){2}, 2);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 2, (hsize_t[]){4, 2}, 2, 0, v);
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    assert_int_equal(
        tr_hdf5_look(&file, (const char *[]){"x"}, 1, TR_HDF5_LOOK_SECONDS, &sight, NULL), TR_OK);
    sight.elem = TR_ELEM_F16;
    assert_int_equal(tr_hdf5_seen_open(&file, "a.h5", "x", &sight, &a), TR_UNSUPPORTED);
    assert_non_null(strstr(tr_last_error()->text, "a.h5: dataset x: elements of type float16"));
    assert_null(a);
    world_close(&w);
}

static void shorten_chunk(const char *path, bool deflate)
{
    static const uint8_t few[] = {0x78, 0x9c, 0x63, 0x60, 0x40, 0, 0, 0, 0x0c, 0, 1};
    static const uint8_t entry[4 + 4 + 4 * 8] = {48, [8] = 4};
    static uint8_t bytes[16384];
    const hsize_t at[] = {4, 0, 0};
    if (deflate) {
        hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT), set = H5Dopen2(f, "x", H5P_DEFAULT);
        assert_true(H5Dwrite_chunk(set, H5P_DEFAULT, 0, at, sizeof few, few) >= 0);
        H5Dclose(set);
        H5Fclose(f);
        return;
    }
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    const uint8_t *found = memmem(bytes, n, entry, sizeof entry);
    assert_non_null(found);
    assert_int_equal(fseek(file, found - bytes, SEEK_SET), 0);
    fputc(sizeof few, file);
    fclose(file);
}

/* A chunk that unpacks to less than a chunk, or is less, behind the one that the look tries: HDF5
 * 1.10 would read on past its end. */
static void hdf5_short_chunk(void **state)
{
    (void)state;
    world w;
    float x[60], got[6];
    int32_t y[10];
    tr_array *a;
    const void *raw;
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    for (unsigned deflate = 0; deflate <= 6; deflate += 6) {
        const char *name = deflate ? "a.h5" : "b.h5";
        write_h5(&w, name, "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 2, deflate, x);
        shorten_chunk(in_folder(&w, name), deflate > 0);
        assert_int_equal(
            tr_hdf5_arrays_open(in_folder(&w, name), (const char *[]){"x"}, 1, &a, NULL), TR_OK);
        for (uint64_t i = 0; i < 10; i++) {
            const tr_status st = tr_array_at(a, i, got, &raw);
            assert_int_equal(st, i == 4 || i == 5 ? TR_DATA : TR_OK);
            if (st == TR_OK) assert_memory_equal(raw, x + 6 * i, sizeof got);
        }
        assert_int_equal(tr_array_at(a, 4, got, &raw), TR_DATA);
        assert_non_null(strstr(tr_last_error()->text, "the chunk of sample 4 is damaged"));
        tr_array_close(a);
    }
    world_close(&w);
}

static void changes(void **state)
{
    (void)state;
    float x[60];
    int32_t y[10];
    fill(x, y);
    for (int chunked = 0; chunked < 2; chunked++) {
        world w;
        char scratch[64];
        const void *raw;
        world_open(&w, 2, (int64_t[]){2, 3}, 3);
        w.c.data.cache_mb = 0;
        write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, chunked ? 2 : 0, 0,
                 x);
        write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
        use(&w, "a.h5", "x", "y");
        tr_dataset *d = opens(&w);
        assert_int_equal(tr_array_at(d->inputs[0], 9, scratch, &raw), TR_OK);
        /* the same size, another content: told by its time, which is set here and not waited for */
        struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
        assert_int_equal(utimensat(AT_FDCWD, in_folder(&w, "a.h5"), times, 0), 0);
        assert_int_equal(tr_array_at(d->inputs[0], 9, scratch, &raw), TR_DATA);
        assert_non_null(strstr(tr_last_error()->text, "changed while in use"));
        assert_int_equal(truncate(in_folder(&w, "a.h5"), 100), 0);
        assert_int_equal(tr_array_at(d->inputs[0], 9, scratch, &raw), TR_DATA);
        assert_non_null(strstr(tr_last_error()->text, "a.h5"));
        tr_dataset_close(d);
        world_close(&w);
    }
}

static void cifar(void **state)
{
    (void)state;
    static uint8_t file[5 * 3074];
    for (int hundred = 0; hundred < 2; hundred++) {
        for (int cache = 0; cache < 2; cache++) {
            world w;
            world_open(&w, 3, (int64_t[]){3, 32, 32}, hundred ? 100 : 10);
            w.c.data.cache_mb = cache;
            size_t head = 1 + (size_t)hundred, record = 3072 + head;
            for (size_t i = 0; i < 5; i++) {
                file[i * record] = (uint8_t)i;
                if (hundred) file[i * record + 1] = (uint8_t)(90 + i);
                for (size_t e = 0; e < 3072; e++)
                    file[i * record + head + e] = (uint8_t)(i * 7 + e);
            }
            write_bytes(&w, "1.bin", file, 2 * record);
            write_bytes(&w, "2.bin", file + 2 * record, 3 * record);
            char both[128];
            snprintf(both, sizeof both, "1.bin, 2.bin");
            use(&w, both, NULL, NULL);
            w.c.data.train.format = cache     ? TR_FORMAT_AUTO
                                    : hundred ? TR_FORMAT_CIFAR100
                                              : TR_FORMAT_CIFAR10;
            tr_dataset *d = opens(&w);
            assert_int_equal(tr_dataset_samples(d), 5);
            for (uint64_t i = 0; i < 5; i++) {
                for (size_t e = 0; e < 3072; e += 61)
                    assert_true(input_at(d, 0, i, e) == (double)(uint8_t)(i * 7 + e));
                assert_true(target_at(d, i, 0) == (double)i + (hundred ? 90 : 0));
            }
            tr_dataset_close(d);
            w.c.data.train.labels = "coarse";
            if (hundred) {
                d = opens(&w);
                assert_true(target_at(d, 4, 0) == 4);
                tr_dataset_close(d);
            } else {
                fails(&w, TR_CONFIG, "data.train.labels", NULL);
            }
            use(&w, both, NULL, NULL);
            write_bytes(&w, "2.bin", file + 2 * record, 3 * record - 1);
            fails(&w, TR_DATA, "2.bin", "multiple of", NULL);
            write_bytes(&w, "2.bin", file, 0);
            fails(&w, TR_DATA, "2.bin", "multiple of", NULL);
            file[record] = 200;
            file[record + head - 1] = 200;
            write_bytes(&w, "2.bin", file, 2 * record);
            fails(&w, TR_DATA, "2.bin: sample 3 (byte", "label 200", NULL);
            use(&w, "1.bin,,2.bin", NULL, NULL);
            fails(&w, TR_CONFIG, "data.train.path", "between commas", NULL);
            world_close(&w);
        }
    }
    world w;
    world_open(&w, 3, (int64_t[]){3, 32, 32}, 10);
    write_bytes(&w, "x.bin", file, 3000);
    use(&w, "x.bin", NULL, NULL);
    fails(&w, TR_DATA, "x.bin", "3073", "3074", NULL);
    use(&w, "x.bin", "pixels", NULL);
    fails(&w, TR_CONFIG, "data.train.inputs", NULL);
    world_close(&w);
}

/* Two inputs by name, and the ways to get the names wrong. */
static void named(void **state)
{
    (void)state;
    world w;
    float x[60];
    int32_t y[10];
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    strcpy(w.inputs[0].name, "image");
    strcpy(w.inputs[1].name, "meta");
    w.inputs[1].ndim = 1;
    w.inputs[1].dims[0] = 6;
    w.m.ninputs = 2;
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    for (int v = 0; v < 60; v++) x[v] = -x[v];
    write_h5(&w, "a.h5", "m", H5T_IEEE_F64LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
    use(&w, "a.h5", "x", "y");
    fails(&w, TR_CONFIG, "test.yaml:3:7", "a map with a text for each", NULL);

    tr_node map = {.kind = TR_NODE_MAP, .source = "test.yaml", .line = 2, .column = 5, .count = 2};
    map.keys = w.keys;
    map.values = w.values;
    w.keys[0] = scalar(&w, 0, "meta");
    w.values[0] = scalar(&w, 1, "m");
    w.keys[1] = scalar(&w, 2, "image");
    w.values[1] = scalar(&w, 3, "x");
    w.c.data.train.inputs = &map;
    tr_dataset *d = opens(&w);
    assert_true(input_at(d, 0, 9, 5) == 59 && input_at(d, 1, 9, 5) == -59);
    tr_dataset_close(d);
    w.nodes[2].text = "imagee";
    fails(&w, TR_CONFIG, "test.yaml:3:7", "no input \"imagee\"", "did you mean \"image\"", NULL);
    map.count = 1;
    fails(&w, TR_CONFIG, "the model's input \"image\" is missing", NULL);
    map.kind = TR_NODE_LIST;
    fails(&w, TR_CONFIG, "found a list of 1", NULL);
    w.inputs[1].dims[0] = 7;
    map.kind = TR_NODE_MAP;
    map.count = 2;
    w.nodes[2].text = "image";
    fails(&w, TR_DATA, "dataset m", "(2, 3), expected (7)", "\"meta\"", NULL);
    world_close(&w);
}

static void out_of_memory(void **state)
{
    (void)state;
    world w;
    float x[60];
    int32_t y[10];
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 2, 1, x);
    write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
    use(&w, "a.h5", "x", "y");
    usleep(50000);
    for (int known = 0; known < 2; known++) { /* with a look, and without one */
        const char *path = in_folder(&w, "a.h5");
        tr_dataset_close(opens(&w));
        if (!known) assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
        uint64_t before = tr_mem_calls();
        tr_dataset_close(opens(&w));
        uint64_t calls = tr_mem_calls() - before;
        assert_true(calls > 5);
        for (uint64_t n = 1; n <= calls; n++) {
            if (!known) assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
            tr_mem_fail_at(n);
            fails(&w, TR_MEMORY, NULL);
        }
        tr_mem_fail_at(0);
        usleep(50000);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hdf5_layouts),
        cmocka_unit_test(hdf5_bad),
        cmocka_unit_test(changes),
        cmocka_unit_test(cifar),
        cmocka_unit_test(named),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(hdf5_chunks),
        cmocka_unit_test(hdf5_short_chunk),
        cmocka_unit_test(hdf5_unread_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
