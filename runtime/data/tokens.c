/* Long sequences of tokens as samples: a text's bytes, or numbers of tokens in a file, cut into windows. A window's
 * inputs are T tokens, its labels the same tokens one on, which the next window's inputs go on from.
 *
 * Tokens lie one after the other from some byte of the file on: all of a text; of llm.c's files (karpathy/llm.c,
 * dev/data) behind a header of 256 int32: magic, version, count; of NPY files a flat array; else the whole file, of a type
 * that the config says.
 *
 * Without documents window w begins at token w * stride, and what is left at the end makes none. With a separator a
 * document begins with it, or with the file, and goes up to the next one, which is its last label: so every token but the
 * last is an input once, whether separators are written before documents or behind them. A document is cut into pieces
 * of T; the rest of the last one is filled up with separators, whose labels do not count. */
#include "runtime/data/source.h"

#include <inttypes.h>
#include <string.h>

/* ---- Files ----------------------------------------------------------------------------------- */

enum { HEADER = 256 * 4 };

static uint32_t little(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* *known: it is such a file. */
static tr_status parse_llmc(const char *path, const uint8_t *bytes, size_t nbytes, tr_header *h,
                            bool *known)
{
    static const struct {
        uint32_t magic, version;
        tr_elem elem;
    } kinds[] = {{20240520, 1, TR_ELEM_U16}, {20240801, 7, TR_ELEM_U32}};
    *known = false;
    for (size_t i = 0; nbytes >= HEADER && i < TR_COUNT(kinds); i++) {
        if (little(bytes) != kinds[i].magic) continue;
        if (little(bytes + 4) != kinds[i].version)
            return TR_FAIL(TR_DATA,
                           "%s: byte 4: version %" PRIu32 " of llm.c's token files, expected "
                           "%" PRIu32 " (for magic %" PRIu32 ")",
                           path, little(bytes + 4), kinds[i].version, kinds[i].magic);
        *known = true;
        *h = (tr_header){
            .elem = kinds[i].elem, .ndim = 1, .dims = {little(bytes + 8)}, .offset = HEADER};
    }
    return TR_OK;
}

static tr_status check_npy(const char *path, const tr_header *h)
{
    if (h->ndim == 1 && !h->fortran &&
        (h->elem == TR_ELEM_U8 || h->elem == TR_ELEM_U16 || h->elem == TR_ELEM_U32))
        return TR_OK;
    return TR_FAIL(TR_DATA,
                   "%s: an array of %d dimensions of %s, expected tokens: one dimension of uint8, "
                   "uint16 or uint32",
                   path, h->ndim, tr_elem_name(h->elem));
}

tr_status tr_tokens_parse(const char *path, const uint8_t *bytes, size_t nbytes, uint64_t size,
                          int type, tr_header *h)
{
    static const tr_elem elems[] = {[TR_TOKENS_AUTO] = TR_ELEM_U16,
                                    [TR_TOKENS_U8] = TR_ELEM_U8,
                                    [TR_TOKENS_U16] = TR_ELEM_U16,
                                    [TR_TOKENS_U32] = TR_ELEM_U32};
    const size_t each = tr_elem_size(elems[type]);
    bool known = false;
    tr_status st = TR_OK;
    if (nbytes >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0) {
        TR_TRY(tr_npy_parse(path, bytes, nbytes, h));
        TR_TRY(check_npy(path, h));
        known = true;
    } else {
        TR_TRY(parse_llmc(path, bytes, nbytes, h, &known));
    }
    TR_NEED(!known || type == TR_TOKENS_AUTO || h->elem == elems[type], TR_DATA,
            "%s: its tokens are %s by its header, expected %s, as dtype says", path,
            tr_elem_name(h->elem), tr_elem_name(elems[type]));
    if (known) goto out;
    TR_NEED(size % each == 0, TR_DATA,
            "%s: has %" PRIu64 " bytes, expected a multiple of %zu: tokens of type %s (dtype)",
            path, size, each, tr_elem_name(elems[type]));
    *h = (tr_header){.elem = elems[type], .ndim = 1, .dims = {size / each}};
out:
    return st;
}

/* Its tokens as an array of samples of one number each. type -1: a text. */
static tr_status open_flat(const char *path, int type, uint64_t *offset, tr_array **out)
{
    tr_status st = TR_OK;
    tr_data_file file = {.fd = -1};
    tr_header h = {.elem = TR_ELEM_U8, .ndim = 1};
    uint8_t *head = NULL;
    TR_TRY(tr_data_file_open(path, &file));
    TR_NEED(file.size > 0, TR_DATA, "%s: is empty", path);
    h.dims[0] = file.size;
    if (type >= 0) {
        const size_t n = file.size < TR_NPY_HEADER ? (size_t)file.size : TR_NPY_HEADER;
        TR_HAVE(head = tr_alloc(TR_MEM_OTHER, n, 1));
        TR_TRY(tr_data_file_read(&file, 0, head, n));
        TR_TRY(tr_tokens_parse(path, head, n, file.size, type, &h));
    }
    *offset = h.offset;
    TR_TRY(tr_header_open(&file, path, &h, out));
out:
    tr_free(head);
    tr_data_file_close(&file);
    return st;
}

tr_status tr_tokens_count(const char *path, int type, uint64_t *tokens, uint64_t *most)
{
    enum { BLOCK = 1 << 16 };
    tr_status st = TR_OK;
    tr_array *a = NULL;
    char *block = NULL;
    uint64_t offset;
    TR_TRY(open_flat(path, type, &offset, &a));
    TR_HAVE(block = tr_alloc(TR_MEM_OTHER, BLOCK, a->nbytes));
    *tokens = a->samples;
    *most = 0;
    for (uint64_t i = 0; i < a->samples; i += BLOCK) {
        const uint64_t n = a->samples - i < BLOCK ? a->samples - i : BLOCK;
        TR_TRY(a->read(a, i, n, block));
        for (size_t k = 0; k < n; k++) {
            const double v = tr_elem_value(a->elem, block, k);
            if (v > (double)*most) *most = (uint64_t)v;
        }
    }
out:
    tr_array_close(a);
    tr_free(block);
    return st;
}

bool tr_tokens_known(const char *path)
{
    tr_data_file file = {.fd = -1};
    uint8_t head[HEADER];
    tr_header h;
    bool known = false;
    if (tr_data_file_open(path, &file) == TR_OK && file.size >= HEADER &&
        tr_data_file_read(&file, 0, head, HEADER) == TR_OK &&
        parse_llmc(path, head, HEADER, &h, &known) != TR_OK)
        known = true; /* of another version */
    tr_data_file_close(&file);
    return known;
}

/* ---- Windows --------------------------------------------------------------------------------- */

/* What the arrays of one source share. */
typedef struct {
    tr_array *flat;
    int users;
    uint64_t offset; /* of the first token in the file */
    size_t T;
    uint64_t stride;
    /* With documents: pieces, and how many inputs each has. */
    uint64_t *begin;
    uint32_t *count;
    size_t index; /* bytes of both */
    bool counted; /* by one of the arrays */
    int64_t separator;
    int32_t ignore;
} stream;

enum { INPUTS, LABELS, LENGTHS };

typedef struct {
    tr_array base;
    stream *s;
    int what;
} windows;

static uint64_t begin_of(const stream *s, uint64_t i)
{
    return s->begin ? s->begin[i] : i * s->stride;
}

/* Tokens [first, first + n). */
static tr_status read_flat(const stream *s, uint64_t first, uint64_t n, void *to)
{
    tr_array *a = s->flat;
    if (!a->held) return a->read(a, first, n, to);
    memcpy(to, (const char *)a->held + first * a->nbytes, (size_t)n * a->nbytes);
    return TR_OK;
}

/* Inputs of a piece, and separators behind them. */
static tr_status read_inputs(const windows *w, uint64_t i, char *to)
{
    const stream *s = w->s;
    const size_t n = s->begin ? s->count[i] : s->T, each = s->flat->nbytes;
    const uint32_t pad = (uint32_t)s->separator;
    const uint16_t pad16 = (uint16_t)pad;
    const uint8_t pad8 = (uint8_t)pad;
    const void *from = each == 4 ? (const void *)&pad : each == 2 ? (const void *)&pad16 : &pad8;
    for (size_t k = n; k < s->T; k++) memcpy(to + k * each, from, each);
    return read_flat(s, begin_of(s, i), n, to);
}

/* Labels of a piece as int32, and such that do not count behind them; without pieces as they are in the file. */
static tr_status read_labels(const windows *w, uint64_t i, char *to)
{
    const stream *s = w->s;
    const size_t n = s->begin ? s->count[i] : s->T;
    int32_t *labels = (int32_t *)(void *)to;
    const tr_status st = read_flat(s, begin_of(s, i) + 1, n, to);
    if (!s->begin || st != TR_OK) return st;
    /* from the end, for a label takes as many bytes as a token, or more */
    for (size_t k = s->T; k-- > 0;) {
        if (k >= n) {
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
    const stream *s = w->s;
    tr_status st = TR_OK;
    char *at = to;
    for (uint64_t i = first; i < first + n && st == TR_OK; i++, at += a->nbytes) {
        if (w->what == LENGTHS)
            *(int32_t *)(void *)at = (int32_t)(s->begin ? s->count[i] : s->T);
        else
            st = (w->what == LABELS ? read_labels : read_inputs)(w, i, at);
    }
    return st;
}

static int64_t windows_rows(const tr_array *a, uint64_t i)
{
    const stream *s = ((const windows *)a)->s;
    return s->begin ? s->count[i] : (int64_t)s->T;
}

static void windows_use(tr_array *a, uint64_t i)
{
    (void)a, (void)i;
}

/* The file, where it fits, and where documents begin: once, for all arrays. */
static tr_status windows_keep(tr_array *a, uint64_t budget, size_t *cache)
{
    stream *s = ((windows *)a)->s;
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
    snprintf(buf, size, "%s: window %" PRIu64 " (from byte %" PRIu64 ", token %" PRIu64 ")",
             a->name, i, w->s->offset + at * w->s->flat->nbytes, at);
}

static void windows_release(tr_array *a)
{
    (void)a; /* with the last of the arrays */
}

static void close_stream(stream *s)
{
    if (!s || --s->users > 0) return;
    tr_array_close(s->flat);
    tr_free(s->begin);
    tr_free(s->count);
    tr_free(s);
}

static void windows_fini(tr_array *a)
{
    close_stream(((windows *)a)->s);
}

static tr_status open_windows(stream *s, uint64_t samples, int what, const char *name,
                              tr_array **out)
{
    const tr_elem elem =
        what == LENGTHS || (what == LABELS && s->begin) ? TR_ELEM_I32 : s->flat->elem;
    const uint64_t dims[2] = {samples, what == LENGTHS ? 1 : s->T};
    tr_status st = TR_OK;
    windows *w = TR_NEW(TR_MEM_OTHER, windows);
    TR_HAVE(w);
    w->s = s;
    s->users++;
    w->what = what;
    w->base.fini = windows_fini;
    TR_HAVE(w->base.name = tr_strdup(name));
    TR_TRY(tr_array_shape(&w->base, elem, 2, dims));
    w->base.lazy = true;
    w->base.follows = true;
    w->base.overlap = s->begin ? 0 : (s->T - 1) / s->stride;
    w->base.unit = w->base.nbytes;
    w->base.read = read_windows;
    w->base.use = windows_use;
    w->base.keep = windows_keep;
    w->base.where = windows_where;
    w->base.rows = s->begin ? windows_rows : NULL;
    w->base.release = windows_release;
    *out = &w->base;
out:
    if (st != TR_OK && w) tr_array_close(&w->base);
    return st;
}

/* ---- Documents ------------------------------------------------------------------------------- */

typedef struct {
    stream *s;
    size_t room;
    uint64_t pieces;
} cutting;

static tr_status set_room(cutting *c, size_t room)
{
    tr_status st = TR_OK;
    stream *s = c->s;
    uint64_t *begin = tr_realloc(TR_MEM_DATA, s->begin, room, sizeof *begin);
    TR_HAVE(begin);
    s->begin = begin;
    uint32_t *count = tr_realloc(TR_MEM_DATA, s->count, room, sizeof *count);
    TR_HAVE(count);
    s->count = count;
    c->room = room;
    s->index = room * (sizeof *begin + sizeof *count);
out:
    return st;
}

/* Inputs [from, to) of one document, whose next token is a separator or the file's last. */
static tr_status add_document(cutting *c, uint64_t from, uint64_t to, bool bare)
{
    tr_status st = TR_OK;
    if (bare && to - from == 1) return TR_OK; /* a separator alone says nothing */
    for (uint64_t at = from; at < to; at += c->s->T) {
        const uint64_t left = to - at;
        if (c->pieces == c->room) TR_TRY(set_room(c, c->room ? 2 * c->room : 1024));
        c->s->begin[c->pieces] = at;
        c->s->count[c->pieces++] = (uint32_t)(left < c->s->T ? left : c->s->T);
    }
out:
    return st;
}

/* One pass over all tokens. */
static tr_status cut_documents(stream *s, uint64_t *pieces)
{
    enum { BLOCK = 1 << 16 };
    const uint64_t tokens = s->flat->samples;
    cutting c = {.s = s};
    uint64_t from = 0;
    bool bare = false;
    tr_status st = TR_OK;
    char *block = tr_alloc(TR_MEM_OTHER, BLOCK, s->flat->nbytes);
    TR_HAVE(block);
    for (uint64_t at = 0; at < tokens; at += BLOCK) {
        const uint64_t n = tokens - at < BLOCK ? tokens - at : BLOCK;
        TR_TRY(read_flat(s, at, n, block));
        for (uint64_t k = 0; k < n; k++) {
            if (tr_elem_value(s->flat->elem, block, (size_t)k) != (double)s->separator) continue;
            if (at + k > from) TR_TRY(add_document(&c, from, at + k, bare));
            from = at + k;
            bare = true;
        }
    }
    if (tokens - 1 > from) TR_TRY(add_document(&c, from, tokens - 1, false));
    if (c.pieces > 0) TR_TRY(set_room(&c, c.pieces)); /* no more than there are */
    *pieces = c.pieces;
out:
    tr_free(block);
    return st;
}

/* ---- The source ------------------------------------------------------------------------------ */

static tr_status fail(const tr_opening *o, const char *key, const char *text)
{
    return TR_FAIL(TR_CONFIG, "%s: %s.%s: %s", o->c->file ? o->c->file : "config", o->block, key,
                   text);
}

/* The model reads a sequence of ids, and may read how many of them count. */
static tr_status check_model(const tr_opening *o)
{
    const tr_model *m = o->m;
    const bool labels = o->unlabeled || (m->labels && tr_is_sequence(m) &&
                                         m->target_dims[0] == m->inputs[0].dims[0]);
    if (m->inputs[0].ids == 0 || m->inputs[0].ndim != 1)
        return fail(o, "format",
                    "windows of tokens are for a model whose first input an embedding reads, "
                    "(positions)");
    if (m->ninputs > 2 ||
        (m->ninputs == 2 && (m->inputs[1].ndim != 1 || m->inputs[1].dims[0] != 1)))
        return fail(o, "format",
                    "windows of tokens are for a model with one input, or a second one of (1), how "
                    "many of the tokens count");
    if (!labels)
        return fail(o, "format",
                    "windows of tokens are for a model with a class for each position, "
                    "(positions, classes), and cross_entropy of labels");
    if (o->s->documents >= 0 && !o->unlabeled && o->c->model.loss.ignore_index == TR_NO_LABEL)
        return fail(o, "documents",
                    "short documents are filled up with labels that do not count: set "
                    "model.loss.cross_entropy.ignore_index");
    return TR_OK;
}

static tr_status cut(const tr_opening *o, stream *s, const char *path, uint64_t *samples)
{
    const uint64_t tokens = s->flat->samples, need = s->T + !o->unlabeled;
    tr_status st = TR_OK;
    if (o->s->documents >= 0) {
        s->separator = o->s->documents;
        s->ignore = o->unlabeled ? 0 : (int32_t)o->c->model.loss.ignore_index;
        TR_TRY(cut_documents(s, samples));
        TR_NEED(*samples > 0, TR_DATA, "%s: has %" PRIu64 " tokens and no document of two", path,
                tokens);
        goto out;
    }
    TR_NEED(tokens >= need, TR_DATA,
            "%s: has %" PRIu64 " tokens, expected at least %" PRIu64 ", one window%s", path, tokens,
            need, o->unlabeled ? "" : " and the token behind it");
    *samples = (tokens - need) / s->stride + 1;
out:
    return st;
}

tr_status tr_tokens_open(const tr_opening *o, int type, tr_array **inputs, tr_array **targets)
{
    tr_status st = TR_OK;
    uint64_t samples = 0;
    char *path = NULL;
    stream *s = NULL;
    TR_TRY(check_model(o));
    TR_HAVE(path = tr_config_path(o->c, o->s->path));
    TR_HAVE(s = TR_NEW(TR_MEM_OTHER, stream));
    s->users = 1;
    s->T = (size_t)o->m->inputs[0].dims[0];
    s->stride = o->s->stride > 0 ? (uint64_t)o->s->stride : s->T;
    TR_TRY(open_flat(path, type, &s->offset, &s->flat));
    TR_TRY(cut(o, s, path, &samples));
    TR_TRY(open_windows(s, samples, INPUTS, path, &inputs[0]));
    if (o->m->ninputs > 1) TR_TRY(open_windows(s, samples, LENGTHS, path, &inputs[1]));
    if (!o->unlabeled) TR_TRY(open_windows(s, samples, LABELS, path, targets));
out:
    close_stream(s);
    tr_free(path);
    return st;
}
