/* ONNX files written field by field, as nobody exports them. Numbers are those of onnx.proto. */
#ifndef TR_TESTS_ONNX_CRAFTED_H
#define TR_TESTS_ONNX_CRAFTED_H

#include "tests/unit/onnx/cases.h"

typedef struct {
    unsigned char *v; /* to be freed */
    size_t n;
} message;

static inline void msg_append(message *m, const void *v, size_t n)
{
    m->v = realloc(m->v, m->n + n + 1);
    assert_non_null(m->v);
    if (n) memcpy(m->v + m->n, v, n);
    m->n += n;
}

static inline void msg_varint(message *m, uint64_t v)
{
    do {
        const unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        msg_append(m, &byte, 1);
        v >>= 7;
    } while (v);
}

static inline void msg_int(message *m, unsigned field, int64_t v)
{
    msg_varint(m, field << 3);
    msg_varint(m, (uint64_t)v);
}

static inline void msg_bytes(message *m, unsigned field, const void *v, size_t n)
{
    msg_varint(m, field << 3 | 2);
    msg_varint(m, n);
    msg_append(m, v, n);
}

static inline void msg_text(message *m, unsigned field, const char *text)
{
    msg_bytes(m, field, text, strlen(text));
}

/* Frees `inner`. */
static inline void msg_message(message *m, unsigned field, message *inner)
{
    msg_bytes(m, field, inner->v, inner->n);
    free(inner->v);
    *inner = (message){0};
}

enum { GRAPH_NODE = 1, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12 };
enum { ONNX_FLOAT = 1, ONNX_UINT8 = 2, ONNX_INT8 = 3, ONNX_INT64 = 7 };

/* An input or output: any batch of these dimensions. */
static inline void graph_value(message *g, unsigned field, const char *name, int ndim,
                               const int64_t *dims)
{
    message info = {0}, type = {0}, tensor = {0}, shape = {0}, batch = {0};
    msg_text(&batch, 2, "N");
    msg_message(&shape, 1, &batch);
    for (int d = 0; d < ndim; d++) {
        message dim = {0};
        msg_int(&dim, 1, dims[d]);
        msg_message(&shape, 1, &dim);
    }
    msg_int(&tensor, 1, ONNX_FLOAT);
    msg_message(&tensor, 2, &shape);
    msg_message(&type, 1, &tensor);
    msg_text(&info, 1, name);
    msg_message(&info, 2, &type);
    msg_message(g, field, &info);
}

/* Operands by name, NULL ends them; the output is called as given; `attribute` (NULL: none) is a
 * whole number. */
static inline void graph_node_with(message *g, const char *type, const char *out,
                                   const char *const *in, const char *attribute, int64_t value)
{
    enum { INT = 2 };
    message n = {0}, a = {0};
    for (; *in; in++) msg_text(&n, 1, *in);
    msg_text(&n, 2, out);
    msg_text(&n, 4, type);
    if (attribute) {
        msg_text(&a, 1, attribute);
        msg_int(&a, 3, value);
        msg_int(&a, 20, INT);
        msg_message(&n, 5, &a);
    }
    msg_message(g, GRAPH_NODE, &n);
}

static inline void graph_node(message *g, const char *type, const char *out, const char *const *in)
{
    graph_node_with(g, type, out, in, NULL, 0);
}
#define IN(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline message tensor_begin(const char *name, int type, int ndim, const int64_t *dims)
{
    message t = {0};
    for (int d = 0; d < ndim; d++) msg_int(&t, 1, dims[d]);
    msg_int(&t, 2, type);
    msg_text(&t, 8, name);
    return t;
}

static inline void graph_tensor(message *g, const char *name, int type, int ndim,
                                const int64_t *dims, const void *v, size_t nbytes)
{
    message t = tensor_begin(name, type, ndim, dims);
    msg_bytes(&t, 9, v, nbytes);
    msg_message(g, GRAPH_INITIALIZER, &t);
}

/* float32 from the beginning of a file. */
static inline void graph_external(message *g, const char *name, int64_t count, const char *file)
{
    message t = tensor_begin(name, ONNX_FLOAT, 1, &count), place = {0};
    msg_text(&place, 1, "location");
    msg_text(&place, 2, file);
    msg_message(&t, 13, &place);
    msg_int(&t, 14, 1);
    msg_message(g, GRAPH_INITIALIZER, &t);
}

/* The file of a graph, which is freed; opset 17. */
static inline void graph_write(const char *file, message *g)
{
    message m = {0}, opset = {0};
    FILE *f = fopen(file, "wb");
    msg_int(&opset, 2, 17);
    msg_int(&m, 1, 8);
    msg_message(&m, 8, &opset);
    msg_message(&m, 7, g);
    assert_true(f && fwrite(m.v, 1, m.n, f) == m.n && fclose(f) == 0);
    free(m.v);
}

#endif
