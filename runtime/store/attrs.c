/* A set of named values as attributes of one HDF5 object: unsigned integers, reals, fixed-length
 * UTF-8 text, which packed files deflate where it is long. Beside them stands "crc32c": the sum,
 * modulo 2^32, of each attribute's CRC-32C over name, NUL, kind and value, so that order does not
 * matter and any changed, lost or added one shows. Attributes of other types are not ours and are
 * passed over. */
#include "runtime/base/crc32c.h"
#include "runtime/store/metadata.h"

#include <math.h>
#include <string.h>

#define ATTRS_MAX 256
#define TEXT_MAX  (16u << 20)

static tr_status grow(tr_attrs *a, const char *name, tr_attr **out)
{
    for (size_t i = 0; i < a->count; i++)
        if (strcmp(a->v[i].name, name) == 0) {
            tr_free(a->v[i].text);
            a->v[i].text = NULL;
            *out = &a->v[i];
            return TR_OK;
        }
    tr_attr *v = tr_realloc(TR_MEM_OTHER, a->v, a->count + 1, sizeof *v);
    if (!v) return tr_last_status();
    a->v = v;
    *out = &v[a->count++];
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return TR_OK;
}

tr_status tr_attrs_add_count(tr_attrs *a, const char *name, uint64_t u)
{
    tr_attr *at;
    tr_status st = grow(a, name, &at);
    if (st != TR_OK) return st;
    at->kind = TR_ATTR_COUNT;
    at->u = u;
    return TR_OK;
}

tr_status tr_attrs_add_real(tr_attrs *a, const char *name, double f)
{
    tr_attr *at;
    tr_status st = grow(a, name, &at);
    if (st != TR_OK) return st;
    at->kind = TR_ATTR_REAL;
    at->f = f;
    return TR_OK;
}

tr_status tr_attrs_add(tr_attrs *a, const tr_attr *v)
{
    return v->kind == TR_ATTR_COUNT  ? tr_attrs_add_count(a, v->name, v->u)
           : v->kind == TR_ATTR_REAL ? tr_attrs_add_real(a, v->name, v->f)
                                     : tr_attrs_add_text(a, v->name, v->text);
}

tr_status tr_attrs_add_text(tr_attrs *a, const char *name, const char *text)
{
    char *copy = tr_strdup(text ? text : "");
    if (!copy) return tr_last_status();
    tr_attr *at;
    tr_status st = grow(a, name, &at);
    if (st != TR_OK) {
        tr_free(copy);
        return st;
    }
    at->kind = TR_ATTR_TEXT;
    at->text = copy;
    return TR_OK;
}

const tr_attr *tr_attrs_get(const tr_attrs *a, const char *name)
{
    for (size_t i = 0; i < a->count; i++)
        if (strcmp(a->v[i].name, name) == 0) return &a->v[i];
    return NULL;
}

double tr_attrs_number(const tr_attrs *a, const char *name)
{
    const tr_attr *at = tr_attrs_get(a, name);
    if (!at || at->kind == TR_ATTR_TEXT) return NAN;
    return at->kind == TR_ATTR_REAL ? at->f : (double)at->u;
}

void tr_attrs_remove(tr_attrs *a, const char *name)
{
    size_t i = 0;
    while (i < a->count && strcmp(a->v[i].name, name) != 0) i++;
    if (i == a->count) return;
    tr_free(a->v[i].text);
    memmove(&a->v[i], &a->v[i + 1], (--a->count - i) * sizeof *a->v);
}

void tr_attrs_free(tr_attrs *a)
{
    for (size_t i = 0; i < a->count; i++) tr_free(a->v[i].text);
    tr_free(a->v);
    *a = (tr_attrs){0};
}

uint32_t tr_attrs_checksum(const tr_attrs *a)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < a->count; i++) {
        const tr_attr *at = &a->v[i];
        uint8_t kind = (uint8_t)at->kind;
        uint32_t crc = tr_crc32c(0, at->name, strlen(at->name) + 1);
        crc = tr_crc32c(crc, &kind, 1);
        if (at->kind == TR_ATTR_COUNT) crc = tr_crc32c(crc, &at->u, sizeof at->u);
        if (at->kind == TR_ATTR_REAL) crc = tr_crc32c(crc, &at->f, sizeof at->f);
        if (at->kind == TR_ATTR_TEXT) crc = tr_crc32c(crc, at->text, strlen(at->text));
        sum += crc;
    }
    return sum;
}

/* Closes the space. */
static tr_status write_one(hid_t object, const char *name, hid_t type, hid_t space,
                           const void *value, const char *path, const char *where)
{
    tr_status st = TR_OK;
    hid_t attr = -1;
    TR_H5_NEED(type >= 0 && space >= 0, TR_FILE, "%s: %s@%s", path, where, name);
    TR_H5_NEED((attr = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT)) >= 0,
               TR_FILE, "%s: %s@%s: cannot be made", path, where, name);
    TR_H5_NEED(H5Awrite(attr, type, value) >= 0, TR_FILE, "%s: %s@%s: cannot be written", path,
               where, name);
out:
    if (attr >= 0) H5Aclose(attr);
    if (space >= 0) H5Sclose(space);
    return st;
}

