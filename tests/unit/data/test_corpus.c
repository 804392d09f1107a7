/* Every file of the fuzzers' corpora, and valid ones with a byte changed at places all over: each
 * opens and reads, or is refused with a text; none breaks the process. */
#include "helpers.h"

#include "tests/fuzz/corpus.h"
#define LLVMFuzzerTestOneInput fuzz_csv
#include "../../fuzz/fuzz_csv.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_image
#include "../../fuzz/fuzz_image.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_npz
#include "../../fuzz/fuzz_npzdata.c"
#undef LLVMFuzzerTestOneInput

#define LLVMFuzzerTestOneInput fuzz_tokens
#include "../../fuzz/fuzz_tokens.c"
#undef LLVMFuzzerTestOneInput

#include "runtime/data/image.h"

/* Opens as everything it could be; counts what was accepted. */
static int try_file(const char *path)
{
    tr_array *a[6] = {NULL};
    char *paths[1] = {(char *)path};
    bool hundred;
    int good = 0;
    static char scratch[1 << 20];
    const void *raw;
    const struct {
        tr_status st;
    } results[] = {{tr_idx_open(path, 1 << 20, &a[0])},
                   {tr_npy_open(path, &a[1])},
                   {tr_hdf5_arrays_open(path, (const char *[]){"x"}, 1, &a[2], NULL)},
                   {tr_hdf5_arrays_open(path, (const char *[]){"y"}, 1, &a[3], NULL)},
                   {tr_cifar_kind(path, &hundred)}};
    for (size_t i = 0; i < TR_COUNT(results); i++)
        assert_true(results[i].st == TR_OK || results[i].st == TR_DATA);
    if (results[4].st == TR_OK)
        assert_int_equal(tr_cifar_open(paths, 1, hundred, NULL, &a[4], &a[5]), TR_OK);
    for (size_t i = 0; i < TR_COUNT(a); i++) {
        if (!a[i]) continue;
        good++;
        tr_status st = TR_DATA;
        if (a[i]->nbytes <= sizeof scratch)
            st = tr_array_at(a[i], a[i]->samples - 1, scratch, &raw);
        assert_true(st == TR_OK || st == TR_DATA);
        tr_array_close(a[i]);
    }
    return good;
}

static void corpora(void **state)
{
    (void)state;
    const char *const folders[] = {"idx", "npy", "cifar", "h5data"};
    for (size_t f = 0; f < TR_COUNT(folders); f++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", TR_SOURCE_DIR, folders[f]);
        DIR *dir = opendir(path);
        assert_non_null(dir);
        int files = 0, good = 0;
        for (struct dirent *e; (e = readdir(dir)) != NULL;) {
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s/%s", TR_SOURCE_DIR, folders[f],
                     e->d_name);
            files++;
            good += try_file(path) > 0;
        }
        closedir(dir);
        assert_true(files >= 2 && good >= 2);
    }
}

/* Texts, with the delimiter before them: tests/fuzz/fuzz_csv.c says what must hold. */
static int changed_text(const uint8_t *bytes, size_t n)
{
    static const char by[] = "\",;\n\r\t 0a";
    uint8_t text[4096];
    assert_true(n > 1 && n < sizeof text);
    fuzz_csv(bytes, n);
    for (uint32_t i = 0; i < 400; i++) {
        const tr_philox r = tr_philox_at(4, TR_RNG_TEST, (uint32_t)n, i, 0);
        memcpy(text, bytes, n);
        text[r.v[0] % n] = i % 8 ? (uint8_t)by[r.v[1] % (sizeof by - 1)] : (uint8_t)r.v[1];
        fuzz_csv(text, i % 4 ? n : 1 + r.v[2] % n);
    }
    return 0;
}

static void csv(void **state)
{
    (void)state;
    assert_true(corpus_run("csv", changed_text) >= 2);
}

/* A file of tokens, and with a byte changed or cut. */
static int changed_tokens(const uint8_t *bytes, size_t n)
{
    static uint8_t now[1 << 16];
    fuzz_tokens(bytes, n);
    for (uint32_t i = 0; i < 100; i++) {
        const tr_philox r = tr_philox_at(4, TR_RNG_TEST, (uint32_t)n, i, 1);
        memcpy(now, bytes, n);
        now[r.v[0] % (i % 2 && n > 16 ? 16 : n)] = (uint8_t)r.v[1];
        fuzz_tokens(now, i % 4 ? n : 1 + r.v[2] % n);
    }
    return 0;
}

