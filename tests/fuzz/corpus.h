/* A fuzzer's corpus as an ordinary test: every file through the fuzzer's own function, which aborts
 * where something does not hold. */
#ifndef TR_FUZZ_CORPUS_H
#define TR_FUZZ_CORPUS_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

/* How many files there are in corpus/NAME. They come in order of their names. */
static int corpus_run(const char *name, int (*fuzz)(const uint8_t *bytes, size_t n))
{
    static uint8_t bytes[1 << 16];
    char path[1024];
    struct dirent **found;
    int files = 0;
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", TR_SOURCE_DIR, name);
    const int count = scandir(path, &found, NULL, alphasort);
    for (int i = 0; i < count; free(found[i++])) {
        if (found[i]->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s/%s", TR_SOURCE_DIR, name,
                 found[i]->d_name);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        const size_t n = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        assert_true(n < sizeof bytes);
        fuzz(bytes, n);
        files++;
    }
    assert_true(count > 0);
    free(found);
    return files;
}

#endif
