/* IDX and NPY: what they hold arrives, and every way in which a file can be wrong is told. */
#include "helpers.h"
#include <fcntl.h>

static uint8_t file[1 << 16];

static void use(world *w, const char *inputs, const char *labels)
{
    w->c.data.train.inputs = scalar(w, 0, inputs);
    w->c.data.train.labels = (char *)labels;
}

/* 4 samples of 2 x 3, values 0, 1, ..., in the type of `code`, big endian. */
static size_t numbers(uint8_t code, uint8_t *to)
{
    size_t n = 0;
    for (int v = 0; v < 24; v++) {
        uint64_t bits = (uint64_t)v;
        float f = (float)v;
        double d = v;
        uint32_t b4;
        size_t size = code == 0x08 || code == 0x09 ? 1 : code == 0x0b ? 2 : code == 0x0e ? 8 : 4;
        memcpy(&b4, &f, 4);
        if (code == 0x0d) bits = b4;
        if (code == 0x0e) memcpy(&bits, &d, 8);
        for (size_t b = size; b-- > 0;) to[n++] = (uint8_t)(bits >> (8 * b));
    }
    return n;
}

static void write_labels(const world *w, const char *name, uint32_t count, const uint8_t *labels)
{
    uint8_t all[64];
    write_bytes(w, name, all, make_idx(all, 0x08, 1, &count, labels, count));
}

static void idx_types(void **state)
{
    (void)state;
    const uint8_t codes[] = {0x08, 0x09, 0x0b, 0x0c, 0x0d, 0x0e};
    const uint32_t dims[] = {4, 2, 3};
    for (int variant = 0; variant < 3; variant++) { /* held, streamed, packed */
        for (size_t t = 0; t < TR_COUNT(codes); t++) {
            world w;
            world_open(&w, 3, (int64_t[]){1, 2, 3}, 3);
            if (variant == 1) w.c.data.cache_mb = 0;
            uint8_t elems[256];
            size_t n = make_idx(file, codes[t], 3, dims, elems, numbers(codes[t], elems));
            if (variant == 2)
                write_gz(&w, "x.idx.gz", file, n);
            else
                write_bytes(&w, "x.idx.gz", file, n);
            write_labels(&w, "y-ubyte", 4, (uint8_t[]){0, 1, 2, 1});
            use(&w, "x.idx.gz", "y-ubyte");
            tr_dataset *d = opens(&w);
            assert_int_equal(tr_dataset_samples(d), 4);
            assert_int_equal(tr_dataset_held(d) > 0, variant != 1);
            for (uint64_t i = 0; i < 4; i++) {
                for (size_t e = 0; e < 6; e++)
                    assert_true(input_at(d, 0, i, e) == (double)(i * 6 + e));
                assert_true(target_at(d, i, 0) == "0121"[i] - (double)'0');
            }
            tr_dataset_close(d);
            world_close(&w);
        }
    }
}