static void tokens(void **state)
{
    (void)state;
    assert_true(corpus_run("tokens", changed_tokens) >= 20);
}

/* Most give an image, and each gives that or an error. */
static int images_read;
static int decode_image(const uint8_t *bytes, size_t n)
{
    tr_image_work work = {0};
    tr_image image;
    const tr_status st = tr_image_decode("corpus", bytes, n, 3, &work, &image);
    assert_true(st == TR_OK || st == TR_DATA);
    images_read += st == TR_OK;
    tr_image_work_free(&work);
    return 0;
}

static int changed_image(const uint8_t *bytes, size_t n)
{
    uint8_t other[8192];
    assert_true(n > 1 && n < sizeof other);
    for (uint32_t i = 0; i < 150; i++) {
        const tr_philox r = tr_philox_at(5, TR_RNG_TEST, (uint32_t)n, i, 0);
        memcpy(other, bytes, n);
        other[(i % 2 ? r.v[0] : r.v[0] % 64) % n] =
            (uint8_t)r.v[1]; /* half of them in the header */
        fuzz_image(other, i % 4 ? n : 1 + r.v[2] % n);
    }
    return 0;
}

static void changed_images(void **state)
{
    (void)state;
    assert_true(corpus_run("image", changed_image) >= 12);
}

static void image_corpus(void **state)
{
    (void)state;
    const int files = (int)corpus_run("image", decode_image);
    assert_true(images_read >= 12 && files > images_read);
}

/* As they are, cut, and with bytes changed: tests/fuzz/fuzz_npzdata.c says what must hold. */
static int changed_archive(const uint8_t *bytes, size_t n)
{
    uint8_t other[4096];
    assert_true(n > 1 && n < sizeof other);
    fuzz_npz(bytes, n);
    for (uint32_t i = 0; i < 400; i++) {
        const tr_philox r = tr_philox_at(6, TR_RNG_TEST, (uint32_t)n, i, 0);
        memcpy(other, bytes, n);
        other[r.v[0] % n] = i % 3 ? (uint8_t)r.v[1] : 0xff;
        fuzz_npz(other, i % 8 ? n : 1 + r.v[2] % n);
    }
    return 0;
}

static void archives(void **state)
{
    (void)state;
    assert_true(corpus_run("npzdata", changed_archive) >= 3);
    /* what the fuzzer of weights reads is an archive, too */
    assert_true(corpus_run("npz", changed_archive) >= 5);
}

/* Types, byte order and shape are the file's; of what is held the checksum is looked at, in place
 * it is not; what is no array of samples says why. */
static void archive_values(void **state)
{
    (void)state;
    static const char *const files[] = {"stored", "deflated", "odd"}, *const names[] = {"x", "x",
                                                                                        "big"};
    char path[1024], damaged[] = "npz-test-XXXXXX";
    uint8_t bytes[4096], sample[24];
    tr_array *a = NULL;
    const void *raw;
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/npzdata/%s", TR_SOURCE_DIR, files[i % 3]);
        const tr_status st = tr_npz_open(path, names[i % 3], i < 3 ? 1 << 20 : 95, &a);
        if (i == 4) { /* 96 bytes */
            assert_int_equal(st, TR_DATA);
            assert_non_null(
                strstr(tr_last_error()->text, "deflated: array x: unpacks to 96 bytes"));
            continue;
        }
        assert_int_equal(st, TR_OK);
        assert_int_equal(a->held != NULL, i < 3);
        assert_true(a->samples == 4 && a->ndim == 2 && a->dims[0] == 3 && a->dims[1] == 2);
        for (uint64_t s = 0; s < 4; s++) {
            assert_int_equal(tr_array_at(a, s, sample, &raw), TR_OK);
            for (size_t e = 0; e < 6; e++)
                assert_true(tr_elem_value(a->elem, raw, e) == (double)(s * 6 + e));
        }
        tr_array_close(a);
    }
    static const char *const bad[][2] = {{"turned", "Fortran order"},
                                         {"one", "at least one dimension"},
                                         {"texts", "an element type"},
                                         {"none", "no array \"none\"; it has: turned, one, big"}};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        assert_int_equal(tr_npz_open(path, bad[i][0], 1 << 20, &a), TR_DATA);
        if (!strstr(tr_last_error()->text, bad[i][1])) fail_msg("%s", tr_last_error()->text);
    }
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/npzdata/stored", TR_SOURCE_DIR);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    for (size_t i = 0; i < n; i++) /* 23.0, the last of x */
        if (memcmp(bytes + i, "\0\0\xb8\x41", 4) == 0) bytes[i] = 1;
    const int fd = mkstemp(damaged);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
    assert_int_equal(tr_npz_open(damaged, "x", 1 << 20, &a), TR_DATA);
    assert_non_null(strstr(tr_last_error()->text, "x.npy: damaged: checksum"));
    assert_int_equal(tr_npz_open(damaged, "x", 0, &a), TR_OK);
    tr_array_close(a);
    assert_int_equal(unlink(damaged), 0);
}

