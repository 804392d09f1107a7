#include "optimize/tensors/json.h"

#include <string.h>

#include "runtime/base/visible.h"

tr_status tr_json_fail(const tr_json *j, const char *text)
{
    return TR_FAIL(TR_FILE, "%s: header, byte %zu: %s", j->file, j->at, text);
}

static void skip_space(tr_json *j)
{
    while (j->at < j->end && strchr(" \t\r\n", j->text[j->at]) && j->text[j->at]) j->at++;
}

bool tr_json_next(tr_json *j, char c)
{
    skip_space(j);
    if (j->at == j->end || j->text[j->at] != c) return false;
    j->at++;
    return true;
}

tr_status tr_json_take(tr_json *j, char c)
{
    char text[32];
    if (tr_json_next(j, c)) return TR_OK;
    snprintf(text, sizeof text, "expected '%c'%s", c, j->at == j->end ? ", it ends" : "");
    return tr_json_fail(j, text);
}

/* The four digits of \uXXXX. */
static tr_status code_unit(tr_json *j, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        if (j->at == j->end) return tr_json_fail(j, "it ends within \\u");
        const char c = j->text[j->at] | 0x20;
        const char *at = c ? strchr(digits, c) : NULL;
        if (!at) return tr_json_fail(j, "\\u takes four hexadecimal digits");
        *out = 16 * *out + (unsigned)(at - digits);
        j->at++;
    }
    return TR_OK;
}

/* Behind the backslash. Names are printable: no control characters, and no halves of characters
 * beyond 16 bits. */
static tr_status escape(tr_json *j, char to[4], size_t *n)
{
    unsigned u = 0;
    if (j->at == j->end) return tr_json_fail(j, "it ends within a string");
    const char c = j->text[j->at++];
    *n = 1;
    to[0] = c;
    if (c == '"' || c == '\\' || c == '/') return TR_OK;
    if (c != 'u') return tr_json_fail(j, "an escape that no name has");
    const tr_status st = code_unit(j, &u);
    if (st != TR_OK) return st;
    if (u < 0x20 || (u >= 0x7f && u < 0xa0) || (u >= 0xd800 && u < 0xe000))
        return tr_json_fail(j, "a character that no name has");
    *n = u < 0x80 ? 1 : u < 0x800 ? 2 : 3;
    if (*n == 1) to[0] = (char)u;
    if (*n == 2) to[0] = (char)(0xc0 | u >> 6), to[1] = (char)(0x80 | (u & 0x3f));
    if (*n == 3)
        to[0] = (char)(0xe0 | u >> 12), to[1] = (char)(0x80 | (u >> 6 & 0x3f)),
        to[2] = (char)(0x80 | (u & 0x3f));
    return TR_OK;
}

/* One character of a string. */
static tr_status character(tr_json *j, char to[4], size_t *n)
{
    const unsigned char *p = (const unsigned char *)j->text + j->at;
    if (*p == '\\') {
        j->at++;
        return escape(j, to, n);
    }
    *n = tr_utf8_length(p, j->end - j->at);
    if (*n == 0) return tr_json_fail(j, "not UTF-8");
    if (*p < 0x20 || *p == 0x7f || (*n == 2 && p[0] == 0xc2 && p[1] < 0xa0))
        return tr_json_fail(j, "a control character");
    memcpy(to, p, *n);
    j->at += *n;
    return TR_OK;
}

/* to NULL: forgotten. */
static tr_status string(tr_json *j, char *to, size_t room)
{
    size_t have = 0, n = 0;
    char c[4];
    tr_status st;
    TR_TRY(tr_json_take(j, '"'));
    for (;;) {
        if (j->at == j->end) return tr_json_fail(j, "it ends within a string");
        if (j->text[j->at] == '"') break;
        TR_TRY(character(j, c, &n));
        if (!to) continue;
        if (have + n >= room) return tr_json_fail(j, "a text that is too long");
        memcpy(to + have, c, n);
        have += n;
    }
    j->at++;
    if (to) to[have] = 0;
out:
    return st;
}

tr_status tr_json_string(tr_json *j, char *to, size_t room)
{
    return string(j, to, room);
}

tr_status tr_json_skip_string(tr_json *j)
{
    return string(j, NULL, 0);
}

tr_status tr_json_count(tr_json *j, uint64_t *out)
{
    skip_space(j);
    const size_t begin = j->at;
    *out = 0;
    for (; j->at < j->end && j->text[j->at] >= '0' && j->text[j->at] <= '9'; j->at++) {
        const uint64_t digit = (uint64_t)(j->text[j->at] - '0');
        if (*out > ((uint64_t)INT64_MAX - digit) / 10)
            return tr_json_fail(j, "a number beyond 63 bits");
        *out = 10 * *out + digit;
    }
    if (j->at == begin) return tr_json_fail(j, "expected a whole number, 0 or more");
    return TR_OK;
}
