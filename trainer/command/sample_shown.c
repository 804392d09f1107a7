/* What a model makes, on standard output. One prompt's text goes there as it comes; those of later
 * ones wait for it, each behind a line that names its prompt. Numbers of ids have blanks between
 * them. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/visible.h"
#include "trainer/command/sample.h"

typedef struct {
    char *text; /* not written yet */
    size_t count, cap;
    bool begun, ended;
} part;

struct tr_shown {
    const tr_sample_options *o;
    bool bytes, terminal;
    bool failed, left; /* a write did; for nobody reads any more */
    size_t at;         /* prompt whose text is written now */
    part *parts;
};

tr_status tr_shown_open(const tr_sample_options *o, bool bytes, tr_shown **out)
{
    tr_status st = TR_OK;
    tr_shown *s = TR_NEW(TR_MEM_OTHER, tr_shown);
    TR_HAVE(s);
    *s = (tr_shown){.o = o, .bytes = bytes, .terminal = isatty(STDOUT_FILENO)};
    TR_HAVE(s->parts = tr_alloc(TR_MEM_OTHER, o->nprompts, sizeof *s->parts));
    *out = s;
out:
    if (st != TR_OK) tr_shown_close(s);
    return st;
}

void tr_shown_close(tr_shown *s)
{
    if (!s) return;
    for (size_t i = 0; s->parts && i < s->o->nprompts; i++) tr_free(s->parts[i].text);
    tr_free(s->parts);
    tr_free(s);
}

static tr_status write_failed(tr_shown *s)
{
    s->failed = true;
    s->left = errno == EPIPE;
    return TR_FAIL(TR_IO, "standard output could not be written: %s", strerror(errno));
}

static void put_visible(const char *text, size_t n)
{
    char shown[TR_VISIBLE];
    for (size_t i = 0; i < n;) {
        if (text[i] == '\n') {
            putchar(text[i++]);
            continue;
        }
        i += tr_visible_next(text + i, n - i, shown);
        fputs(shown, stdout);
    }
}

/* Bytes at the end that may be the beginning of a character. */
static size_t incomplete(const char *text, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        const unsigned char c = (unsigned char)text[n - k];
        if (c < 0x80) return 0;
        if (c < 0xc0) continue; /* not the first of one */
        const size_t whole = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        return k < whole ? k : 0;
    }
    return 0;
}

/* A line before each text, where there are several. */
static void put_header(const tr_shown *s, size_t prompt)
{
    const tr_text *t = &s->o->prompts[prompt];
    if (s->o->nprompts == 1) return;
    if (prompt > 0) putchar('\n');
    fputs("==> ", stdout);
    for (size_t i = 0; i < t->nbytes && i < 60;) {
        char shown[TR_VISIBLE];
        i += tr_visible_next(t->text + i, t->nbytes - i, shown);
        fputs(shown, stdout);
    }
    fputs(t->nbytes > 60 ? "... <==\n" : " <==\n", stdout);
}

/* What there is of the prompt that is written now; all: also what may be less than a character. */
static tr_status put(tr_shown *s, bool all)
{
    part *p = &s->parts[s->at];
    const size_t keep = all || !s->bytes ? 0 : incomplete(p->text, p->count);
    const size_t n = p->count - keep;
    if (!p->begun) put_header(s, s->at);
    p->begun = true;
    if (s->bytes && s->terminal)
        put_visible(p->text, n);
    else if (n > 0)
        fwrite(p->text, 1, n, stdout);
    if (keep > 0) memmove(p->text, p->text + n, keep);
    p->count = keep;
    return fflush(stdout) == 0 && !ferror(stdout) ? TR_OK : write_failed(s);
}

static tr_status append(part *p, const char *text, size_t n)
{
    if (p->count + n > p->cap) {
        const size_t cap = 2 * (p->count + n) + 64;
        char *more = tr_realloc(TR_MEM_OTHER, p->text, cap, 1);
        if (!more) return tr_last_status();
        p->text = more;
        p->cap = cap;
    }
    memcpy(p->text + p->count, text, n);
    p->count += n;
    return TR_OK;
}

tr_status tr_shown_add(tr_shown *s, size_t prompt, int32_t id)
{
    part *p = &s->parts[prompt];
    char text[16] = {(char)(unsigned char)id};
    int n = 1;
    tr_status st = TR_OK;
    TR_NEED(!s->bytes || (id >= 0 && id < 256), TR_INTERNAL, "id %" PRId32 " is no byte", id);
    if (!s->bytes)
        n = snprintf(text, sizeof text, "%s%" PRId32, p->begun || p->count > 0 ? " " : "", id);
    TR_TRY(append(p, text, (size_t)n));
    if (prompt == s->at) st = put(s, false);
out:
    return st;
}

tr_status tr_shown_end(tr_shown *s, size_t prompt)
{
    tr_status st = TR_OK;
    s->parts[prompt].ended = true;
    while (s->at < s->o->nprompts && s->parts[s->at].ended) {
        TR_TRY(put(s, true));
        if (s->terminal || !s->bytes || s->o->nprompts > 1) putchar('\n');
        s->at++;
        if (s->at < s->o->nprompts && s->parts[s->at].count > 0) TR_TRY(put(s, false));
    }
out:
    return st;
}

tr_status tr_shown_flush(tr_shown *s)
{
    tr_status st = TR_OK;
    bool open = false;
    if (s->failed) return TR_OK; /* that was said */
    for (; s->at < s->o->nprompts; s->at++) {
        if (s->parts[s->at].count == 0 && !s->parts[s->at].begun) continue;
        TR_TRY(put(s, true));
        open = true;
    }
    if (open && (s->terminal || !s->bytes)) putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout)) st = write_failed(s);
out:
    return st;
}

bool tr_shown_left(const tr_shown *s)
{
    return s->left;
}
