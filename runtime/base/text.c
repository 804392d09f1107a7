/* Numbers as people read them, and the nearest word to a mistyped one. */
#include "runtime/base/base.h"

#include <math.h>
#include <string.h>

static char *scaled(double n, const char *const *units, size_t count, char *buf, size_t size)
{
    size_t u = 0;
    double x = n;
    while (fabs(x) >= 999.5 && u + 1 < count) {
        x /= 1000;
        u++;
    }
    int digits = u == 0 ? 0 : fabs(x) < 9.995 ? 2 : fabs(x) < 99.95 ? 1 : 0;
    snprintf(buf, size, "%.*f%s", digits, x, units[u]);
    return buf;
}

char *tr_format_bytes(double nbytes, char *buf, size_t size)
{
    static const char *const units[] = {" B", " kB", " MB", " GB", " TB", " PB"};
    return scaled(nbytes, units, TR_COUNT(units), buf, size);
}

char *tr_format_count(double n, char *buf, size_t size)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P"};
    return scaled(n, units, TR_COUNT(units), buf, size);
}

char *tr_format_flop(double n, char *buf, size_t size)
{
    static const char *const units[] = {" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP"};
    return scaled(n, units, TR_COUNT(units), buf, size);
}

char *tr_format_finite(double v, char *buf, size_t size)
{
    if (isfinite(v))
        snprintf(buf, size, "%.6g", v);
    else
        snprintf(buf, size, "not finite");
    return buf;
}

char *tr_format_seconds(double s, char *buf, size_t size)
{
    if (!isfinite(s) || s < 0)
        snprintf(buf, size, "?");
    else if (s < 60)
        snprintf(buf, size, "%.1f s", s);
    else if (s < 3600)
        snprintf(buf, size, "%d:%02d", (int)s / 60, (int)s % 60);
    else
        snprintf(buf, size, "%.0f:%02d:%02d", floor(s / 3600), (int)fmod(s, 3600) / 60,
                 (int)fmod(s, 60));
    return buf;
}

enum { WORD = 64 };

static size_t edits(const char *a, const char *b) /* Levenshtein; words up to WORD */
{
    size_t row[WORD + 1], m = strlen(a), n = strlen(b);
    if (m > WORD || n > WORD) return WORD;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

const char *tr_nearest(const char *word, const char *const *names, size_t count)
{
    size_t limit = strlen(word) / 3, best = WORD;
    const char *nearest = NULL;
    if (limit < 2) limit = 2;
    for (size_t i = 0; i < count; i++) {
        size_t d = edits(word, names[i]);
        if (d < best) {
            best = d;
            nearest = names[i];
        }
    }
    return best <= limit ? nearest : NULL;
}
