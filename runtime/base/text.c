/* Numbers as people read them, and the nearest word to a mistyped one. */
#include "runtime/base/base.h"

#include <ctype.h>
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

static bool same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Levenshtein's distance, where two neighbours that changed places are one edit, and upper or lower
 * case is none; of words up to WORD. */
static size_t edits(const char *a, const char *b)
{
    size_t rows[3][WORD + 1], m = strlen(a), n = strlen(b);
    if (m > WORD || n > WORD) return WORD;
    for (size_t j = 0; j <= n; j++) rows[0][j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            row[j] = above[j - 1] + !same_letter(a[i - 1], b[j - 1]);
            if (above[j] + 1 < row[j]) row[j] = above[j] + 1;
            if (row[j - 1] + 1 < row[j]) row[j] = row[j - 1] + 1;
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                same_letter(a[i - 2], b[j - 1]) && two_above[j - 2] + 1 < row[j])
                row[j] = two_above[j - 2] + 1;
        }
    }
    return rows[m % 3][n];
}

/* A third of the shorter word; one where that has two letters; two where letters are only missing
 * ("epcs", "head" for "head.*"). */
static bool is_near(const char *a, const char *b, size_t d)
{
    const size_t m = strlen(a), n = strlen(b), shorter = m < n ? m : n, longer = m + n - shorter;
    if (shorter < 3) return d <= shorter / 2;
    return d <= shorter / 3 || (d <= 2 && d == longer - shorter);
}

const char *tr_nearest(const char *word, const char *const *names, size_t count)
{
    size_t best = WORD;
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        const size_t d = edits(word, names[i]);
        if (d >= best || !is_near(word, names[i], d)) continue;
        best = d;
        nearest = names[i];
    }
    return nearest;
}
