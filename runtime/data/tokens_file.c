/* Files of tokens, which lie one after the other from some byte of the file on: all of a text; of
 * llm.c's files (karpathy/llm.c, dev/data) behind a header of 256 int32: magic, version, count; of
 * NPY files a flat array; else the whole file, of a type that the config says. Several files count
 * as one, in the order given, those of a pattern by name. */
#include "runtime/data/tokens.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/file.h"
#include "runtime/config/files.h"
#include "runtime/data/csv.h"

enum { HEADER = 256 * 4 };

static uint32_t little(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static const struct {
    uint32_t magic, version;
    tr_elem elem;
} kinds[] = {{20240520, 1, TR_ELEM_U16}, {20240801, 7, TR_ELEM_U32}};

/* The header's numbers have a sign, of which nothing is made where the file has so many tokens. */
static tr_status check_count(const char *path, const uint8_t *bytes, uint64_t size, size_t each)
{
    const uint64_t count = little(bytes + 8), there = (size - HEADER) / each;
    if (count <= INT32_MAX || count <= there) return TR_OK;
    return TR_FAIL(TR_DATA,
                   "%s: byte 8: a count of %" PRId32 " tokens, which is not possible: behind the "
                   "header there are %" PRIu64,
                   path, (int32_t)count, there);
}

/* *known: it is such a file. */
static tr_status parse_llmc(const char *path, const uint8_t *bytes, size_t nbytes, uint64_t size,
                            tr_header *h, bool *known)
{
    tr_status st = TR_OK;
    *known = false;
    for (size_t i = 0; nbytes >= 4 && i < TR_COUNT(kinds); i++) {
        if (little(bytes) != kinds[i].magic) continue;
        TR_NEED(nbytes >= HEADER, TR_DATA,
                "%s: has %zu bytes and begins as llm.c's token files do, whose header has %d: it "
                "is cut short",
                path, nbytes, HEADER);
        if (little(bytes + 4) != kinds[i].version)
            return TR_FAIL(TR_DATA,
                           "%s: byte 4: version %" PRIu32 " of llm.c's token files, expected "
                           "%" PRIu32 " (for magic %" PRIu32 ")",
                           path, little(bytes + 4), kinds[i].version, kinds[i].magic);
        TR_TRY(check_count(path, bytes, size, tr_elem_size(kinds[i].elem)));
        *known = true;
        *h = (tr_header){
            .elem = kinds[i].elem, .ndim = 1, .dims = {little(bytes + 8)}, .offset = HEADER};
    }
out:
    return st;
}

/* Of a file that does not tell, nor the config: such a header but for its magic, where the version
 * is one of them, the count is what the size says, and the rest is 0. No tokens look so. */
static tr_status check_magic(const char *path, const uint8_t *bytes, size_t nbytes, uint64_t size)
{
    static const uint8_t zero[HEADER - 12];
    if (nbytes < HEADER || little(bytes + 8) == 0 || memcmp(bytes + 12, zero, sizeof zero) != 0)
        return TR_OK;
    for (size_t i = 0; i < TR_COUNT(kinds); i++)
        if (little(bytes + 4) == kinds[i].version &&
            size == HEADER + (uint64_t)little(bytes + 8) * tr_elem_size(kinds[i].elem))
            return TR_FAIL(TR_DATA,
                           "%s: byte 0: %" PRIu32 ", and behind it the header of llm.c's token "
                           "files, version %" PRIu32 " with a count of %" PRIu32 ": expected the "
                           "magic %" PRIu32 " (where it is no header: dtype: uint16)",
                           path, little(bytes), kinds[i].version, little(bytes + 8),
                           kinds[i].magic);
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

/* Numbers of `width` bytes that would be read as several of uint16: all of their upper halves are
 * small, and of those that are not 0 most lower ones larger than any of these. Of ids below 2^20;
 * numbers of 16 bits look so in a file of alternating ones alone. */
static bool is_wider(const uint8_t *bytes, size_t nbytes, uint64_t size, size_t width)
{
    enum { FEWEST = 32, SMALL = 16 };
    static const uint8_t zero[8];
    const size_t n = nbytes / width, halves = width / 2;
    uint32_t upper = 0;
    size_t larger = 0, some = 0;
    for (size_t i = 0; i < n * halves; i++) {
        const uint32_t v = (uint32_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
        if (i % halves > 0 && v > upper) upper = v;
    }
    for (size_t i = 0; i < n; i++) {
        const uint8_t *p = bytes + i * width;
        larger += (uint32_t)(p[0] | p[1] << 8) > upper;
        some += memcmp(p, zero, width) != 0;
    }
    return some >= FEWEST && size % width == 0 && upper < SMALL && 2 * larger > some;
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
        st = tr_npy_parse(bytes, nbytes, h);
        TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: ", path));
        TR_TRY(check_npy(path, h));
        known = true;
    } else {
        TR_TRY(parse_llmc(path, bytes, nbytes, size, h, &known));
    }
    TR_NEED(!known || type == TR_TOKENS_AUTO || h->elem == elems[type], TR_DATA,
            "%s: its tokens are %s by its header, expected %s, as dtype says", path,
            tr_elem_name(h->elem), tr_elem_name(elems[type]));
    if (known) goto out;
    if (type == TR_TOKENS_AUTO) TR_TRY(check_magic(path, bytes, nbytes, size));
    TR_NEED(size % each == 0, TR_DATA,
            "%s: has %" PRIu64 " bytes, expected a multiple of %zu: tokens of type %s (dtype)",
            path, size, each, tr_elem_name(elems[type]));
    *h = (tr_header){.elem = elems[type], .ndim = 1, .dims = {size / each}};
out:
    return st;
}

/* What is looked at to know what it is: the beginning. */
static tr_status read_head(const tr_data_file *file, uint8_t **head, size_t *n)
{
    *n = file->size < TR_NPY_HEADER ? (size_t)file->size : TR_NPY_HEADER;
    *head = tr_alloc(TR_MEM_OTHER, *n, 1);
    return *head ? tr_data_file_read(file, 0, *head, *n) : tr_last_status();
}

/* What numbers look like all over a file: its beginning, middle and end, each from a multiple of 8
 * bytes on. */
static tr_status read_pieces(const tr_data_file *file, uint8_t **bytes, size_t *n)
{
    enum { PIECES = 3, PIECE = 1 << 14 };
    tr_status st = TR_OK;
    const bool whole = file->size <= PIECES * PIECE;
    const size_t each = whole ? (size_t)file->size : PIECE;
    *n = whole ? each : PIECES * PIECE;
    TR_HAVE(*bytes = tr_alloc(TR_MEM_OTHER, *n, 1));
    for (size_t i = 0; st == TR_OK && i * each < *n; i++)
        st = tr_data_file_read(file, i * (file->size - each) / (PIECES - 1) / 8 * 8,
                               *bytes + i * each, each);
out:
    return st;
}

/* Of a file that does not tell, nor the config: uint16, where it does not look like others. */
static tr_status check_width(const char *path, const tr_data_file *file)
{
    uint8_t *bytes = NULL;
    size_t n;
    tr_status st;
    TR_TRY(read_pieces(file, &bytes, &n));
    TR_NEED(!is_wider(bytes, n, file->size, 8), TR_DATA,
            "%s: looks like numbers of 64 bits, expected tokens of 8, 16 or 32 (where it is none: "
            "dtype: uint16)",
            path);
    TR_NEED(!is_wider(bytes, n, file->size, 4), TR_DATA,
            "%s: looks like tokens of 32 bits, which dtype has to say: expected dtype: uint32 "
            "(where they are none: dtype: uint16)",
            path);
out:
    tr_free(bytes);
    return st;
}

/* One file as a segment of the whole. type -1: a text. */
static tr_status open_segment(const char *path, int type, tr_header *h, tr_file_segment *out)
{
    tr_status st = TR_OK;
    tr_data_file file = {.fd = -1};
    uint8_t *head = NULL;
    uint64_t nbytes;
    *h = (tr_header){.elem = TR_ELEM_U8, .ndim = 1};
    TR_TRY(tr_data_file_open(path, &file));
    TR_NEED(file.size > 0, TR_DATA, "%s: is empty", path);
    TR_NEED(type >= 0 || !tr_tokens_known(path), TR_DATA,
            "%s: has the header of llm.c's token files: expected format: tokens, or a text", path);
    h->dims[0] = file.size;
    if (type >= 0) {
        size_t n;
        TR_TRY(read_head(&file, &head, &n));
        TR_TRY(tr_tokens_parse(path, head, n, file.size, type, h));
        if (type == TR_TOKENS_AUTO && h->offset == 0) TR_TRY(check_width(path, &file));
    }
    st = tr_header_check(h, file.size, &nbytes);
    TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: ", path));
    *out = (tr_file_segment){
        .file = file, .offset = h->offset, .stride = tr_elem_size(h->elem), .samples = h->dims[0]};
    file = (tr_data_file){.fd = -1};
out:
    tr_free(head);
    tr_data_file_close(&file);
    return st;
}

/* All of one type; ends: [count], tokens up to the end of each. */
static tr_status open_segments(char *const *paths, size_t count, int type, tr_header *all,
                               tr_file_segment *segments, size_t *opened, uint64_t *ends)
{
    tr_status st = TR_OK;
    size_t total = 0;
    for (; *opened < count; ++*opened) {
        const size_t k = *opened;
        tr_header h;
        TR_TRY(open_segment(paths[k], type, &h, &segments[k]));
        if (k == 0) *all = h;
        if (h.elem != all->elem || tr_header_swapped(&h) != tr_header_swapped(all) ||
            !tr_add_size(total, (size_t)h.dims[0], &total)) {
            tr_data_file_close(&segments[k].file);
            return TR_FAIL(TR_DATA, "%s: its tokens are %s%s, expected %s%s, as those of %s",
                           paths[k], h.big ? "big-endian " : "", tr_elem_name(h.elem),
                           all->big ? "big-endian " : "", tr_elem_name(all->elem), paths[0]);
        }
        ends[k] = total;
    }
    all->dims[0] = total;
out:
    return st;
}

tr_status tr_tokens_flat(char *const *paths, size_t count, int type, uint64_t *offset,
                         uint64_t *ends, tr_array **out)
{
    tr_status st;
    tr_header h = {.ndim = 1};
    tr_array *a = NULL;
    size_t opened = 0;
    tr_file_segment *segments = tr_alloc(TR_MEM_OTHER, count, sizeof *segments);
    TR_HAVE(segments);
    TR_TRY(open_segments(paths, count, type, &h, segments, &opened, ends));
    *offset = segments[0].offset;
    opened = 0; /* the array's now, whatever comes */
    TR_TRY(tr_flat_open(segments, count, tr_header_swapped(&h), &a));
    a->name =
        count == 1 ? tr_strdup(paths[0]) : tr_sprintf("%s (and %zu more)", paths[0], count - 1);
    TR_HAVE(a->name);
    TR_TRY(tr_array_shape(a, h.elem, 1, h.dims));
    *out = a;
    a = NULL;
out:
    for (size_t k = 0; k < opened; k++) tr_data_file_close(&segments[k].file);
    tr_free(segments);
    tr_array_close(a);
    return st;
}

/* ---- Several files --------------------------------------------------------------------------- */

static tr_status add_paths(tr_token_paths *to, char *const *paths, size_t n)
{
    tr_status st = TR_OK;
    char **all = tr_realloc(TR_MEM_OTHER, to->v, to->count + n, sizeof *all);
    TR_HAVE(all);
    to->v = all;
    for (size_t i = 0; i < n; i++, to->count++) TR_HAVE(all[to->count] = tr_strdup(paths[i]));
out:
    return st;
}

static tr_status add_name(const tr_opening *o, const char *name, tr_token_paths *to)
{
    char *path = tr_config_path(o->c, name);
    const tr_status st = path ? add_paths(to, &path, 1) : tr_last_status();
    tr_free(path);
    return st;
}

static tr_status add_pattern(const tr_opening *o, const char *pattern, tr_token_paths *to)
{
    tr_status st = TR_OK;
    glob_t found = {0};
    char *folder = *pattern == '/' ? tr_strdup("") : tr_config_path(o->c, "");
    TR_HAVE(folder);
    TR_TRY(tr_files_like(folder, pattern, &found));
    if (found.gl_pathc == 0)
        st = tr_opening_blame(o, "path", TR_FAIL(TR_DATA, "no file is like %s%s", folder, pattern));
    TR_TRY(st);
    TR_TRY(add_paths(to, found.gl_pathv, found.gl_pathc));
out:
    globfree(&found);
    tr_free(folder);
    return st;
}

tr_status tr_token_paths_find(const tr_opening *o, bool several, tr_token_paths *to)
{
    enum { MOST = 4096 };
    tr_status st = TR_OK;
    if (!several || tr_config_file_readable(o->c, o->s->path)) return add_name(o, o->s->path, to);
    char *list = tr_strdup(o->s->path), *rest = list;
    TR_HAVE(list);
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        word = tr_csv_trim(word);
        if (!*word) {
            st = tr_opening_fail(o, "path", "a file name between commas is missing");
            goto out;
        }
        TR_TRY(strpbrk(word, "*?[") ? add_pattern(o, word, to) : add_name(o, word, to));
        if (to->count > MOST) {
            st = tr_opening_fail(o, "path", "%zu files, expected at most %d", to->count, MOST);
            goto out;
        }
    }
out:
    tr_free(list);
    return st;
}

void tr_token_paths_free(tr_token_paths *p)
{
    for (size_t i = 0; i < p->count; i++) tr_free(p->v[i]);
    tr_free(p->v);
    *p = (tr_token_paths){0};
}

tr_status tr_tokens_count(const char *path, int type, uint64_t *tokens, uint64_t *most)
{
    enum { BLOCK = 1 << 16 };
    tr_status st = TR_OK;
    tr_array *a = NULL;
    char *block = NULL;
    char *one = (char *)path;
    uint64_t offset, end;
    TR_TRY(tr_tokens_flat(&one, 1, type, &offset, &end, &a));
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

bool tr_tokens_wide(const char *path)
{
    tr_data_file file = {.fd = -1};
    uint8_t *bytes = NULL;
    size_t n;
    const bool wide = tr_data_file_open(path, &file) == TR_OK && file.size > 0 &&
                      read_pieces(&file, &bytes, &n) == TR_OK && is_wider(bytes, n, file.size, 4);
    tr_free(bytes);
    tr_data_file_close(&file);
    return wide;
}

bool tr_tokens_known(const char *path)
{
    tr_data_file file = {.fd = -1};
    uint8_t head[HEADER];
    tr_header h;
    bool known = false;
    if (tr_data_file_open(path, &file) == TR_OK && file.size >= HEADER &&
        tr_data_file_read(&file, 0, head, HEADER) == TR_OK &&
        parse_llmc(path, head, HEADER, file.size, &h, &known) != TR_OK)
        known = true; /* of another version */
    tr_data_file_close(&file);
    return known;
}

tr_status tr_token_stream_read(const tr_token_stream *s, uint64_t first, uint64_t n, void *to)
{
    tr_array *a = s->flat;
    if (!a->held) return a->read(a, first, n, to);
    memcpy(to, (const char *)a->held + first * a->nbytes, (size_t)n * a->nbytes);
    return TR_OK;
}