static void idx_bad(void **state)
{
    (void)state;
    world w;
    world_open(&w, 3, (int64_t[]){1, 2, 3}, 3);
    uint8_t elems[24] = {0};
    const uint32_t dims[] = {4, 2, 3};
    use(&w, "x.idx", "y.idx");
    write_labels(&w, "y.idx", 4, (uint8_t[]){0, 1, 2, 1});
    fails(&w, TR_DATA, "x.idx", "No such file", NULL);

    size_t n = make_idx(file, 0x08, 3, dims, elems, 24);
    for (size_t cut = 0; cut < n; cut++) { /* at every byte */
        write_bytes(&w, "x.idx", file, cut);
        fails(&w, TR_DATA, "x.idx", NULL);
    }
    write_bytes(&w, "x.idx", file, n - 1);
    fails(&w, TR_DATA, "x.idx", "39 bytes, expected 40", "cut short", NULL);
    write_bytes(&w, "x.idx", file, n + 1);
    fails(&w, TR_DATA, "x.idx", "too long", NULL);

    file[2] = 0x0a;
    write_bytes(&w, "x.idx", file, n);
    fails(&w, TR_DATA, "byte 2", "0x0a", NULL);
    file[2] = 0x08;
    file[3] = 9;
    write_bytes(&w, "x.idx", file, n);
    fails(&w, TR_DATA, "byte 3", "9 dimensions", NULL);
    file[3] = 3;
    file[0] = 1;
    write_bytes(&w, "x.idx", file, n);
    fails(&w, TR_DATA, "not an IDX file", NULL);

    /* sizes that no file has, and that overflow */
    const uint32_t huge[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX};
    n = make_idx(file, 0x0e, 3, huge, elems, 24);
    write_bytes(&w, "x.idx", file, n);
    fails(&w, TR_DATA, "x.idx", "more bytes than any file", NULL);
    const uint32_t big[] = {1u << 30, 2, 3};
    n = make_idx(file, 0x08, 3, big, elems, 24);
    write_bytes(&w, "x.idx", file, n);
    fails(&w, TR_DATA, "cut short", NULL);
    const uint32_t zero[] = {0, 2, 3};
    n = make_idx(file, 0x08, 3, zero, elems, 0);
    write_bytes(&w, "x.idx", file, n);
    fails(&w, TR_DATA, "dimension 0 is 0", NULL);

    /* other shapes, other counts, a folder, no extension */
    const uint32_t other[] = {4, 3, 2};
    n = make_idx(file, 0x08, 3, other, elems, 24);
    write_bytes(&w, "x.idx", file, n);
    fails(&w, TR_DATA, "(3, 2)", "(1, 2, 3)", "input", NULL);
    n = make_idx(file, 0x08, 3, dims, elems, 24);
    write_bytes(&w, "x.idx", file, n);
    write_labels(&w, "y.idx", 3, (uint8_t[]){0, 1, 2});
    fails(&w, TR_DATA, "x.idx: has 4 samples, expected 3", "y.idx", NULL);
    assert_int_equal(mkdir(in_folder(&w, "f.idx"), 0700), 0);
    use(&w, "f.idx", "y.idx");
    fails(&w, TR_DATA, "f.idx: is a folder", NULL);
    use(&w, "x.dat", "y.idx");
    fails(&w, TR_CONFIG, "data.train.inputs", "x.dat", "format", NULL);
    use(&w, "x.idx", NULL);
    fails(&w, TR_CONFIG, "data.train.labels", NULL);
    assert_int_equal(mkfifo(in_folder(&w, "p.idx"), 0600), 0);
    use(&w, "p.idx", "y.idx");
    fails(&w, TR_DATA, "p.idx: is a pipe, expected a file", NULL);
    world_close(&w);
}

