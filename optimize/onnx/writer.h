/* A graph in the making: what the layers' mappings (ops/) are written with. A failure is kept in
 * the pool, so that these need no checks. Private. */
#ifndef TR_ONNX_WRITER_H
#define TR_ONNX_WRITER_H

#include "optimize/onnx/onnx.h"
#include "optimize/onnx/pool.h"

typedef struct {
    const tr_network *n;
    const tr_onnx_options *o;
    int64_t opset;
    tr_pool pool;
    Onnx__ModelProto *model;
    Onnx__GraphProto *graph;
    char **values;         /* [inputs + layers] their names in the graph */
    char **rows;           /* [params] names, once they are there */
    const tr_layer *layer; /* that is being written */
    /* [inputs + layers] whose rows are any number: 1 + the first input that has as many; negative:
     * columns, as permute makes of rows; 0: others. */
    int *along;
    const char
        *length[TR_MAX_IN]; /* by that input: the number in the graph, once something needs it */
} tr_onnx_writer;

typedef Onnx__NodeProto tr_onnx_node;

/* A node with one output: *out, or where that is NULL, "LAYER/what". Returns the node, for its
 * attributes; *made (may be NULL): its output's name. */
tr_onnx_node *tr_onnx_add(tr_onnx_writer *w, const char *type, const char *what, int nin,
                          const char *const *in, const char *out, const char **made);
#define TR_NAMES(...)                                                                              \
    (int)TR_COUNT(((const char *[]){__VA_ARGS__})), (const char *const[])                          \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
/* Another output of the node: "LAYER/what". */
const char *tr_onnx_more(tr_onnx_writer *w, tr_onnx_node *n, const char *what);
/* The same with NAME = output, for chains. */
const char *tr_onnx_chain(tr_onnx_writer *w, const char *type, const char *what, const char *a,
                          const char *b);
void tr_onnx_int(tr_onnx_writer *w, tr_onnx_node *n, const char *name, int64_t v);
void tr_onnx_real(tr_onnx_writer *w, tr_onnx_node *n, const char *name, double v);
void tr_onnx_ints(tr_onnx_writer *w, tr_onnx_node *n, const char *name, size_t count,
                  const int64_t *v);
void tr_onnx_word(tr_onnx_writer *w, tr_onnx_node *n, const char *name, const char *v);
/* The layer's i-th parameter, state: float32 in the graph. */
const char *tr_onnx_param(tr_onnx_writer *w, int i);
const char *tr_onnx_state(tr_onnx_writer *w, int i);
/* A constant "LAYER/what" of float32 or int64 values, which are copied. ndim 0: a scalar. */
const char *tr_onnx_floats(tr_onnx_writer *w, const char *what, int ndim, const int64_t *dims,
                           const float *v);
/* The same, of what weights make: stored as they are. Once by that name. */
const char *tr_onnx_weights(tr_onnx_writer *w, const char *what, int ndim, const int64_t *dims,
                            const float *v);
const char *tr_onnx_scalar(tr_onnx_writer *w, const char *what, double v);
/* Values made of parameters, "LAYER.what", kept as these are: float32 in the graph. They are the
 * pool's. */
const char *tr_onnx_values(tr_onnx_writer *w, const char *what, int ndim, const int64_t *dims,
                           const float *v);
/* One of 8 bits, signed or not. */
const char *tr_onnx_byte(tr_onnx_writer *w, const char *what, bool is_signed, int v);
const char *tr_onnx_int64s(tr_onnx_writer *w, const char *what, size_t count, const int64_t *v);
const char *tr_onnx_int64(tr_onnx_writer *w, const char *what, int64_t v); /* a scalar */

/* ---- sequence.c: whose number of rows the layer's input has, as `along`; a table's first rows, as
 * many; that dimension's name. */
int tr_onnx_along(const tr_onnx_writer *w, int input);
const char *tr_onnx_cut(tr_onnx_writer *w, const char *what, const char *table, int along);
const char *tr_onnx_symbol(tr_onnx_writer *w, int along);
/* Marks `along`, all 0, which stay so where a layer forbids it. */
tr_onnx_sequence tr_onnx_sequence_of(const tr_model *m, int *along);

/* ---- file.c */
tr_status tr_onnx_save(const char *path, const Onnx__ModelProto *model, const tr_onnx_options *o,
                       tr_pool *pool);

#endif
