/* Element types and time. */
#include "runtime/base/base.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

size_t tr_dtype_size(tr_dtype t)
{
    static const size_t sizes[TR_DTYPES] = {[TR_F32] = 4, [TR_BF16] = 2, [TR_F16] = 2, [TR_I32] = 4,
                                            [TR_I64] = 8, [TR_U8] = 1,   [TR_F64] = 8};
    return (unsigned)t < TR_DTYPES ? sizes[t] : 0;
}

const char *tr_dtype_name(tr_dtype t)
{
    static const char *const names[TR_DTYPES] = {
        [TR_F32] = "float32", [TR_BF16] = "bfloat16", [TR_F16] = "float16", [TR_I32] = "int32",
        [TR_I64] = "int64",   [TR_U8] = "uint8",      [TR_F64] = "float64"};
    return (unsigned)t < TR_DTYPES ? names[t] : "unknown";
}

double tr_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double tr_since_launch(void)
{
    /* field 22 of /proc/self/stat: start in clock ticks since boot, of CLOCK_BOOTTIME */
    char text[1024];
    FILE *f = fopen("/proc/self/stat", "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    char *p = strrchr(text, ')'); /* the name may hold spaces */
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    if (!p) return 0;
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    double start = strtod(p, NULL) / (double)sysconf(_SC_CLK_TCK);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - start;
}