static void labels_bad(void **state)
{
    (void)state;
    world w;
    world_open(&w, 1, (int64_t[]){6}, 3);
    uint8_t elems[24] = {0};
    const uint32_t dims[] = {4, 6}, four = 4;
    write_bytes(&w, "x.idx", file, make_idx(file, 0x08, 2, dims, elems, 24));
    use(&w, "x.idx", "y.idx");
    for (int held = 0; held < 2; held++) {
        w.c.data.cache_mb = held;
        write_labels(&w, "y.idx", 4, (uint8_t[]){0, 1, 3, 1});
        fails(&w, TR_DATA, "y.idx", "sample 2", "byte 10", "label 3", "0 to 2", NULL);
    }
    write_bytes(&w, "y.idx", file, make_idx(file, 0x09, 1, &four, (int8_t[]){0, 1, 2, -1}, 4));
    fails(&w, TR_DATA, "sample 3", "label -1", NULL);
    const uint8_t half[] = {0, 0, 0, 0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}; /* 0, 0.5, 0, 0 */
    write_bytes(&w, "y.idx", file, make_idx(file, 0x0d, 1, &four, half, 16));
    fails(&w, TR_DATA, "sample 1", "label 0.5", NULL);
    const uint8_t nan4[] = {0, 0, 0, 0, 0x7f, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    write_bytes(&w, "y.idx", file, make_idx(file, 0x0d, 1, &four, nan4, 16));
    fails(&w, TR_DATA, "sample 1", "label nan", NULL);
    /* one a sample, also as a column; but not two */
    const uint32_t column[] = {4, 1}, pair[] = {4, 2};
    write_bytes(&w, "y.idx", file, make_idx(file, 0x08, 2, column, (uint8_t[]){0, 1, 2, 2}, 4));
    tr_dataset *d = opens(&w);
    assert_true(target_at(d, 3, 0) == 2);
    tr_dataset_close(d);
    write_bytes(&w, "y.idx", file, make_idx(file, 0x08, 2, pair, elems, 8));
    fails(&w, TR_DATA, "a label's shape is (2)", NULL);

    /* targets of a regression: (N) for (N, 1); finite; with bce 0 to 1 */
    world_targets(&w, 1, (int64_t[]){1});
    const uint8_t some[] = {0,    0,    0, 0, 0x3f, 0, 0, 0,
                            0x3f, 0x80, 0, 0, 0x40, 0, 0, 0}; /* 0 .5 1 2 */
    write_bytes(&w, "y.idx", file, make_idx(file, 0x0d, 1, &four, some, 16));
    d = opens(&w);
    assert_true(target_at(d, 1, 0) == 0.5 && target_at(d, 3, 0) == 2.0);
    tr_dataset_close(d);
    w.c.model.loss.kind.which = TR_LOSS_BCE;
    fails(&w, TR_DATA, "sample 3", "target 2", "0 to 1", NULL);
    w.c.model.loss.kind.which = TR_LOSS_MSE;
    write_bytes(&w, "y.idx", file, make_idx(file, 0x0d, 1, &four, nan4, 16));
    fails(&w, TR_DATA, "sample 1", "target nan", "finite", NULL);
    world_targets(&w, 1, (int64_t[]){2});
    fails(&w, TR_DATA, "a target's shape is ()", "(2)", NULL);
    world_close(&w);
}

static void gz_bad(void **state)
{
    (void)state;
    world w;
    world_open(&w, 1, (int64_t[]){6}, 3);
    uint8_t elems[24], packed[512];
    for (int i = 0; i < 24; i++) elems[i] = (uint8_t)(i * 37);
    const uint32_t dims[] = {4, 6};
    write_labels(&w, "y.idx", 4, (uint8_t[]){0, 1, 2, 1});
    use(&w, "x.gz", "y.idx");
    size_t n = make_idx(file, 0x08, 2, dims, elems, 24);
    write_gz(&w, "x.gz", file, n);
    FILE *f = fopen(in_folder(&w, "x.gz"), "rb");
    size_t m = fread(packed, 1, sizeof packed, f);
    fclose(f);
    for (size_t cut = 2; cut < m; cut++) {
        write_bytes(&w, "x.gz", packed, cut);
        fails(&w, TR_DATA, "x.gz", NULL);
    }
    packed[m - 6] ^= 1; /* gzip's checksum */
    write_bytes(&w, "x.gz", packed, m);
    fails(&w, TR_DATA, "damaged or cut", NULL);
    write_gz(&w, "x.gz", file, n - 1);
    fails(&w, TR_DATA, "cut short", NULL);
    file[n] = 0;
    write_gz(&w, "x.gz", file, n + 1);
    fails(&w, TR_DATA, "too long", NULL);
    const uint32_t bomb[] = {1u << 30, 6};
    n = make_idx(file, 0x08, 2, bomb, elems, 24);
    write_gz(&w, "x.gz", file, n);
    fails(&w, TR_DATA, "more than", "gzip can hold", NULL);
    /* what does not fit the cache cannot be streamed */
    memset(file, 0, sizeof file);
    const uint32_t wide[] = {4, 6};
    n = make_idx(file, 0x08, 2, wide, elems, 24);
    write_gz(&w, "x.gz", file, n);
    w.c.data.cache_mb = 0;
    fails(&w, TR_DATA, "x.gz", "data.cache_mb", NULL);
    world_close(&w);
}

static void npy_reads(void **state)
{
    (void)state;
    static const struct {
        int version;
        const char *dict;
    } cases[] = {
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 6), }   \n"},
        {2, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 6)}\n"},
        {3, "{\"shape\": (4,6,), \"fortran_order\": False, \"descr\": \"<f4\"}"},
        {1, "{'descr': '>f4', 'fortran_order': False, 'shape': (4, 6), }"},
        {1, "{'descr': '<i8', 'fortran_order': False, 'shape': (4, 6), }"},
        {1, "{'descr': '>i2', 'fortran_order': False, 'shape': (4, 6), }"},
        {1, "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 6), }"},
        {1, "{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2, 3), }"},
    };
    for (size_t t = 0; t < TR_COUNT(cases); t++) {
        const char *code = strstr(cases[t].dict, "descr") + 9; /* past the quote */
        code = strpbrk(code, "<>|");
        size_t size = (size_t)(code[2] - '0');
        uint8_t elems[24 * 8];
        for (int v = 0; v < 24; v++) {
            float f4 = (float)v;
            double f8 = v;
            int64_t i8 = v;
            uint8_t *to = elems + (size_t)v * size, swap[8];
            if (code[1] == 'f')
                memcpy(to, size == 4 ? (void *)&f4 : (void *)&f8, size);
            else
                memcpy(to, &i8, size); /* the tests run on little endian */
            if (code[0] == '>') {
                memcpy(swap, to, size);
                for (size_t b = 0; b < size; b++) to[b] = swap[size - 1 - b];
            }
        }
        for (int cache = 0; cache < 2; cache++) {
            world w;
            world_open(&w, 1, (int64_t[]){6}, 24);
            w.c.data.cache_mb = cache;
            write_bytes(&w, "x.npy", file,
                        make_npy(file, cases[t].version, cases[t].dict, elems, 24 * size));
            write_bytes(&w, "y.npy", file,
                        make_npy(file, 1,
                                 "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }",
                                 (int64_t[]){3, 2, 1, 23}, 32));
            w.c.data.train.path = "x.npy"; /* stands for inputs */
            w.c.data.train.labels = "y.npy";
            tr_dataset *d = opens(&w);
            for (uint64_t i = 0; i < 4; i++)
                for (size_t e = 0; e < 6; e++)
                    assert_true(input_at(d, 0, i, e) == (double)(i * 6 + e));
            assert_true(target_at(d, 3, 0) == 23);
            tr_dataset_close(d);
            world_close(&w);
        }
    }
}

