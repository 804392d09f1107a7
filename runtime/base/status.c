/* Status texts and the thread's error record. */
#include "runtime/base/base.h"

#include <string.h>

static _Thread_local tr_error last = {.file = ""};

const char *tr_status_text(tr_status st)
{
    switch (st) {
#define X(name, text, exit_code)                                                                   \
    case TR_##name:                                                                                \
        return text;
        TR_STATUS_TABLE(X)
#undef X
    }
    return "unknown status";
}

int tr_status_exit_code(tr_status st)
{
    switch (st) {
#define X(name, text, exit_code)                                                                   \
    case TR_##name:                                                                                \
        return exit_code;
        TR_STATUS_TABLE(X)
#undef X
    }
    return 1;
}

tr_status tr_fail_at(const char *file, int line, tr_status st, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT]; /* the arguments may point into the record */
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    last = (tr_error){.status = st, .file = file, .line = line};
    memcpy(last.text, text, sizeof text);
    return st;
}

tr_status tr_fail_hint(tr_status st, tr_hint hint)
{
    last.hint = hint;
    return last.status = st;
}

tr_status tr_fail_hearsay(tr_status st)
{
    last.hearsay = true;
    return last.status = st;
}

/* Words and what ends them at a byte of the text: what stands behind gives way to them; at the
 * text's end, what stands before them, but the place. Returns their length. */
static size_t insert(size_t at, const char *fmt, va_list args, const char *end)
{
    char words[TR_ERROR_TEXT], rest[TR_ERROR_TEXT];
    const size_t most = sizeof last.text - 1, place = (size_t)last.place;
    vsnprintf(words, sizeof words - strlen(end), fmt,
              args); /* the arguments may point into the record */
    strcat(words, end);
    const size_t n = strlen(words);
    strcpy(rest, last.text + at);
    if (!*rest && at + n > most) at = most - n > place ? most - n : place;
    snprintf(last.text + at, sizeof last.text - at, "%s%s", words, rest);
    return n;
}

tr_status tr_fail_place(tr_status st, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    last.place = (int)insert(0, fmt, args, ": ");
    va_end(args);
    return last.status = st;
}

tr_status tr_fail_before(tr_status st, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    insert((size_t)last.place, fmt, args, "");
    va_end(args);
    return last.status = st;
}

tr_status tr_fail_behind(tr_status st, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    insert(strlen(last.text), fmt, args, "");
    va_end(args);
    return last.status = st;
}

const tr_error *tr_last_error(void)
{
    return &last;
}

void tr_set_error(const tr_error *e)
{
    if (e != &last) last = *e;
}
