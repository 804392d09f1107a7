/* links: trireme_predict
 * libFuzzer: PATH.part as a killed prediction left it, or somebody wrote it: any bytes are refused
 * with a text and left as they are, or end in the rows of whole records, to which the others are
 * appended, and all of which are then read. The first byte: is one of another job to be replaced?
 *   fuzz_part NEW_FOLDER tests/fuzz/corpus/part -max_len=4096 -max_total_time=600 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz_folder.h"
#include "optimize/predict/predict.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { SAMPLES = 10, OUTPUTS = 3, BATCH = 4, HEADER = 128, RECORD = 24 };

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "%s: %s\n", what, tr_last_error()->text);
    abort();
}

static tr_status open_part(bool replace, tr_part **out)
{
    static const char job[65] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    char path[FUZZ_PATH];
    return tr_part_open(fuzz_path("p", path), job, SAMPLES, OUTPUTS, BATCH, replace, out);
}

/* Its size is of whole records; all rows there are read into v. */
static void read_rows(tr_part *p, float *v)
{
    char path[FUZZ_PATH];
    struct stat s;
    uint64_t rows = 0, count;
    const uint64_t all = tr_part_rows(p);
    need(all <= SAMPLES && (all % BATCH == 0 || all == SAMPLES), "rows");
    need(stat(fuzz_path("p.part", path), &s) == 0 &&
             (uint64_t)s.st_size ==
                 HEADER + (all + BATCH - 1) / BATCH * RECORD + all * OUTPUTS * sizeof(float),
         "size");
    tr_part_rewind(p);
    for (; rows < all; rows += count)
        need(tr_part_next(p, v + rows * OUTPUTS, &count) == TR_OK && count > 0, "reading");
    need(rows == all, "as many rows");
}

static void finish(tr_part *p)
{
    float before[SAMPLES * OUTPUTS] = {0}, after[SAMPLES * OUTPUTS], row[BATCH * OUTPUTS];
    for (size_t i = 0; i < BATCH * OUTPUTS; i++) row[i] = (float)i;
    read_rows(p, before);
    const uint64_t had = tr_part_rows(p);
    for (uint64_t at = had, count; at < SAMPLES; at += count) {
        count = SAMPLES - at < BATCH ? SAMPLES - at : BATCH;
        memcpy(before + at * OUTPUTS, row, count * OUTPUTS * sizeof *row);
        need(tr_part_append(p, row, count) == TR_OK, "appending");
    }
    tr_part_close(p);
    need(open_part(false, &p) == TR_OK && tr_part_rows(p) == SAMPLES, "opening again");
    read_rows(p, after);
    need(memcmp(before, after, sizeof after) == 0, "other rows");
    tr_part_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static char there[1 << 16];
    tr_part *p = NULL;
    char path[FUZZ_PATH];
    if (n == 0 || n > sizeof there) return 0;
    fuzz_make_folder();
    tr_log_init(0, 1, TR_LOG_ERROR);
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    fuzz_write("p.part", bytes + 1, n - 1);
    if (open_part(bytes[0] & 1, &p) == TR_OK) {
        finish(p);
    } else {
        need(*tr_last_error()->text, "an error without a text");
        FILE *f = fopen(fuzz_path("p.part", path), "rb");
        need(f && fread(there, 1, sizeof there, f) == n - 1 && memcmp(there, bytes + 1, n - 1) == 0,
             "refused, and changed");
        fclose(f);
    }
    need(tr_mem_held(TR_MEM_OTHER) == held, "leak");
    return 0;
}