static void npy_bad(void **state)
{
    (void)state;
    static const struct {
        const char *dict, *says;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (4, 6), }", "Fortran order"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (4, 6), }", "element type"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }", "element type"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (4, 6), }", "element type"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "at least one dimension"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, -6), }", "a dimension"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4 6), }", "','"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 99999999999999999999), }",
         "a dimension"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 4), }",
         "more bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3, 4, 5, 6), }", "at most 5"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 6), }", "dimension 0 is 0"},
        {"{'descr': '<f4', 'fortran_order': False}", "lacks shape"},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': (4, 6)}", "each key once"},
        {"{'descr': '<f4', 'colour': 'red', 'shape': (4, 6)}", "descr, fortran_order or shape"},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (4, 6)}", "True or False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 6)} x", "nothing after"},
        {"['descr']", "a dict"},
        {"", "a dict"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 7), }", "cut short"},
    };
    world w;
    world_open(&w, 1, (int64_t[]){6}, 3);
    write_labels(&w, "y.idx", 4, (uint8_t[]){0, 1, 2, 1});
    use(&w, "x.npy", "y.idx");
    float elems[24] = {0};
    for (size_t t = 0; t < TR_COUNT(cases); t++) {
        write_bytes(&w, "x.npy", file, make_npy(file, 1, cases[t].dict, elems, sizeof elems));
        fails(&w, TR_DATA, "x.npy", cases[t].says, NULL);
    }
    const char *good = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 6), }";
    size_t n = make_npy(file, 1, good, elems, sizeof elems);
    for (size_t cut = 0; cut < n; cut++) {
        write_bytes(&w, "x.npy", file, cut);
        fails(&w, TR_DATA, "x.npy", cut > 0 ? "cut short" : NULL, NULL);
    }
    write_bytes(&w, "x.npy", file, 10);
    fails(&w, TR_DATA, "x.npy: has 10 bytes, expected 69 for its header alone: it is cut short",
          NULL);
    file[n] = 0;
    write_bytes(&w, "x.npy", file, n + 1);
    fails(&w, TR_DATA, "too long", NULL);
    file[6] = 4;
    write_bytes(&w, "x.npy", file, n);
    fails(&w, TR_DATA, "version 4.0", NULL);
    file[6] = 2;
    memset(file + 8, 0xff, 4); /* a header of 4 GB */
    write_bytes(&w, "x.npy", file, n);
    fails(&w, TR_DATA, "a header of 4294967295 bytes", NULL);
    /* cut within the four bytes of that length */
    write_bytes(&w, "x.npy", file, 11);
    fails(&w, TR_DATA, "x.npy: has 11 bytes, expected 12 at least", "2.0", "cut short", NULL);
    (void)make_npy(file, 3, good, elems, sizeof elems);
    write_bytes(&w, "x.npy", file, 10);
    fails(&w, TR_DATA, "x.npy: has 10 bytes, expected 12 at least", "3.0", "cut short", NULL);
    write_bytes(&w, "x.npy", file, 12);
    fails(&w, TR_DATA, "x.npy: has 12 bytes, expected 71 for its header alone: it is cut short",
          NULL);
    world_close(&w);
}

