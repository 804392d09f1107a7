/* with: trainer/sweep/record.c
 * libFuzzer: trial.yaml in a trial's folder, as a sweep left it, or somebody wrote it: any bytes are no record, and the trial
 * runs again, or one of a trial that ended, which is written and read again as it was.
 *   fuzz_trial NEW_FOLDER tests/fuzz/corpus/trial -max_len=4096 -max_total_time=600
 * Inputs are changed as trees, too (yaml_change.h). */
#include <string.h>

#include "fuzz_folder.h"
#include "trainer/sweep/internal.h"
#include "yaml_change.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed)
{
    return seed % 2 ? LLVMFuzzerMutate(bytes, n, most) : yaml_mutate(bytes, n, most, seed / 2);
}

static bool read_record(const tr_trial *t, tr_trial_result *r)
{
    bool found;
    if (tr_record_read(t, r, &found) != TR_OK) abort();
    if (found && r->state != TR_TRIAL_DONE && r->state != TR_TRIAL_FAILED) abort();
    return found;
}

/* As it is written. */
static size_t record_text(const tr_trial *t, char *text, size_t most)
{
    char path[FUZZ_PATH];
    if (tr_record_write(t) != TR_OK) abort();
    FILE *f = fopen(fuzz_path("trial.yaml", path), "rb");
    if (!f) abort();
    const size_t n = fread(text, 1, most, f);
    fclose(f);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static char one[1 << 16], two[1 << 16];
    fuzz_make_folder();
    tr_log_init(0, 1, TR_LOG_ERROR);
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_trial t = {.folder = fuzz_folder, .key = "key"};
    fuzz_write("trial.yaml", bytes, n);
    if (read_record(&t, &t.result)) {
        const size_t m = record_text(&t, one, sizeof one);
        if (!read_record(&t, &t.result)) abort();
        if (record_text(&t, two, sizeof two) != m || memcmp(one, two, m) != 0) abort();
    }
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    return 0;
}
