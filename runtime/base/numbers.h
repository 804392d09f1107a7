/* Some numbers: in order, and as text. Local. */
#ifndef TR_NUMBERS_H
#define TR_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

/* Puts v[n] into ascending order; none is NaN. */
void tr_sort(double *v, size_t n);
/* The same, and what stands in the middle, of an even number the mean of the two there. n > 0. */
double tr_median(double *v, size_t n);

/* "(16, 8, 8)", "()"; what has no room is left out. Returns buf. */
const char *tr_format_dims(int ndim, const int64_t *dims, char *buf, size_t size);

/* The shortest decimal that reads back as the same number. Returns buf. */
const char *tr_format_real(double v, char buf[32]);

/* What stands behind a noun that so many are of: "" of one, else "s". */
static inline const char *tr_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