static char *described(world *w)
{
    char *text = NULL;
    size_t n;
    tr_dataset *d = opens(w);
    FILE *to = open_memstream(&text, &n);
    assert_int_equal(tr_dataset_describe(d, "t", 7, to), TR_OK);
    fclose(to);
    tr_dataset_close(d);
    return text;
}

/* What was written at `offset` of x.idx changes the text, or it is 0 again and does not. */
static void changed(world *w, off_t offset, const char *before)
{
    for (int on = 1; on >= 0; on--) {
        const uint8_t byte = (uint8_t)on;
        const int fd = open(in_folder(w, "x.idx"), O_WRONLY);
        assert_true(pwrite(fd, &byte, 1, offset) == 1 && close(fd) == 0);
        char *text = described(w);
        assert_int_equal(strcmp(text, before) != 0, on);
        free(text);
    }
}

/* Held or streamed, all of a small array counts; of a large one (here a file of holes) its ends and
 * what is drawn by the seed. */
static void describes(void **state)
{
    (void)state;
    const uint32_t dims[] = {20000, 64, 64};
    const off_t end = 16 + (off_t)20000 * 4096;
    static uint8_t labels[20000 + 8];
    for (int held = 0; held < 2; held++) {
        world w;
        world_open(&w, 3, (int64_t[]){1, 64, 64}, 3);
        w.c.data.cache_mb = held;
        write_bytes(&w, "x.idx", file,
                    make_idx(file, 0x08, 3, (uint32_t[]){3, 64, 64}, labels, 12288));
        write_labels(&w, "y.idx", 3, (uint8_t[]){0, 1, 2});
        use(&w, "x.idx", "y.idx");
        char *text = described(&w);
        assert_non_null(strstr(text, "t: inputs: 3 samples, uint8 (64, 64), checksum "));
        assert_non_null(strstr(text, "\nt: labels: 3 samples, uint8 (), checksum "));
        changed(&w, 16 + 5000, text);
        free(text);

        write_bytes(&w, "x.idx", file, make_idx(file, 0x08, 3, dims, labels, 0));
        assert_int_equal(truncate(in_folder(&w, "x.idx"), end), 0);
        memset(labels, 0, sizeof labels);
        write_bytes(&w, "y.idx", labels, make_idx(labels, 0x08, 1, dims, labels + 8, 20000));
        text = described(&w);
        changed(&w, 16, text);
        changed(&w, end - 1, text);
        /* a drawn one: neither end */
        uint64_t k = 0, drawn = 0;
        while (drawn == 0 || drawn == 19999) drawn = tr_permute(7, 0, 20000, k++);
        changed(&w, 16 + (off_t)drawn * 4096 + 2000, text);
        free(text);
        memset(labels, 0, sizeof labels);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_types), cmocka_unit_test(idx_bad),   cmocka_unit_test(labels_bad),
        cmocka_unit_test(gz_bad),    cmocka_unit_test(npy_reads), cmocka_unit_test(npy_bad),
        cmocka_unit_test(describes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
