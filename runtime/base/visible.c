/* Text from outside (names, paths, what is in a file) as it may be shown: a terminal obeys control
 * characters, so that they could move its cursor, hide lines or change its title. Valid UTF-8 stays
 * as it is; C0 and C1 controls, DEL and bytes that are no UTF-8 are written as \x1b. */
#include "runtime/base/visible.h"

#include <string.h>

size_t tr_utf8_length(const void *at, size_t left)
{
    const unsigned char *p = at;
    if (left == 0) return 0;
    unsigned char c = p[0], low = 0x80, high = 0xbf;
    size_t n;
    if (c < 0x80) return 1;
    if (c >= 0xc2 && c <= 0xdf) {
        n = 2;
    } else if (c >= 0xe0 && c <= 0xef) {
        n = 3;
        if (c == 0xe0) low = 0xa0;
        if (c == 0xed) high = 0x9f;
    } else if (c >= 0xf0 && c <= 0xf4) {
        n = 4;
        if (c == 0xf0) low = 0x90;
        if (c == 0xf4) high = 0x8f;
    } else {
        return 0;
    }
    if (left < n || p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return n;
}

size_t tr_visible_next(const char *from, size_t left, char shown[TR_VISIBLE])
{
    const unsigned char *p = (const unsigned char *)from;
    size_t n = tr_utf8_length(p, left);
    const bool c1 = n == 2 && p[0] == 0xc2 && p[1] < 0xa0;
    if (n > 0 && !c1 && p[0] >= 0x20 && p[0] != 0x7f) {
        memcpy(shown, from, n);
        shown[n] = 0;
        return n;
    }
    snprintf(shown, TR_VISIBLE, "\\x%02x", c1 ? p[1] : p[0]);
    return n ? n : 1;
}

size_t tr_visible(const char *from, size_t n, char *to, size_t size)
{
    size_t used = 0;
    char shown[TR_VISIBLE];
    for (size_t i = 0; i < n;) {
        i += tr_visible_next(from + i, n - i, shown);
        const size_t length = strlen(shown);
        if (used + length >= size) break;
        memcpy(to + used, shown, length);
        used += length;
    }
    to[used] = 0;
    return used;
}

/* ---- As a stream ----------------------------------------------------------------------------- */

typedef struct {
    FILE *to;
    char rest[4]; /* the beginning of a character that goes on in the next write */
    size_t nrest;
} filter;

/* A character may go on beyond these bytes. */
static bool unfinished(const char *from, size_t left)
{
    const unsigned char c = (unsigned char)*from;
    const size_t whole = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
    if (left >= whole || c > 0xf4) return false;
    for (size_t i = 1; i < left; i++)
        if (((unsigned char)from[i] & 0xc0) != 0x80) return false;
    return true;
}

static void put(filter *f, const char *from, size_t n, bool last)
{
    char shown[TR_VISIBLE];
    for (size_t i = 0; i < n;) {
        if (from[i] == '\n') {
            fputc(from[i++], f->to);
            continue;
        }
        if (!last && unfinished(from + i, n - i)) {
            f->nrest = n - i;
            memcpy(f->rest, from + i, f->nrest);
            return;
        }
        i += tr_visible_next(from + i, n - i, shown);
        fputs(shown, f->to);
    }
    f->nrest = 0;
}

static ssize_t write_through(void *cookie, const char *from, size_t n)
{
    filter *f = cookie;
    size_t at = 0;
    while (f->nrest > 0 && at < n) { /* the rest grows by a byte until it is a character, or none */
        char joined[sizeof f->rest + 1];
        memcpy(joined, f->rest, f->nrest);
        joined[f->nrest] = from[at++];
        put(f, joined, f->nrest + 1, false);
    }
    if (at < n) put(f, from + at, n - at, false);
    return ferror(f->to) ? 0 : (ssize_t)n;
}

static int close_filter(void *cookie)
{
    filter *f = cookie;
    char rest[sizeof f->rest];
    memcpy(rest, f->rest, f->nrest);
    put(f, rest, f->nrest, true);
    const int failed = fflush(f->to);
    tr_free(f);
    return failed;
}

FILE *tr_visible_stream(FILE *to)
{
    filter *f = TR_NEW(TR_MEM_OTHER, filter);
    if (!f) return NULL;
    f->to = to;
    FILE *stream =
        fopencookie(f, "w", (cookie_io_functions_t){.write = write_through, .close = close_filter});
    if (stream) return stream;
    tr_free(f);
    (void)TR_FAIL(TR_MEMORY, "no memory for an output stream");
    return NULL;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

size_t tr_utf8_count(const char *text)
{
    size_t n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

const char *tr_utf8_brief(const char *text, size_t most, char *buf)
{
    static const char dots[] = "...";
    const bool all = tr_utf8_count(text) <= most;
    size_t room = all ? most : most - strlen(dots), n = 0;
    for (; text[n] && (room > 0 || (text[n] & 0xc0) == 0x80) && n < 4 * most; n++) {
        room -= (text[n] & 0xc0) != 0x80;
        buf[n] = text[n];
    }
    snprintf(buf + n, sizeof dots, "%s", all ? "" : dots);
    return buf;
}

void tr_write_cell(FILE *to, int width, const char *text)
{
    const int n = (int)tr_utf8_count(text), most = width < 0 ? -width : width;
    const int pad = n < most ? most - n : 0;
    fprintf(to, "%*s%s%*s", width < 0 ? 0 : pad, "", text, width < 0 ? pad : 0, "");
}
