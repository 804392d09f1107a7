/* Reading safetensors: the header whole and checked, so that each array has a place of its own and
 * all of them fill what is behind the header.
 * https://github.com/huggingface/safetensors#format */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optimize/tensors/json.h"
#include "optimize/tensors/provider.h"
#include "runtime/base/file.h"

enum { HEADER_MAX = 100 << 20, PIECE = 1 << 14, DTYPE = 16 };

typedef struct {
    const char *name;
    size_t size;
} element_type;

static const element_type types[] = {{"F32", 4}, {"F16", 2},  {"BF16", 2},    {"F64", 8},
                                     {"I64", 8}, {"I32", 4},  {"I16", 2},     {"I8", 1},
                                     {"U8", 1},  {"BOOL", 1}, {"U16", 2},     {"U32", 4},
                                     {"U64", 8}, {"C64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}};
enum { F32, F16, BF16, F64, VALUES };

typedef struct {
    char name[TR_ARRAY_NAME];
    char dtype[DTYPE];
    int type; /* in types */
    int ndim;
    int64_t dims[TR_ARRAY_DIMS];
    uint64_t begin, end; /* behind the header */
} entry;

typedef struct {
    const char *path;
    int fd;
    uint64_t data, nbytes; /* where arrays begin; bytes of all */
    char *header;
    size_t sketches, sketches_end; /* in the header: what write_sketches wrote */
    size_t count, cap;
    entry *entries;
} file;

/* ---- The header ------------------------------------------------------------------------------ */

static tr_status open_file(file *f, size_t *header)
{
    tr_status st = TR_OK;
    struct stat info;
    unsigned char length[8];
    uint64_t n = 0;
    TR_TRY(tr_file_open(f->path, O_RDONLY, TR_IO, &f->fd, &info));
    const uint64_t whole = (uint64_t)info.st_size;
    TR_NEED(whole >= 8, TR_FILE, "%s: %llu bytes are no safetensors file", f->path,
            (unsigned long long)whole);
    TR_TRY(tr_file_read_at(f->fd, f->path, 0, length, sizeof length));
    for (int i = 0; i < 8; i++) n |= (uint64_t)length[i] << 8 * i;
    TR_NEED(n >= 2 && n <= HEADER_MAX && n <= whole - 8, TR_FILE,
            "%s: no safetensors file: its header is said to have %llu bytes, the file has %llu",
            f->path, (unsigned long long)n, (unsigned long long)whole);
    f->header = tr_alloc(TR_MEM_OTHER, n, 1);
    TR_HAVE(f->header);
    TR_TRY(tr_file_read_at(f->fd, f->path, 8, f->header, n));
    f->data = 8 + n;
    f->nbytes = whole - f->data;
    *header = n;
out:
    return st;
}

static tr_status read_shape(tr_json *j, entry *e)
{
    tr_status st;
    TR_TRY(tr_json_take(j, '['));
    while (!tr_json_next(j, ']')) {
        uint64_t n;
        if (e->ndim > 0) TR_TRY(tr_json_take(j, ','));
        TR_TRY(tr_json_count(j, &n));
        if (e->ndim == TR_ARRAY_DIMS) return tr_json_fail(j, "more than 8 dimensions");
        e->dims[e->ndim++] = (int64_t)n;
    }
out:
    return st;
}

static tr_status read_offsets(tr_json *j, entry *e)
{
    tr_status st;
    TR_TRY(tr_json_take(j, '['));
    TR_TRY(tr_json_count(j, &e->begin));
    TR_TRY(tr_json_take(j, ','));
    TR_TRY(tr_json_count(j, &e->end));
    TR_TRY(tr_json_take(j, ']'));
out:
    return st;
}

/* {"dtype": ..., "shape": [...], "data_offsets": [...]}, in any order, each once. */
static tr_status read_entry(tr_json *j, entry *e)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    tr_status st;
    unsigned seen = 0;
    char key[16];
    TR_TRY(tr_json_take(j, '{'));
    for (int i = 0; i < 3; i++) {
        int k = 0;
        if (i > 0) TR_TRY(tr_json_take(j, ','));
        TR_TRY(tr_json_string(j, key, sizeof key));
        while (k < 3 && strcmp(keys[k], key) != 0) k++;
        if (k == 3 || seen & 1u << k)
            return tr_json_fail(j, "expected dtype, shape and data_offsets, each once");
        seen |= 1u << k;
        TR_TRY(tr_json_take(j, ':'));
        st = k == 0   ? tr_json_string(j, e->dtype, sizeof e->dtype)
             : k == 1 ? read_shape(j, e)
                      : read_offsets(j, e);
        if (st != TR_OK) goto out;
    }
    TR_TRY(tr_json_take(j, '}'));
out:
    return st;
}

/* Of what anybody may write there only the sketches are ours. */
static tr_status read_metadata(file *f, tr_json *j)
{
    static const char key[] = "\"sketches\"";
    tr_status st;
    TR_TRY(tr_json_take(j, '{'));
    for (bool first = true; !tr_json_next(j, '}'); first = false) {
        if (!first) TR_TRY(tr_json_take(j, ','));
        const size_t name = j->at;
        TR_TRY(tr_json_skip_string(j));
        const bool ours =
            j->at - name == sizeof key - 1 && memcmp(j->text + name, key, sizeof key - 1) == 0;
        TR_TRY(tr_json_take(j, ':'));
        const size_t value = j->at;
        TR_TRY(tr_json_skip_string(j));
        if (!ours) continue;
        f->sketches = value + 1;
        f->sketches_end = j->at - 1;
    }
out:
    return st;
}

static tr_status new_entry(file *f, const char *name, entry **out)
{
    if (f->count == f->cap) {
        const size_t cap = f->cap ? 2 * f->cap : 64;
        entry *grown = tr_realloc(TR_MEM_OTHER, f->entries, cap, sizeof *grown);
        if (!grown) return tr_last_status();
        f->entries = grown;
        f->cap = cap;
    }
    *out = &f->entries[f->count++];
    memset(*out, 0, sizeof **out);
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return TR_OK;
}

static tr_status read_header(file *f, size_t nbytes)
{
    tr_json j = {.file = f->path, .text = f->header, .end = nbytes};
    tr_status st;
    char name[TR_ARRAY_NAME];
    entry *e;
    TR_TRY(tr_json_take(&j, '{'));
    for (bool first = true; !tr_json_next(&j, '}'); first = false) {
        if (!first) TR_TRY(tr_json_take(&j, ','));
        TR_TRY(tr_json_string(&j, name, sizeof name));
        TR_TRY(tr_json_take(&j, ':'));
        if (strcmp(name, "__metadata__") == 0) {
            TR_TRY(read_metadata(f, &j));
            continue;
        }
        TR_TRY(new_entry(f, name, &e));
        TR_TRY(read_entry(&j, e));
    }
    while (j.at < j.end && j.text[j.at] == ' ') j.at++;
    if (j.at < j.end) st = tr_json_fail(&j, "more behind the header's end");
out:
    return st;
}

/* ---- Do places fit? -------------------------------------------------------------------------- */

static tr_status check_entry(const file *f, entry *e)
{
    tr_status st = TR_OK;
    size_t n = 1;
    bool fits = true;
    while (e->type < (int)TR_COUNT(types) && strcmp(types[e->type].name, e->dtype) != 0) e->type++;
    TR_NEED(e->type < (int)TR_COUNT(types), TR_FILE, "%s: %s is of an unknown type, %s", f->path,
            e->name, e->dtype);
    for (int d = 0; d < e->ndim; d++) fits = fits && tr_mul_size(n, (size_t)e->dims[d], &n);
    fits = fits && tr_mul_size(n, types[e->type].size, &n);
    TR_NEED(fits && e->begin <= e->end && e->end <= f->nbytes && e->end - e->begin == n, TR_FILE,
            "%s: %s has bytes %llu to %llu of %llu, which its shape and type %s do not fit",
            f->path, e->name, (unsigned long long)e->begin, (unsigned long long)e->end,
            (unsigned long long)f->nbytes, e->dtype);
out:
    return st;
}

static int by_place(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* One behind the other, to the end. */
static tr_status check_places(file *f)
{
    tr_status st = TR_OK;
    uint64_t at = 0;
    for (size_t i = 0; i < f->count; i++) TR_TRY(check_entry(f, &f->entries[i]));
    if (f->count) qsort(f->entries, f->count, sizeof *f->entries, by_place);
    for (size_t i = 0; i < f->count; i++) {
        TR_NEED(f->entries[i].begin == at, TR_FILE, "%s: %s begins at byte %llu, expected %llu: %s",
                f->path, f->entries[i].name, (unsigned long long)f->entries[i].begin,
                (unsigned long long)at,
                f->entries[i].begin < at ? "it overlaps another array" : "bytes of no array");
        at = f->entries[i].end;
    }
    TR_NEED(at == f->nbytes, TR_FILE, "%s: %llu bytes behind the last array", f->path,
            (unsigned long long)(f->nbytes - at));
out:
    return st;
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

static void close_file(void *own)
{
    file *f = own;
    if (f->fd >= 0) close(f->fd);
    tr_free(f->header);
    tr_free(f->entries);
    tr_free(f);
}

/* Those of the next row that has some, where it is this one. */
static void take_sketch(file *f, const char *name, tr_sketch *out)
{
    char text[TR_ARRAY_NAME + 80];
    const char *at = f->header + f->sketches;
    const size_t left = f->sketches_end - f->sketches, n = strlen(name);
    const char *end = left ? memchr(at, ',', left < sizeof text ? left : sizeof text) : NULL;
    const size_t size = end ? (size_t)(end - at) : 0;
    long long terms, rank, seed;
    if (size <= n || size >= sizeof text || memcmp(at, name, n) != 0 || at[n] != ' ') return;
    memcpy(text, at, size);
    text[size] = 0;
    f->sketches += size + 1;
    if (sscanf(text + n, "%18lld %18lld %18lld", &terms, &rank, &seed) == 3)
        *out = (tr_sketch){.side = TR_SKETCH_UP, .terms = terms, .rank = rank, .seed = seed};
}

static tr_status open_arrays(tr_arrays *a)
{
    tr_status st = TR_OK;
    size_t header = 0;
    file *f = a->own = TR_NEW(TR_MEM_OTHER, file);
    TR_HAVE(f);
    f->path = a->path;
    f->fd = -1;
    TR_TRY(open_file(f, &header));
    TR_TRY(read_header(f, header));
    TR_TRY(check_places(f));
    for (size_t i = 0; i < f->count; i++) {
        const entry *e = &f->entries[i];
        tr_named_array info = {.ndim = e->ndim};
        snprintf(info.name, sizeof info.name, "%s", e->name);
        snprintf(info.type, sizeof info.type, "%s", e->dtype);
        memcpy(info.dims, e->dims, sizeof info.dims);
        take_sketch(f, e->name, &info.sketch);
        if (e->type >= VALUES)
            snprintf(info.fault, sizeof info.fault, "of type %s, expected F32, F16, BF16 or F64",
                     e->dtype);
        TR_TRY(tr_arrays_add(a, &info, NULL));
    }
out:
    return st;
}

static float value(int type, const unsigned char *at)
{
    uint16_t h;
    float v;
    double d;
    switch (type) {
    case F32:
        memcpy(&v, at, sizeof v);
        return v;
    case F64:
        memcpy(&d, at, sizeof d);
        return (float)d;
    default:
        memcpy(&h, at, sizeof h);
        return type == F16 ? tr_f16_to_f32(h) : tr_bf16_to_f32(h);
    }
}

static tr_status read_array(tr_arrays *a, size_t id, const tr_named_array *info, float *to)
{
    const file *f = a->own;
    const entry *e = &f->entries[id];
    const size_t size = types[e->type].size, room = PIECE / size;
    unsigned char piece[PIECE];
    tr_status st = TR_OK;
    for (size_t i = 0; i < info->count; i += room) {
        const size_t some = info->count - i < room ? info->count - i : room;
        TR_TRY(tr_file_read_at(f->fd, f->path, f->data + e->begin + i * size, piece, some * size));
        for (size_t k = 0; k < some; k++) to[i + k] = value(e->type, piece + k * size);
    }
out:
    return st;
}

const tr_arrays_provider tr_arrays_safetensors = {
    .open = open_arrays, .read = read_array, .close = close_file};
