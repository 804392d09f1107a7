/* One record as one line of JSON (RFC 8259), in a buffer of fixed size. */
#include "runtime/metrics/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/visible.h"

#define VALUE_MAX 1024 /* bytes of a text that are kept */

static void put(tr_record *r, const char *fmt, ...) TR_PRINTF(2, 3);
static void put(tr_record *r, const char *fmt, ...)
{
    if (r->overflow) return;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(r->text + r->used, sizeof r->text - r->used, fmt, args);
    va_end(args);
    r->overflow = n < 0 || (size_t)n >= sizeof r->text - r->used;
    if (!r->overflow) r->used += (size_t)n;
}

static void put_text(tr_record *r, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    const size_t size = strlen(text);
    put(r, "\"");
    for (size_t i = 0, n; i < size && i < VALUE_MAX; i += n ? n : 1) {
        n = tr_utf8_length(p + i, size - i);
        if (n == 0)
            put(r, "\\ufffd");
        else if (p[i] == '"' || p[i] == '\\')
            put(r, "\\%c", p[i]);
        else if (p[i] < 0x20 || p[i] == 0x7f)
            put(r, "\\u%04x", p[i]);
        else
            put(r, "%.*s", (int)n, text + i);
    }
    put(r, "\"");
}

void tr_record_begin(tr_record *r, const char *event)
{
    r->used = 0;
    r->overflow = false;
    put(r, "{\"event\":");
    put_text(r, event);
}

void tr_record_text(tr_record *r, const char *key, const char *value)
{
    put(r, ",\"%s\":", key);
    if (value)
        put_text(r, value);
    else
        put(r, "null");
}

void tr_record_uint(tr_record *r, const char *key, uint64_t value)
{
    put(r, ",\"%s\":%llu", key, (unsigned long long)value);
}

void tr_record_bool(tr_record *r, const char *key, bool value)
{
    put(r, ",\"%s\":%s", key, value ? "true" : "false");
}

void tr_record_real(tr_record *r, const char *key, double value, int digits)
{
    char text[40] = "null";
    int least = digits ? digits : 15, most = digits ? digits : 17;
    for (int d = least; isfinite(value) && d <= most; d++) {
        snprintf(text, sizeof text, "%.*g", d, value);
        if (strtod(text, NULL) == value) break;
    }
    put(r, ",\"%s\":%s", key, text);
}

void tr_record_known(tr_record *r, const char *key, double value, int digits)
{
    if (!isnan(value)) tr_record_real(r, key, value, digits);
}

bool tr_record_end(tr_record *r)
{
    put(r, "}\n");
    return !r->overflow;
}
