/* How ONNX says each layer, and what layers each ONNX operator is: a family of both a file.
 * Private. */
#ifndef TR_ONNX_OPS_H
#define TR_ONNX_OPS_H

#include "optimize/onnx/reader.h"
#include "optimize/onnx/writer.h"
#include "runtime/graph/ops.h"

typedef struct {
    const char *layer; /* its type; NULL ends a list */
    /* in: names of the layer's inputs; out: of its output. */
    void (*write)(tr_onnx_writer *w, const tr_layer *l, const char *const *in, const char *out);
    const char *reason; /* why there is no `write` */
    /* Of rows, any number: NULL, or why this one needs as many as it is made for; NULL: all of this
     * type do. */
    const char *(*fixed)(const tr_layer *l);
    bool mixes;                       /* inputs may have numbers of rows of their own */
    bool columns;                     /* of columns, as permute makes of rows, any number */
    bool (*turns)(const tr_layer *l); /* it makes columns of rows, and rows of columns; NULL: no */
} tr_onnx_layer;

typedef struct {
    const char *type; /* NULL ends a list */
    /* Gives the step's first output, or refuses the step. */
    void (*read)(tr_onnx_reader *r, const tr_onnx_step *s);
} tr_onnx_operator;

/* A layer that a file says with several nodes, of which this is the last. */
struct tr_onnx_pattern {
    const char *last;
    /* Whether it ends here; then `operands` are all values that `read` needs. */
    bool (*match)(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n);
    void (*read)(tr_onnx_reader *r, const tr_onnx_step *s);
    bool by_row; /* rows of features do not meet in it */
};

typedef struct {
    const tr_onnx_layer *layers;
    const tr_onnx_operator *operators;
    const tr_onnx_pattern *patterns; /* may be NULL */
} tr_onnx_family;

#define TR_ONNX_FAMILIES(X)                                                                        \
    X(products)                                                                                    \
    X(norms)                                                                                       \
    X(groups)                                                                                      \
    X(activations)                                                                                 \
    X(gelus)                                                                                       \
    X(pools)                                                                                       \
    X(shapes)                                                                                      \
    X(rows)                                                                                        \
    X(arithmetic)                                                                                  \
    X(quantizers)                                                                                  \
    X(resamplers)                                                                                  \
    X(attentions)                                                                                  \
    X(rotaries)                                                                                    \
    X(recurrent)
#define X(name) extern const tr_onnx_family tr_onnx_##name;
TR_ONNX_FAMILIES(X)
#undef X

/* NULL: nobody has heard of it. */
const tr_onnx_layer *tr_onnx_layer_of(const char *type);
const tr_onnx_operator *tr_onnx_operator_of(const char *type);
/* The pattern that ends at the step, which gets its operands; NULL: none. */
const tr_onnx_pattern *tr_onnx_pattern_of(const tr_onnx_reader *r, tr_onnx_step *s);
/* The attributes of such a window, of a layer over sequences (`line`) or images. */
void tr_onnx_write_window(tr_onnx_writer *w, tr_onnx_node *n, bool line, const int64_t kernel[2],
                          const int64_t stride[2], const int64_t padding[2],
                          const int64_t extra[2]);
/* Windows of Conv and pools: kernel, stride and padding of both axes from the attributes and from
 * what is still to be padded; false: refused. Where the two ends differ and padding is `zeros`, a
 * layer pads *x. */
typedef struct {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool same[2]; /* one more at the end than `padding`, for results of the input's size */
    bool ceil;    /* the last window may go beyond the padding */
    bool line; /* over the length of a sequence; the first of each pair stands for a height of 1 */
} tr_onnx_window;
#define TR_ONNX_PADDING 48
/* As a layer's option: "[1, same]". */
const char *tr_onnx_padding_text(const tr_onnx_window *w, char text[TR_ONNX_PADDING]);
/* Of numbers, one each way: "[1, 2]". */
const char *tr_onnx_sizes_text(const tr_onnx_window *w, const int64_t v[2],
                               char text[TR_ONNX_PADDING]);
bool tr_onnx_window_of(tr_onnx_reader *r, const tr_onnx_step *s, int *x, const int64_t padded[4],
                       bool zeros, tr_onnx_window *out);
/* A layer of that type of the value `operand`, with these options (NULL: none). */
void tr_onnx_make_plain(tr_onnx_reader *r, const tr_onnx_step *s, int operand, const char *type,
                        const char *options);
/* Whether two axes are the height and width of a batch of images, in either order. */
bool tr_onnx_are_sides(const int64_t axes[2]);

/* LSTM and GRU: what they give has no layer of its own, only what is made of it. */
bool tr_onnx_is_recurrent(const tr_onnx_step *s);

/* Takes any number of rows. */
const char *tr_onnx_any_rows(const tr_layer *l);

/* ---- parts.c: of a batch x. `out` NULL: "LAYER/what". */
const char *tr_onnx_reshaped(tr_onnx_writer *w, const char *what, const char *x, size_t n,
                             const int64_t *dims, const char *out);
const char *tr_onnx_transposed(tr_onnx_writer *w, const char *what, const char *x, size_t n,
                               const int64_t *order);
/* [begin, end) of the last dimension. */
const char *tr_onnx_part(tr_onnx_writer *w, const char *what, const char *x, int64_t begin,
                         int64_t end);
/* Constants 0, 1, ..., count - 1: (count), or (count, 1); `along`: as many as those have rows. */
const char *tr_onnx_positions(tr_onnx_writer *w, const char *what, int64_t count, bool column,
                              int along);
bool tr_onnx_are_positions(const tr_onnx_reader *r, int value, int64_t count, bool column);
/* Whether a Transpose has this order; the n dims that a Reshape asks for, none beyond INT32_MAX,
 * rows that it keeps as the file's `sequence`; the value of which another one is such a part, -1:
 * it is none. */
bool tr_onnx_is_order(const tr_onnx_step *s, int n, const int64_t *order);
bool tr_onnx_dims_of(const tr_onnx_reader *r, const tr_onnx_step *s, int n, int64_t *dims);
int tr_onnx_part_of(const tr_onnx_reader *r, int value, int64_t *begin, int64_t *end);

#endif
