/* The fuzzer's corpus and what fuzzing found, as a test: tests/fuzz/fuzz_store.c says what must
 * hold. */
#include "../../fuzz/fuzz_store.c"

#include <dirent.h>
#include <setjmp.h>
#include <cmocka.h>

static void corpus(void **state)
{
    (void)state;
    const char *folder = TR_SOURCE_DIR "/tests/fuzz/corpus/store";
    static uint8_t bytes[1 << 16];
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir));) {
        char path[512];
        if (d->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        size_t nbytes = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        LLVMFuzzerTestOneInput(bytes, nbytes); /* aborts when something does not hold */
        n++;
    }
    closedir(dir);
    assert_true(n >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(corpus)};
    return cmocka_run_group_tests_name("store: corpus", tests, NULL, NULL);
}