static tr_status write_scalar(hid_t object, const char *name, hid_t type, const void *value,
                              const char *path, const char *where)
{
    return write_one(object, name, type, H5Screate(H5S_SCALAR), value, path, where);
}

/* As an array of bytes. *done false: it is not worth it. */
static tr_status write_deflated(hid_t object, const tr_attr *at, const char *path,
                                const char *where, bool *done)
{
    void *bytes;
    size_t nbytes;
    *done = false;
    tr_status st = tr_text_deflate(at->text, &bytes, &nbytes);
    if (st != TR_OK || !bytes) return st;
    const hsize_t n = nbytes;
    st = write_one(object, at->name, H5T_STD_U8LE, H5Screate_simple(1, &n, NULL), bytes, path,
                   where);
    *done = true;
    tr_free(bytes);
    return st;
}

static tr_status write_text(hid_t object, const tr_attr *at, const char *path, const char *where)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0) {
        H5Tset_size(type, strlen(at->text) + 1);
        H5Tset_cset(type, H5T_CSET_UTF8);
        H5Tset_strpad(type, H5T_STR_NULLTERM);
    }
    tr_status st = write_scalar(object, at->name, type, at->text, path, where);
    if (type >= 0) H5Tclose(type);
    return st;
}

tr_status tr_attrs_write(const tr_attrs *a, hid_t object, const char *path, const char *where,
                         bool packed)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < a->count; i++) {
        const tr_attr *at = &a->v[i];
        bool done = false;
        if (at->kind == TR_ATTR_COUNT)
            TR_TRY(write_scalar(object, at->name, H5T_STD_U64LE, &at->u, path, where));
        if (at->kind == TR_ATTR_REAL)
            TR_TRY(write_scalar(object, at->name, H5T_IEEE_F64LE, &at->f, path, where));
        if (at->kind == TR_ATTR_TEXT && packed)
            TR_TRY(write_deflated(object, at, path, where, &done));
        if (at->kind == TR_ATTR_TEXT && !done) TR_TRY(write_text(object, at, path, where));
    }
    uint32_t crc = tr_attrs_checksum(a);
    TR_TRY(write_scalar(object, "crc32c", H5T_STD_U32LE, &crc, path, where));
out:
    return st;
}

/* Text of a fixed length, which need not end in NUL. */
static tr_status read_text(tr_attrs *a, const tr_attribute *at)
{
    if (at->type.size > TEXT_MAX) return TR_OK;
    char *text = tr_alloc(TR_MEM_OTHER, at->type.size + 1, 1);
    if (!text) return tr_last_status();
    memcpy(text, at->value, at->type.size);
    tr_status st = tr_attrs_add_text(a, at->name, text);
    tr_free(text);
    return st;
}

/* What is none is missed by the checksum of all. */
static tr_status read_deflated(tr_attrs *a, const tr_attribute *at)
{
    char *text;
    if (at->space.dims[0] > at->nbytes) return TR_OK;
    tr_status st = tr_text_inflate(at->value, (size_t)at->space.dims[0], TEXT_MAX, &text);
    if (st != TR_OK || !text) return st;
    st = tr_attrs_add_text(a, at->name, text);
    tr_free(text);
    return st;
}

static tr_status read_one(tr_attrs *a, const tr_attribute *at, bool *has_crc, uint32_t *crc)
{
    uint64_t u;
    double f;
    if (at->space.ndim == 1 && !at->space.null && at->type.dtype == TR_U8)
        return read_deflated(a, at);
    if (at->space.ndim > 0 || at->space.null) return TR_OK;
    if (strcmp(at->name, "crc32c") == 0) {
        *has_crc = at->type.kind == TR_STORED_U32;
        if (*has_crc) memcpy(crc, at->value, sizeof *crc);
        return TR_OK;
    }
    switch (at->type.kind) {
    case TR_STORED_U64:
        memcpy(&u, at->value, sizeof u);
        return tr_attrs_add_count(a, at->name, u);
    case TR_STORED_ARRAY:
        if (at->type.dtype != TR_F64) return TR_OK;
        memcpy(&f, at->value, sizeof f);
        return tr_attrs_add_real(a, at->name, f);
    case TR_STORED_TEXT:
        return read_text(a, at);
    default:
        return TR_OK;
    }
}

tr_status tr_attrs_read(tr_attrs *a, const tr_header *h, const char *where, char fault[TR_FAULT])
{
    tr_status st = TR_OK;
    tr_attribute at;
    bool has_crc = false;
    uint32_t crc = 0;
    for (size_t i = 0; i < h->count; i++) {
        if (h->v[i].kind != TR_MSG_ATTRIBUTE || !tr_msg_attribute(h->v[i].body, &at)) continue;
        if (strlen(at.name) >= TR_NAME) continue;
        if (a->count >= ATTRS_MAX) {
            snprintf(fault, TR_FAULT, "%s: more than %d attributes", where, ATTRS_MAX);
            return TR_OK;
        }
        TR_TRY(read_one(a, &at, &has_crc, &crc));
    }
    if (!has_crc)
        snprintf(fault, TR_FAULT, "%s: the attributes have no checksum (crc32c)", where);
    else if (crc != tr_attrs_checksum(a))
        snprintf(fault, TR_FAULT, "%s: the attributes are damaged: checksum %08x, expected %08x",
                 where, tr_attrs_checksum(a), crc);
out:
    return st;
}
