/* Strings and numbers of JSON. */
#include "runtime/base/json.h"

#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/base/visible.h"

void tr_json_text(const char *s, FILE *to)
{
    fputc('"', to);
    const unsigned char *p = (const unsigned char *)s, *end = p + strlen(s);
    while (p < end) {
        const size_t n = tr_utf8_length(p, (size_t)(end - p));
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
        else if (n == 2 && p[0] == 0xc2 && p[1] < 0xa0) /* C1 controls */
            fprintf(to, "\\u%04x", p[1]);
        else
            fwrite(p, 1, n, to);
        p += n;
    }
    fputc('"', to);
}

void tr_json_real(double v, FILE *to)
{
    char number[32];
    fputs(isfinite(v) ? tr_format_real(v, number) : "null", to);
}
