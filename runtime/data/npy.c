/* NPY, NumPy's array file, versions 1 to 3: "\x93NUMPY", version, header length, and a header that
 * is a Python dict of three keys, then the elements. The dict is read by a small scanner for
 * exactly what the format allows.
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <string.h>

typedef struct {
    const char *begin, *at, *end;
    size_t offset; /* of begin in the file */
} scan;

static tr_status bad(const scan *s, const char *expected)
{
    char shown[17] = "";
    size_t n = 0;
    for (const char *p = s->at; p < s->end && n < sizeof shown - 1; p++, n++)
        shown[n] = *p >= 32 && *p < 127 ? *p : '?';
    return TR_FAIL(TR_DATA, "header at byte %zu: '%s', expected %s",
                   s->offset + (size_t)(s->at - s->begin), shown, expected);
}

static void blanks(scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t')) s->at++;
}

static bool take(scan *s, char c)
{
    blanks(s);
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

/* A quoted word without escapes, which is all NumPy writes here. */
static bool take_text(scan *s, char *to, size_t size)
{
    blanks(s);
    if (s->at == s->end || (*s->at != '\'' && *s->at != '"')) return false;
    char quote = *s->at;
    const char *p = s->at + 1;
    size_t n = 0;
    while (p < s->end && *p != quote) {
        if (n + 1 == size || *p == '\0' || *p == '\\') return false;
        to[n++] = *p++;
    }
    if (p == s->end) return false;
    to[n] = '\0';
    s->at = p + 1;
    return true;
}

static bool take_word(scan *s, const char *word)
{
    blanks(s);
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0) return false;
    s->at += n;
    return true;
}

static bool take_number(scan *s, uint64_t *to)
{
    blanks(s);
    const char *start = s->at;
    uint64_t v = 0;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
        uint64_t digit = (uint64_t)(*s->at - '0');
        if (v > (INT64_MAX - digit) / 10) {
            s->at = start;
            return false;
        }
        v = v * 10 + digit;
        s->at++;
    }
    *to = v;
    return s->at > start;
}

static tr_status take_descr(scan *s, tr_header *h)
{
    static const struct {
        const char *code;
        tr_elem elem;
    } types[] = {{"u1", TR_ELEM_U8},  {"i1", TR_ELEM_I8},  {"b1", TR_ELEM_U8},
                 {"u2", TR_ELEM_U16}, {"i2", TR_ELEM_I16}, {"u4", TR_ELEM_U32},
                 {"i4", TR_ELEM_I32}, {"u8", TR_ELEM_U64}, {"i8", TR_ELEM_I64},
                 {"f2", TR_ELEM_F16}, {"f4", TR_ELEM_F32}, {"f8", TR_ELEM_F64}};
    char text[16];
    scan before = *s;
    if (take_text(s, text, sizeof text) && strchr("<>|=", text[0]) && text[0]) {
        for (size_t t = 0; t < TR_COUNT(types); t++) {
            if (strcmp(text + 1, types[t].code) != 0) continue;
            h->elem = types[t].elem;
            h->big = text[0] == '>' || (text[0] == '=' && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
            return TR_OK;
        }
    }
    return bad(&before,
               "an element type: '<' or '>' and u1, i1, u2, i2, u4, i4, u8, i8, f2, f4, f8, or b1");
}

static tr_status take_shape(scan *s, tr_header *h)
{
    if (!take(s, '(')) return bad(s, "a shape in parentheses");
    h->ndim = 0;
    while (!take(s, ')')) {
        if (h->ndim == TR_MAX_DIMS) return bad(s, "at most 5 dimensions");
        if (!take_number(s, &h->dims[h->ndim])) return bad(s, "a dimension");
        h->ndim++;
        if (!take(s, ',') && (s->at == s->end || *s->at != ')')) return bad(s, "',' or ')'");
    }
    return TR_OK;
}

static tr_status take_dict(scan *s, tr_header *h)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    unsigned seen = 0, here = 0;
    if (!take(s, '{')) return bad(s, "a dict");
    while (!take(s, '}')) {
        char key[32];
        scan before = *s;
        if (!take_text(s, key, sizeof key) || !take(s, ':')) return bad(&before, "a key");
        tr_status st = TR_OK;
        if (strcmp(key, "descr") == 0) {
            here = DESCR;
            st = take_descr(s, h);
        } else if (strcmp(key, "shape") == 0) {
            here = SHAPE;
            st = take_shape(s, h);
        } else if (strcmp(key, "fortran_order") == 0) {
            here = ORDER;
            h->fortran = take_word(s, "True");
            if (!h->fortran && !take_word(s, "False")) st = bad(s, "True or False");
        } else {
            st = bad(&before, "descr, fortran_order or shape");
        }
        if (st != TR_OK) return st;
        if (seen & here) return bad(&before, "each key once");
        seen |= here;
        if (!take(s, ',') && (s->at == s->end || *s->at != '}')) return bad(s, "',' or '}'");
    }
    blanks(s);
    if (s->at != s->end) return bad(s, "nothing after the dict");
    if (seen != (DESCR | ORDER | SHAPE))
        return TR_FAIL(TR_DATA, "its header lacks %s",
                       !(seen & DESCR)   ? "descr"
                       : !(seen & SHAPE) ? "shape"
                                         : "fortran_order");
    return TR_OK;
}

