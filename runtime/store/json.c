/* Text that is safe to print: JSON strings and numbers, and names from a file on a terminal. */
#include "runtime/store/internal.h"

#include <math.h>
#include <string.h>

/* Length of the well-formed UTF-8 sequence at p (RFC 3629), 0 when there is none. */
static size_t utf8(const unsigned char *p)
{
    size_t n = p[0] < 0x80   ? 1
               : p[0] < 0xc2 ? 0
               : p[0] < 0xe0 ? 2
               : p[0] < 0xf0 ? 3
               : p[0] < 0xf5 ? 4
                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0; /* a NUL ends it here too */
    if (n == 3 && ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f))) return 0;
    if (n == 4 && ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))) return 0;
    return n;
}

void tr_json_text(const char *s, FILE *to)
{
    fputc('"', to);
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t n = utf8(p);
        if (n == 0) {
            fputs("\\ufffd", to);
            p++;
            continue;
        }
        if (*p == '"' || *p == '\\')
            fprintf(to, "\\%c", *p);
        else if (*p == '\n')
            fputs("\\n", to);
        else if (*p < 0x20 || *p == 0x7f)
            fprintf(to, "\\u%04x", *p);
        else
            fwrite(p, 1, n, to);
        p += n;
    }
    fputc('"', to);
}

void tr_json_real(double v, FILE *to)
{
    if (!isfinite(v))
        fputs("null", to);
    else
        fprintf(to, "%.17g", v);
}

void tr_plain_text(const char *s, int max, FILE *to)
{
    for (const unsigned char *p = (const unsigned char *)s; *p && max > 0; max--) {
        size_t n = utf8(p);
        /* C1 controls (U+0080 to U+009F) move a terminal as well */
        bool bad = n == 0 || *p < 0x20 || *p == 0x7f || (n == 2 && p[0] == 0xc2 && p[1] < 0xa0);
        if (bad)
            fputc('?', to);
        else
            fwrite(p, 1, n, to);
        p += n ? n : 1;
    }
}
