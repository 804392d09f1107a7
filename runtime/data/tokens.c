/* Long sequences of tokens as samples: a text's bytes, or numbers of tokens in a file
 * (tokens_file.c), cut into windows. A window's inputs are T tokens, its labels the same tokens one
 * on, which the next window's inputs go on from.
 *
 * Without documents window w begins at token w * stride, and what is left at the end makes none.
 * What is evaluated is cut anew: windows follow each other, the last one is shorter, and where they
 * overlap, a label counts in the first that has it. Of documents (documents.c) each is cut into
 * pieces of T. The rest of a shorter piece is filled up with separators, of a shorter window with
 * id 0, whose labels do not count. */
#include "runtime/data/tokens.h"

#include <inttypes.h>
#include <string.h>

/* ---- Windows --------------------------------------------------------------------------------- */

enum { INPUTS, LABELS, LENGTHS };

typedef struct {
    tr_array base;
    tr_token_stream *s;
    int what;
} windows;

static uint64_t begin_of(const tr_token_stream *s, uint64_t i)
{
    return s->begin ? s->begin[i] : s->first + i * s->stride;
}

/* Inputs of a window. */
static size_t count_of(const tr_token_stream *s, uint64_t i)
{
    if (s->begin) return s->count[i];
    const uint64_t left = s->end - begin_of(s, i);
    return left < s->T ? (size_t)left : s->T;
}

/* Labels in front that the window before has, too. */
static size_t seen_of(const tr_token_stream *s, uint64_t i)
{
    return s->once && i > 0 && s->stride < s->T ? s->T - (size_t)s->stride : 0;
}

/* Of an array of this stream. Labels that may not count have a type that can say so. */
static tr_elem elem_of(const tr_token_stream *s, int what)
{
    return what == LENGTHS || (what == LABELS && s->fills) ? TR_ELEM_I32 : s->flat->elem;
}

/* Inputs of a window, and what fills it up behind them. */
static tr_status read_inputs(const windows *w, uint64_t i, char *to)
{
    const tr_token_stream *s = w->s;
    const size_t n = count_of(s, i), each = s->flat->nbytes;
    const uint32_t pad = (uint32_t)s->separator;
    const uint16_t pad16 = (uint16_t)pad;
    const uint8_t pad8 = (uint8_t)pad;
    const void *from = each == 4 ? (const void *)&pad : each == 2 ? (const void *)&pad16 : &pad8;
    for (size_t k = n; k < s->T; k++) memcpy(to + k * each, from, each);
    return tr_token_stream_read(s, begin_of(s, i), n, to);
}

/* Labels as int32, where some may not count; else as they are in the file. */
static tr_status read_labels(const windows *w, uint64_t i, char *to)
{
    const tr_token_stream *s = w->s;
    const size_t n = count_of(s, i), seen = seen_of(s, i);
    int32_t *labels = (int32_t *)(void *)to;
    const tr_status st = tr_token_stream_read(s, begin_of(s, i) + 1, n, to);
    if (!s->fills || st != TR_OK) return st;
    /* from the end, for a label takes as many bytes as a token, or more */
    for (size_t k = s->T; k-- > 0;) {
        if (k >= n || k < seen) {
            labels[k] = s->ignore;
            continue;
        }
        const double v = tr_elem_value(s->flat->elem, to, k);
        labels[k] = v <= INT32_MAX ? (int32_t)v : INT32_MAX;
    }
    return TR_OK;
}

static tr_status read_windows(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    const windows *w = (const windows *)a;
    const tr_token_stream *s = w->s;
    tr_status st = TR_OK;
    char *at = to;
    for (uint64_t i = first; i < first + n && st == TR_OK; i++, at += a->nbytes) {
        if (w->what == LENGTHS)
            *(int32_t *)(void *)at = (int32_t)count_of(s, i);
        else
            st = (w->what == LABELS ? read_labels : read_inputs)(w, i, at);
    }
    return st;
}

static int64_t windows_rows(const tr_array *a, uint64_t i)
{
    return (int64_t)count_of(((const windows *)a)->s, i);
}

