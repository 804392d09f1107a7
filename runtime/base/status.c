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

/* Whether the text holds the last one; who adds to it may have cut it. */
static bool holds_last(const char *text)
{
    char head[201]; /* no cut leaves less */
    snprintf(head, sizeof head, "%.200s", last.text);
    return strstr(text, head) != NULL;
}

tr_status tr_fail_at(const char *file, int line, tr_status st, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT]; /* the arguments may point into the record */
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!holds_last(text)) last.hint = TR_HINT_NONE, last.hearsay = false;
    memcpy(last.text, text, sizeof text);
    last.status = st;
    last.file = file;
    last.line = line;
    return st;
}

tr_status tr_fail_hint(tr_status st, tr_hint hint)
{
    last.hint = hint;
    return st;
}

tr_status tr_fail_hearsay(tr_status st)
{
    last.hearsay = true;
    return st;
}

const tr_error *tr_last_error(void)
{
    return &last;
}

void tr_set_error(const tr_error *e)
{
    if (e != &last) last = *e;
}
