#include "runtime/base/numbers.h"

#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void tr_sort(double *v, size_t n)
{
    qsort(v, n, sizeof *v, ascending);
}

double tr_median(double *v, size_t n)
{
    tr_sort(v, n);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

const char *tr_format_dims(int ndim, const int64_t *dims, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "(");
    for (int i = 0; i < ndim && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
    if (n < size) snprintf(buf + n, size - n, ")");
    return buf;
}

const char *tr_format_real(double v, char buf[32])
{
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(buf, 32, "%.*g", precision, v);
        if (strtod(buf, NULL) == v) break;
    }
    return buf;
}