/* Why an array cannot be read is kept without the file's name, however long that is; where it is
 * opened that goes before. */
static void archive_faults(void **state)
{
    (void)state;
    static const char *const said[][2] = {{"turned", "its array is in Fortran order"},
                                          {"one", "expected at least one dimension"},
                                          {"texts", "header at byte "}};
    char path[4000], start[4200];
    tr_hdf5_listed *v = NULL;
    tr_array *a = NULL;
    size_t count, n = (size_t)snprintf(path, sizeof path, "%s/", TR_SOURCE_DIR);
    for (int way = 0; way < 2; way++) {
        while (way && n < 2 * TR_ERROR_TEXT) n += (size_t)snprintf(path + n, 3, "./");
        snprintf(path + n, sizeof path - n, "tests/fuzz/corpus/npzdata/odd");
        assert_int_equal(tr_npz_list(path, &v, &count), TR_OK);
        for (size_t i = 0; i < TR_COUNT(said); i++) {
            size_t k = 0;
            while (k < count && strcmp(v[k].name, said[i][0]) != 0) k++;
            assert_true(k < count);
            if (strncmp(v[k].fault, said[i][1], strlen(said[i][1])) != 0)
                fail_msg("%s: %s, expected %s", v[k].name, v[k].fault, said[i][1]);
            assert_int_equal(tr_npz_open(path, said[i][0], 1 << 20, &a), TR_DATA);
            snprintf(start, sizeof start, "%s: array %s: %s", path, said[i][0], said[i][1]);
            assert_int_equal(strncmp(tr_last_error()->text, start, way ? 1000 : strlen(start)), 0);
        }
        tr_free(v);
    }
}

static void changed_bytes(void **state)
{
    (void)state;
    const char *const names[] = {"h5data/contiguous", "h5data/packed", "npy/type0", "idx/type0d",
                                 "idx/labels.gz"};
    world w;
    static uint8_t bytes[16384];
    char path[1024];
    world_open(&w, 1, (int64_t[]){6}, 3);
    for (size_t f = 0; f < TR_COUNT(names); f++) {
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", TR_SOURCE_DIR, names[f]);
        FILE *in = fopen(path, "rb");
        assert_non_null(in);
        size_t n = fread(bytes, 1, sizeof bytes, in);
        fclose(in);
        for (uint32_t i = 0; i < 120; i++) {
            tr_philox r = tr_philox_at(3, TR_RNG_TEST, (uint32_t)f, i, 0);
            size_t at = r.v[0] % n;
            uint8_t old = bytes[at];
            bytes[at] = (uint8_t)(i % 3 == 0 ? 0xff : i % 3 == 1 ? 0 : r.v[1]);
            write_bytes(&w, "x", bytes, n);
            bytes[at] = old;
            try_file(in_folder(&w, "x"));
        }
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corpora),        cmocka_unit_test(csv),
        cmocka_unit_test(image_corpus),   cmocka_unit_test(changed_images),
        cmocka_unit_test(changed_bytes),  cmocka_unit_test(archives),
        cmocka_unit_test(archive_values), cmocka_unit_test(archive_faults),
        cmocka_unit_test(tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
