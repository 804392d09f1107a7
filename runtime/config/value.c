/* Numbers as text, strictly: what looks almost like a number is an error, not a surprise. */
#include "runtime/config/internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_digits(const char *p)
{
    while (*p >= '0' && *p <= '9') p++;
    return p;
}

tr_number tr_parse_int(const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    const char *end = skip_digits(digits);
    if (end == digits || *end) return TR_NUMBER_MALFORMED;
    if (*digits == '0' && digits[1]) return TR_NUMBER_MALFORMED; /* octal in YAML 1.1, not in 1.2 */
    errno = 0;
    long long v = strtoll(text, NULL, 10);
    if (errno == ERANGE) return TR_NUMBER_RANGE;
    *out = v;
    return TR_NUMBER_OK;
}

tr_number tr_parse_real(const char *text, double *out)
{
    const char *whole = text + (*text == '-' || *text == '+');
    const char *p = skip_digits(whole);
    size_t digits = (size_t)(p - whole);
    if (*p == '.') {
        const char *fraction = p + 1;
        p = skip_digits(fraction);
        digits += (size_t)(p - fraction);
    }
    if (digits == 0) return TR_NUMBER_MALFORMED;
    if (*p == 'e' || *p == 'E') {
        const char *exponent = p + 1 + (p[1] == '-' || p[1] == '+');
        p = skip_digits(exponent);
        if (p == exponent) return TR_NUMBER_MALFORMED;
    }
    if (*p) return TR_NUMBER_MALFORMED;
    errno = 0;
    double v = strtod(text, NULL);
    if (isinf(v) || (errno == ERANGE && v == 0)) return TR_NUMBER_RANGE;
    *out = v;
    return TR_NUMBER_OK;
}