/* Of all arrays of a stream; the first one cuts. */
static void windows_once(tr_array *a, uint64_t first, uint64_t end, uint64_t stride)
{
    tr_token_stream *s = ((windows *)a)->s;
    if (!s->once) {
        s->first = first * s->stride;
        if (end < s->windows) s->end = (end - 1) * s->stride + s->T;
        if (stride > 0) s->stride = stride;
        const uint64_t inputs = s->end - s->first, most = s->T > s->stride ? s->T : s->stride;
        s->windows = inputs > most ? (inputs - most + s->stride - 1) / s->stride + 1 : 1;
        s->once = true;
    }
    a->samples = s->windows;
}

static void windows_use(tr_array *a, uint64_t i)
{
    (void)a, (void)i;
}

/* The file, where it fits, and where documents begin: once, for all arrays. */
static tr_status windows_keep(tr_array *a, uint64_t budget, size_t *cache)
{
    tr_token_stream *s = ((windows *)a)->s;
    const uint64_t nbytes = s->flat->samples * s->flat->nbytes;
    tr_status st = TR_OK;
    *cache = s->counted ? 0 : s->index;
    s->counted = true;
    if (!s->flat->held && nbytes <= budget) {
        TR_TRY(tr_array_hold(s->flat));
        *cache += (size_t)nbytes;
    }
    a->kept = s->flat->held != NULL;
out:
    return st;
}

static void windows_where(const tr_array *a, uint64_t i, char *buf, size_t size)
{
    const windows *w = (const windows *)a;
    const uint64_t at = begin_of(w->s, i) + (w->what == LABELS);
    if (w->s->files > 1) {
        const size_t n = (size_t)snprintf(buf, size, "window %" PRIu64 ", from ", i);
        if (n < size) w->s->flat->where(w->s->flat, at, buf + n, size - n);
        return;
    }
    snprintf(buf, size, "%s: window %" PRIu64 " (from byte %" PRIu64 ", token %" PRIu64 ")",
             a->name, i, w->s->offset + at * w->s->flat->nbytes, at);
}

static void windows_release(tr_array *a)
{
    (void)a; /* with the last of the arrays */
}

static void close_stream(tr_token_stream *s)
{
    if (!s || --s->users > 0) return;
    tr_array_close(s->flat);
    tr_free(s->ends);
    tr_free(s->begin);
    tr_free(s->count);
    tr_free(s);
}

static void windows_fini(tr_array *a)
{
    close_stream(((windows *)a)->s);
}

static tr_status open_windows(tr_token_stream *s, int what, const char *name, tr_array **out)
{
    const uint64_t dims[2] = {s->windows, what == LENGTHS ? 1 : s->T};
    tr_status st = TR_OK;
    windows *w = TR_NEW(TR_MEM_OTHER, windows);
    TR_HAVE(w);
    w->s = s;
    s->users++;
    w->what = what;
    w->base.fini = windows_fini;
    TR_HAVE(w->base.name = tr_strdup(name));
    TR_TRY(tr_array_shape(&w->base, elem_of(s, what), 2, dims));
    w->base.lazy = true;
    w->base.follows = true;
    w->base.overlap = s->begin ? 0 : (s->T - 1) / s->stride;
    w->base.unit = w->base.nbytes;
    w->base.read = read_windows;
    w->base.use = windows_use;
    w->base.keep = windows_keep;
    w->base.where = windows_where;
    w->base.rows = s->begin ? windows_rows : NULL;
    w->base.once = s->fills && !s->begin ? windows_once : NULL;
    w->base.release = windows_release;
    *out = &w->base;
out:
    if (st != TR_OK && w) tr_array_close(&w->base);
    return st;
}

/* ---- The source ------------------------------------------------------------------------------ */

/* The model reads a sequence of ids, and may read how many of them count. */
static tr_status check_model(const tr_opening *o)
{
    const tr_model *m = o->m;
    const bool labels = o->unlabeled || (m->labels && tr_is_sequence(m) &&
                                         m->target_dims[0] == m->inputs[0].dims[0]);
    if (m->inputs[0].ids == 0 || m->inputs[0].ndim != 1)
        return tr_opening_fail(
            o, "format",
            "windows of tokens are for a model whose first input an embedding reads, "
            "(positions)");
    if (m->ninputs > 2 ||
        (m->ninputs == 2 && (m->inputs[1].ndim != 1 || m->inputs[1].dims[0] != 1)))
        return tr_opening_fail(
            o, "format",
            "windows of tokens are for a model with one input, or a second one of (1), how "
            "many of the tokens count");
    if (!labels)
        return tr_opening_fail(o, "format",
                               "windows of tokens are for a model with a class for each position, "
                               "(positions, classes), and cross_entropy of labels");
    if (o->s->documents >= 0 && !o->unlabeled && o->c->model.loss.ignore_index == TR_NO_LABEL)
        return tr_opening_fail(o, "documents",
                               "short documents are filled up with labels that do not count: set "
                               "model.loss.cross_entropy.ignore_index");
    return TR_OK;
}

