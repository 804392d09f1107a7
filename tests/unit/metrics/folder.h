/* A folder of its own for a test, and its files as text. */
#ifndef TEST_METRICS_FOLDER_H
#define TEST_METRICS_FOLDER_H

#include "runtime/metrics/internal.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define UNUSED __attribute__((unused))

UNUSED static int make_folder(void **state)
{
    char *name = tr_strdup("metrics_XXXXXX");
    *state = name;
    return name && mkdtemp(name) ? 0 : -1;
}

UNUSED static int remove_folder(void **state)
{
    char *pattern = tr_sprintf("%s/*", (char *)*state);
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
    globfree(&found);
    rmdir(*state);
    tr_free(pattern);
    tr_free(*state);
    return 0;
}

/* Freed by the caller; *nbytes may be NULL. */
UNUSED static char *file_text(const char *folder, const char *name, size_t *nbytes)
{
    char *path = tr_sprintf("%s/%s", folder, name);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    char *text = tr_alloc(TR_MEM_OTHER, 1 << 16, 1);
    size_t n = fread(text, 1, (1 << 16) - 1, in);
    fclose(in);
    tr_free(path);
    if (nbytes) *nbytes = n;
    return text;
}

UNUSED static void put_file(const char *folder, const char *name, const char *text)
{
    char *path = tr_sprintf("%s/%s", folder, name);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    fputs(text, to);
    fclose(to);
    tr_free(path);
}

UNUSED static tr_metrics *open_metrics(const char *folder, bool resume, uint64_t step)
{
    tr_metrics *m = NULL;
    tr_metrics_options o = {
        .folder = folder, .resume = resume, .step = step, .quiet = true, .total_steps = 100};
    if (tr_metrics_open(&o, &m) != TR_OK) fail_msg("%s", tr_last_error()->text);
    return m;
}

UNUSED static const tr_eval_record EVAL = {.loss = 0.5,
                                           .accuracy = 0.25,
                                           .top5 = NAN,
                                           .f1 = NAN,
                                           .auc = NAN,
                                           .mae = NAN,
                                           .r2 = NAN,
                                           .perplexity = NAN,
                                           .bits_per_byte = NAN};
UNUSED static const tr_step_record STEP = {.step = 10,
                                           .epoch = 1,
                                           .loss = 0.1,
                                           .lr = 1e-3,
                                           .grad_norm = 1.0 / 3,
                                           .loss_scale = 65536,
                                           .samples_per_s = 14600.123456,
                                           .step_ms = 8.8,
                                           .compute_ms = 3.1,
                                           .comm_wait_ms = 0,
                                           .data_wait_ms = 0.25,
                                           .idle_ms = NAN,
                                           .gpu_memory_mb = NAN,
                                           .gpu_utilization = NAN};

#endif
