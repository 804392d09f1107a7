/* Text from outside as it may be shown on a terminal: valid UTF-8 as it is; control characters (C0,
 * C1, DEL, newlines among them) and bytes that are no UTF-8 as \x1b. */
#ifndef TR_VISIBLE_H
#define TR_VISIBLE_H

#include "runtime/base/base.h"

/* Bytes of the well-formed UTF-8 character at `at` (RFC 3629, table 3-7 of the Unicode standard)
 * with `left` bytes there, or 0. */
size_t tr_utf8_length(const void *at, size_t left);
/* Of `from`, with `n` bytes, as many whole characters as `size` has room for, and a NUL; returns
 * the length. */
size_t tr_visible(const char *from, size_t n, char *to, size_t size);
/* The character at `from`, of `left` > 0 bytes, into `shown`; the bytes that it took. */
enum { TR_VISIBLE = 5 };
size_t tr_visible_next(const char *from, size_t left, char shown[TR_VISIBLE]);
/* Characters of it: columns of a terminal, but for wide and combining ones. */
size_t tr_utf8_count(const char *text);
/* The first `most` characters; of what has more, dots at the end stand for the rest. Returns buf,
 * which has room for TR_BRIEF(most). */
#define TR_BRIEF(most) (4 * (most) + 4)
const char *tr_utf8_brief(const char *text, size_t most, char *buf);
/* With spaces before it, or behind where `width` is negative, up to so many characters. */
void tr_write_cell(FILE *to, int width, const char *text);
/* Local. A stream whose text goes on to `to` like this, but for newlines. fclose flushes `to` and
 * leaves it open, and fails where it could not be written. NULL with a record: memory is out. */
FILE *tr_visible_stream(FILE *to);

#endif