/* Documents are filled up with it: the file's type has to hold it, and the embedding to know it. */
static tr_status check_separator(const tr_opening *o, const tr_token_stream *s)
{
    const int64_t most = ((int64_t)1 << 8 * s->flat->nbytes) - 1, rows = o->m->inputs[0].ids;
    if (s->separator > most)
        return tr_opening_fail(o, "documents",
                               "found %" PRId64 ", expected an id from 0 to %" PRId64
                               ": %s has tokens of %s",
                               s->separator, most, s->flat->name, tr_elem_name(s->flat->elem));
    if (s->separator >= rows)
        return tr_opening_fail(o, "documents",
                               "found %" PRId64 ", expected an id from 0 to %" PRId64
                               ": the embedding that reads it has %" PRId64 " rows",
                               s->separator, rows - 1, rows);
    return TR_OK;
}

/* Once a program, however often it is opened. */
static void warn_of_separator(const tr_opening *o, const tr_token_stream *s)
{
    char once[512];
    snprintf(once, sizeof once, "documents: %.480s", s->flat->name);
    tr_log_once(TR_LOG_WARN, once,
                "%s.documents: %" PRId64 " does not occur in %s: %s one document", o->block,
                s->separator, s->flat->name, s->files == 1 ? "it is" : "each file is");
}

static tr_status cut(const tr_opening *o, tr_token_stream *s, const char *path)
{
    const uint64_t tokens = s->flat->samples, need = (o->evaluated ? 1 : s->T) + !o->unlabeled;
    tr_status st = TR_OK;
    if (o->s->documents >= 0) {
        uint64_t separators;
        TR_TRY(check_separator(o, s));
        TR_TRY(tr_documents_cut(s, &s->windows, &separators));
        if (separators == 0) warn_of_separator(o, s);
        TR_NEED(s->windows > 0, TR_DATA, "%s: has %" PRIu64 " tokens and no document of two", path,
                tokens);
        goto out;
    }
    TR_NEED(tokens >= need, TR_DATA,
            "%s: has %" PRIu64 " tokens, expected at least %" PRIu64 ", one window%s", path, tokens,
            need, o->unlabeled ? "" : " and the token behind it");
    s->end = tokens - !o->unlabeled;
    s->windows = s->end > s->T ? (s->end - s->T) / s->stride + 1 : 1;
out:
    return st;
}

tr_status tr_tokens_open(const tr_opening *o, int type, tr_array **inputs, tr_array **targets)
{
    tr_status st = TR_OK;
    tr_token_paths paths = {0};
    tr_token_stream *s = NULL;
    TR_TRY(check_model(o));
    TR_TRY(tr_token_paths_find(o, type >= 0, &paths));
    TR_HAVE(s = TR_NEW(TR_MEM_OTHER, tr_token_stream));
    s->users = 1;
    s->T = (size_t)o->m->inputs[0].dims[0];
    s->stride = o->s->stride > 0 ? (uint64_t)o->s->stride : s->T;
    s->fills = o->s->documents >= 0 || o->evaluated;
    s->separator = o->s->documents >= 0 ? o->s->documents : 0;
    s->ignore = o->c->model.loss.ignore_index == TR_NO_LABEL
                    ? TR_FILLED_LABEL
                    : (int32_t)o->c->model.loss.ignore_index;
    s->files = paths.count;
    TR_HAVE(s->ends = tr_alloc(TR_MEM_OTHER, s->files, sizeof *s->ends));
    TR_TRY(tr_tokens_flat(paths.v, s->files, type, &s->offset, s->ends, &s->flat));
    const char *path = s->flat->name;
    TR_TRY(cut(o, s, path));
    TR_TRY(open_windows(s, INPUTS, path, &inputs[0]));
    if (o->m->ninputs > 1) TR_TRY(open_windows(s, LENGTHS, path, &inputs[1]));
    if (!o->unlabeled) TR_TRY(open_windows(s, LABELS, path, targets));
out:
    close_stream(s);
    tr_token_paths_free(&paths);
    return st;
}
