/* with: optimize/profile/machine_text.c
 * libFuzzer: machine.json as a run left it, or somebody wrote it: any text is of this machine, with
 * rates that can be reckoned with and that are read again as they were, or of another, or it is
 * none, and an error says why.
 *   fuzz_machine NEW_FOLDER tests/fuzz/corpus/machine -max_len=4096 -max_total_time=600 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/profile/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const tr_machine wanted = {.device = "a CPU", .threads = 4};

static bool is_rate(double v, bool must)
{
    return isfinite(v) && (must ? v > 0 : v >= 0);
}

static void check(const tr_machine *m)
{
    tr_machine again;
    char *text = NULL;
    size_t n = 0;
    bool same = false;
    for (int k = 0; k < TR_PEAKS; k++)
        if (!is_rate(m->peak[k], k == TR_PEAK_FP32)) abort();
    if (!is_rate(m->cache, true) || !is_rate(m->memory, true) || !is_rate(m->cache_bytes, false))
        abort();
    FILE *to = open_memstream(&text, &n);
    if (!to) abort();
    tr_machine_write(m, to);
    fclose(to);
    tr_machine_read(text, &wanted, &again, &same);
    if (!same || memcmp(again.peak, m->peak, sizeof m->peak) != 0 || again.cache != m->cache ||
        again.memory != m->memory || again.cache_bytes != m->cache_bytes)
        abort();
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    tr_machine m = {0};
    bool same = false, ours = false;
    char *text = malloc(n + 1);
    if (!text) abort();
    memcpy(text, bytes, n);
    text[n] = 0;
    tr_log_init(0, 1, TR_LOG_ERROR);
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_machine_read(text, NULL, &m, &ours);
    if (!ours && !*tr_last_error()->text) abort();
    tr_machine_read(text, &wanted, &m, &same);
    if (same && !ours) abort();
    if (same) check(&m);
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    free(text);
    return 0;
}
