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
                   {tr_hdf5_array_open(path, "x", &a[2])},
                   {tr_hdf5_array_open(path, "y", &a[3])},
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
        cmocka_unit_test(corpora),       cmocka_unit_test(csv),
        cmocka_unit_test(image_corpus),  cmocka_unit_test(changed_images),
        cmocka_unit_test(changed_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