tr_status tr_npy_parse(const uint8_t *bytes, size_t nbytes, tr_header *h)
{
    if (memcmp(bytes, "\x93NUMPY", nbytes < 6 ? nbytes : 6) != 0 || nbytes == 0)
        return TR_FAIL(TR_DATA, "is not an NPY file: expected \\x93NUMPY at byte 0");
    if (nbytes < 10)
        return TR_FAIL(TR_DATA,
                       "has %zu bytes, expected 10 at least, with which an NPY file begins: it "
                       "is cut short",
                       nbytes);
    if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0)
        return TR_FAIL(TR_DATA, "byte 6: version %d.%d, expected 1.0, 2.0 or 3.0", bytes[6],
                       bytes[7]);
    size_t start = bytes[6] == 1 ? 10 : 12;
    if (nbytes < start)
        return TR_FAIL(TR_DATA,
                       "has %zu bytes, expected %zu at least, with which an NPY file of "
                       "version %d.0 begins: it is cut short",
                       nbytes, start, bytes[6]);
    size_t length = bytes[8] | (size_t)bytes[9] << 8;
    if (start == 12) length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (length > TR_NPY_HEADER - start)
        return TR_FAIL(TR_DATA, "byte 8: a header of %zu bytes, expected at most %zu", length,
                       TR_NPY_HEADER - start);
    if (nbytes < start + length) /* which is all of the file */
        return TR_FAIL(TR_DATA, "has %zu bytes, expected %zu for its header alone: it is cut short",
                       nbytes, start + length);
    memset(h, 0, sizeof *h);
    h->offset = start + length;
    const char *text = (const char *)bytes + start;
    scan s = {.begin = text, .at = text, .end = text + length, .offset = start};
    return take_dict(&s, h);
}

tr_status tr_npy_check(const tr_header *h)
{
    tr_status st = TR_OK;
    TR_NEED(!h->fortran, TR_DATA,
            "its array is in Fortran order, expected C order: save it with "
            "numpy.save(file, numpy.ascontiguousarray(array))");
    TR_NEED(h->ndim > 0, TR_DATA, "expected at least one dimension, which counts samples");
out:
    return st;
}

tr_status tr_npy_open(const char *path, tr_array **out)
{
    tr_status st = TR_OK;
    tr_data_file file = {.fd = -1};
    uint8_t *head = NULL;
    tr_header h;
    TR_TRY(tr_data_file_open(path, &file));
    size_t n = file.size < TR_NPY_HEADER ? (size_t)file.size : TR_NPY_HEADER;
    head = tr_alloc(TR_MEM_OTHER, n, 1);
    TR_HAVE(head);
    TR_TRY(tr_data_file_read(&file, 0, head, n));
    st = tr_npy_parse(head, n, &h);
    if (st == TR_OK) st = tr_npy_check(&h);
    TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: ", path));
    TR_TRY(tr_header_open(&file, path, &h, out));

out:
    tr_free(head);
    tr_data_file_close(&file);
    return st;
}
