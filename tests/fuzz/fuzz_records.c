/* links: trireme_report
 * libFuzzer: metrics.jsonl as a run left it, or somebody wrote it: cut back as a resume does at a
 * step (the first byte), twice the same, and read record by record.
 *   fuzz_records NEW_FOLDER tests/fuzz/corpus/records -max_len=4096 -max_total_time=600 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz_folder.h"
#include "optimize/report/records.h"
#include "runtime/metrics/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void need(tr_status st)
{
    if (st == TR_OK || *tr_last_error()->text) return;
    abort();
}

static size_t size_of(const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0) abort();
    return (size_t)s.st_size;
}

static void read_all(const char *path)
{
    static const char *const keys[] = {"step", "loss", "event", "reason", "parameters"};
    tr_records r;
    double sum = 0;
    if (tr_records_read(path, NULL, &r) != TR_OK) abort();
    for (size_t i = 0; i < r.count; i++)
        for (size_t k = 0; k < TR_COUNT(keys); k++)
            sum += tr_records_real(&r.records[i], keys[k]) +
                   (double)strlen(tr_records_text(&r.records[i], keys[k]));
    tr_records_free(&r);
    volatile double use = sum;
    (void)use;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[FUZZ_PATH];
    if (n == 0) return 0;
    fuzz_make_folder();
    tr_log_init(0, 1, TR_LOG_ERROR);
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    fuzz_write("metrics.jsonl", bytes + 1, n - 1);
    fuzz_path("metrics.jsonl", path);
    read_all(path);
    need(tr_append_rewind(path, bytes[0]));
    const size_t once = size_of(path);
    need(tr_append_rewind(path, bytes[0]));
    if (once > n - 1 || size_of(path) != once) abort();
    read_all(path);
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    return 0;
}
