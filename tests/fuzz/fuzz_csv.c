/* libFuzzer: a CSV file's text; the first byte chooses the delimiter. It ends in fields or in an error
 * with a text, and nothing is left. */
#include <stdlib.h>
#include <string.h>

#include "runtime/data/csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char delimiters[] = ",;\t ";
    tr_csv t;
    if (n == 0) return 0;
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    char *text = tr_alloc(TR_MEM_OTHER, n, 1);
    if (!text) return 0;
    memcpy(text, bytes + 1, n - 1);
    if (tr_csv_parse("fuzz.csv", text, n - 1, delimiters[bytes[0] % 4], &t) == TR_OK) {
        size_t bytes_of = 0;
        for (size_t i = 0; i < t.columns; i++) bytes_of += strlen(t.names[i]);
        for (uint64_t i = 0; i < t.rows * t.columns; i++) bytes_of += strlen(t.fields[i]);
        if (bytes_of > n || t.lines[t.rows - 1] < t.rows) abort();
        tr_csv_free(&t);
    } else if (!*tr_last_error()->text) {
        abort();
    }
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    return 0;
}
