/* libFuzzer: a CSV file's text; the first byte chooses the delimiter. */
#include <string.h>

#include "runtime/data/csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char delimiters[] = ",;\t ";
    tr_csv t;
    if (n == 0) return 0;
    char *text = tr_alloc(TR_MEM_OTHER, n, 1);
    if (!text) return 0;
    memcpy(text, bytes + 1, n - 1);
    if (tr_csv_parse("fuzz.csv", text, n - 1, delimiters[bytes[0] % 4], &t) == TR_OK) {
        size_t bytes_of = 0;
        for (size_t i = 0; i < t.columns; i++) bytes_of += strlen(t.names[i]);
        for (uint64_t i = 0; i < t.rows * t.columns; i++) bytes_of += strlen(t.fields[i]);
        if (bytes_of > n || t.lines[t.rows - 1] < t.rows) __builtin_trap();
        tr_csv_free(&t);
    }
    return 0;
}
