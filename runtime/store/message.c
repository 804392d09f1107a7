/* Messages of object headers: links, dataspaces, datatypes, layouts, attributes. Sections "Disk
 * Format: Level 2A2a" and following, by message. */
#include "runtime/store/metadata.h"

#include <string.h>

bool tr_msg_link(tr_cursor c, tr_link *out)
{
    enum { HAS_ORDER = 0x04, HAS_KIND = 0x08, HAS_CHARSET = 0x10 };
    const uint64_t version = tr_cursor_take(&c, 1), flags = tr_cursor_take(&c, 1);
    const uint64_t kind = flags & HAS_KIND ? tr_cursor_take(&c, 1) : 0;
    if (flags & HAS_ORDER) tr_cursor_skip(&c, 8);
    if (flags & HAS_CHARSET) tr_cursor_skip(&c, 1);
    const uint64_t nbytes = tr_cursor_take(&c, 1u << (flags & 3));
    const uint8_t *name = tr_cursor_skip(&c, nbytes);
    if (c.bad || version != 1 || nbytes == 0 || nbytes >= sizeof out->name ||
        memchr(name, 0, (size_t)nbytes) || memchr(name, '/', (size_t)nbytes))
        return false;
    memcpy(out->name, name, (size_t)nbytes);
    out->name[nbytes] = 0;
    out->kind = kind == 0 ? TR_LINK_HARD : kind == 1 ? TR_LINK_SOFT : TR_LINK_OTHER;
    out->at = kind == 0 ? tr_cursor_take(&c, 8) : TR_UNDEFINED;
    return !c.bad;
}

bool tr_msg_links_elsewhere(tr_cursor info)
{
    tr_cursor_skip(&info, 1);
    if (tr_cursor_take(&info, 1) & 1) tr_cursor_skip(&info, 8);
    return tr_cursor_take(&info, 8) != TR_UNDEFINED || info.bad;
}

bool tr_msg_space(tr_cursor c, tr_space *out)
{
    const uint64_t version = tr_cursor_take(&c, 1), ndim = tr_cursor_take(&c, 1);
    tr_cursor_skip(&c, 1); /* whether limits of the dims follow them */
    const uint64_t kind = tr_cursor_take(&c, 1);
    if (version == 1) tr_cursor_skip(&c, 4);
    if (c.bad || version < 1 || version > 2 || ndim > TR_COUNT(out->dims)) return false;
    out->null = version == 2 && kind == 2;
    out->ndim = (int)ndim;
    for (uint64_t i = 0; i < ndim; i++) out->dims[i] = tr_cursor_take(&c, 8);
    return !c.bad;
}

/* As HDF5 encodes it: class (without the version), 3 bytes of class bits, size, properties. */
static const struct {
    tr_stored kind;
    tr_dtype dtype;
    size_t nbytes;
    const char *code;
} types[] = {
    {TR_STORED_ARRAY, TR_F32, 20, "\x01\x20\x1f\0\4\0\0\0\0\0\x20\0\x17\x08\0\x17\x7f\0\0\0"},
    {TR_STORED_ARRAY, TR_BF16, 20, "\x01\x20\x0f\0\2\0\0\0\0\0\x10\0\7\x08\0\7\x7f\0\0\0"},
    {TR_STORED_ARRAY, TR_F16, 20, "\x01\x20\x0f\0\2\0\0\0\0\0\x10\0\x0a\5\0\x0a\x0f\0\0\0"},
    {TR_STORED_ARRAY, TR_F64, 20, "\x01\x20\x3f\0\x08\0\0\0\0\0\x40\0\x34\x0b\0\x34\xff\3\0\0"},
    {TR_STORED_ARRAY, TR_I32, 12, "\0\x08\0\0\4\0\0\0\0\0\x20\0"},
    {TR_STORED_ARRAY, TR_I64, 12, "\0\x08\0\0\x08\0\0\0\0\0\x40\0"},
    {TR_STORED_ARRAY, TR_U8, 12, "\0\0\0\0\1\0\0\0\0\0\x08\0"},
    {TR_STORED_ARRAY, TR_I8, 12, "\0\x08\0\0\1\0\0\0\0\0\x08\0"},
    {TR_STORED_U32, TR_DTYPES, 12, "\0\0\0\0\4\0\0\0\0\0\x20\0"},
    {TR_STORED_U64, TR_DTYPES, 12, "\0\0\0\0\x08\0\0\0\0\0\x40\0"},
};

bool tr_msg_type(tr_cursor c, tr_type *out)
{
    enum { TEXT = 3 };
    uint8_t code[20] = {0};
    const size_t n = c.left < sizeof code ? c.left : sizeof code;
    memcpy(code, c.at, n);
    tr_cursor_skip(&c, 4);
    *out = (tr_type){.kind = TR_STORED_OTHER, .dtype = TR_DTYPES, .size = tr_cursor_take(&c, 4)};
    const unsigned version = code[0] >> 4;
    if (c.bad || version < 1 || version > 3 || out->size == 0) return false;
    code[0] &= 0x0f;
    if (code[0] == TEXT) out->kind = TR_STORED_TEXT;
    for (size_t i = 0; i < TR_COUNT(types); i++)
        if (n >= types[i].nbytes && memcmp(code, types[i].code, types[i].nbytes) == 0) {
            out->kind = types[i].kind;
            out->dtype = types[i].dtype;
        }
    return true;
}

bool tr_msg_layout(tr_cursor c, uint64_t *at, uint64_t *nbytes)
{
    enum { CONTIGUOUS = 1 };
    const uint64_t version = tr_cursor_take(&c, 1), kind = tr_cursor_take(&c, 1);
    *at = tr_cursor_take(&c, 8);
    *nbytes = tr_cursor_take(&c, 8);
    return !c.bad && (version == 3 || version == 4) && kind == CONTIGUOUS;
}

/* Version 1 pads each part to a multiple of 8 bytes. */
static tr_cursor part(tr_cursor *c, uint64_t nbytes, bool padded)
{
    tr_cursor p = {.at = tr_cursor_skip(c, nbytes), .left = (size_t)nbytes};
    p.bad = !p.at;
    if (padded) tr_cursor_skip(c, (8 - nbytes % 8) % 8);
    return p;
}

bool tr_msg_attribute(tr_cursor c, tr_attribute *out)
{
    enum { SHARED_TYPE = 1, SHARED_SPACE = 2 };
    const uint64_t version = tr_cursor_take(&c, 1), flags = tr_cursor_take(&c, 1);
    const uint64_t name = tr_cursor_take(&c, 2), type = tr_cursor_take(&c, 2),
                   space = tr_cursor_take(&c, 2);
    if (version == 3) tr_cursor_skip(&c, 1);
    const bool padded = version == 1;
    const tr_cursor text = part(&c, name, padded), of = part(&c, type, padded),
                    shape = part(&c, space, padded);
    if (c.bad || version < 1 || version > 3 || name == 0 || text.at[name - 1] != 0) return false;
    if (version > 1 && flags & (SHARED_TYPE | SHARED_SPACE)) return false;
    if (!tr_msg_type(of, &out->type) || !tr_msg_space(shape, &out->space)) return false;
    out->name = (const char *)text.at;
    out->value = c.at;
    out->nbytes = c.left;
    return c.left >= out->type.size;
}
