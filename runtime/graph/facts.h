/* What a layer computes when nothing is learned, for those who make one model of another without
 * knowing an op by its name: passes that fold and merge, pruning. All Local.
 *
 * A value's channels are the first dimension of an image and the last of anything else. */
#ifndef TR_GRAPH_FACTS_H
#define TR_GRAPH_FACTS_H

#include "runtime/graph/model.h"

typedef enum {
    TR_CHANNELS_MIXED, /* what a channel becomes depends on the others, or on how many there are */
    TR_CHANNELS_EACH,  /* channel c is made of channel c of every input, and of the c-th element of
                            each of its parameters and states, or of the only one */
    TR_CHANNELS_PRODUCT, /* tr_layer_product */
    TR_CHANNELS_JOINED,  /* those of the first input, then those of the second, ... */
    TR_CHANNELS_SPREAD,  /* a channel becomes several: tr_layer_source_channel */
    TR_CHANNELS_ROWS,    /* of its own: the last dimension of its weight */
    TR_CHANNELS_HEADS    /* all values of a head go together: tr_layer_heads */
} tr_channels;
tr_channels tr_layer_channels(const tr_layer *l);
int64_t tr_shape_channels(const tr_shape *s);
int64_t tr_shape_places(const tr_shape *s); /* elements of one channel */
/* TR_CHANNELS_SPREAD: the channel of its input that channel `c` of its output is. */
int64_t tr_layer_source_channel(const tr_layer *l, int64_t c);

/* For those who change how wide layers are. The option that says how many channels its output has;
 * NULL: that follows from what it reads. */
const char *tr_layer_width(const tr_layer *l);
/* Its output has as many channels as its inputs, which must be a multiple of so many; 0: it has
 * not, or they are named. */
int64_t tr_layer_keeps_width(const tr_layer *l);

/* TR_CHANNELS_HEADS: `heads` heads of `size` channels, one after the other, are its output and its
 * queries; behind these in the same input (packed), or in two inputs more, kv_heads of keys, then
 * of values, each of which serves heads / kv_heads neighbouring heads; 0: there are none. Its
 * options heads and, where there are some, kv_heads make another one. */
typedef struct {
    int64_t heads, kv_heads, size;
    int64_t turned; /* so many values of a head, its option dim; 0: it has none */
    bool packed;
} tr_heads;
bool tr_layer_heads(const tr_layer *l, tr_heads *out); /* false: it is none */

/* A sum of inputs times weights: weight (out, in / groups, window...) and, with the option `bias`,
 * bias (out). Its options `out`, `bias` and `groups` (where it has them) make another one. */
typedef struct {
    int64_t groups, stride[2], padding[2], dilation[2]; /* 1, 1, 0, 1 of one without a window */
    int64_t extra[2]; /* padding at the end beyond that at the beginning */
} tr_product;
/* False: it is none. `out` may be NULL. */
bool tr_layer_product(const tr_layer *l, tr_product *out);
/* Whether a product has a bias, its second parameter. */
static inline bool tr_product_biased(const tr_model *m, const tr_layer *l)
{
    return l->nparams > 1 + (m->params[l->params[0]].learned_scale >= 0);
}
bool tr_product_pads(const tr_product *p); /* zeros around its input count */

/* y[c] = weight[c] * (scale * x[c] + shift) + bias[c], weight and bias being its two parameters, or
 * 1 and 0 where it has none, and scale and shift made of its states; `states`: their values. */
bool tr_layer_is_affine(const tr_layer *l);
void tr_layer_affine(const tr_layer *l, const float *const *states, int64_t c, double *scale,
                     double *shift);

/* What may be taken out of it, the same for a channel's every place. */
enum {
    TR_COMMUTES_POSITIVE = 1, /* f(s x) = s f(x) for s > 0 */
    TR_COMMUTES_SCALE = 2,    /* for any s */
    TR_COMMUTES_SHIFT = 4,    /* f(x + t) = f(x) + t */
    TR_COMMUTES_ALL = 7
};
unsigned tr_layer_commutes(const tr_layer *l);

/* Its output is its only input, but for the shape's name: in evaluation it does nothing. */
bool tr_layer_same(const tr_layer *l);
/* Its output is the elementwise sum of its inputs, two or more. */
bool tr_layer_sums(const tr_layer *l);
/* Its output is never below 0; it leaves alone what is not. */
bool tr_layer_nonnegative(const tr_layer *l);
bool tr_layer_rectifies(const tr_layer *l);
/* Activation of one number, in double; false: it is none. */
bool tr_layer_activation(const tr_layer *l, double x, double *y);
/* The type without options that computes the same on this input; NULL: none. */
const char *tr_layer_plain(const tr_layer *l);
/* What `second`, with these options instead of its own, does to the input of `first` is what it
 * does as it is to the output of `first`, which nothing needs then: two paddings, permutations,
 * shapes; zeros around what a convolution reads. */
typedef struct {
    size_t noptions;
    char options[3][96]; /* "padding=[1, 1, 2, 2]" */
} tr_merged;
bool tr_layer_merged(const tr_layer *first, const tr_layer *second, tr_merged *out);
/* Its outputs are inputs, at other places or the largest of some: of 8 bits as of floats. */
bool tr_layer_moves(const tr_layer *l);
/* It can be computed of 8 bits, each input with a scale of its own, to 8 bits; what is no
 * product. */
bool tr_layer_carries_steps(const tr_layer *l);
/* The type of layers that round to 8 bits and back: options scale, signed
 * (tr_fake_quantize_attrs). */
const char *tr_layer_rounder(void);
/* Of those that round by the data at hand: option signed (tr_dynamic_attrs). */
const char *tr_layer_dynamic_rounder(void);
/* Of one type with the same attributes; names, inputs and common options apart. */
bool tr_layer_equal(const tr_layer *a, const tr_layer *b);
/* A layer that is learned in sketches beside the dense one: the matrix (out, in), the width 2 K of
 * what lies between the two products, values of weights and multiply-adds of one sample: its own,
 * the dense layer's. False: it is none. */
typedef struct {
    int64_t out, in, width;
    double parameters[2], multiply_adds[2];
} tr_sketch_facts;
bool tr_layer_sketch(const tr_model *m, const tr_layer *l, tr_sketch_facts *out);
/* The type that is this one learned in sketches, with the options out, bias and those of a window,
 * and terms, rank, seed; NULL: there is none, or not with this layer's options. Of its rows, s1
 * holds U1 W, s2 W U2^T (tr_sketch). */
const char *tr_layer_sketched(const tr_layer *l);
/* Which layers of a model are to be learned in sketches, and how. */
typedef struct {
    const tr_node *match; /* patterns of names; NULL: all whose sketch takes less arithmetic */
    int64_t terms, rank;
} tr_sketch_choice;
typedef struct {
    const tr_model *model;
    const tr_sketch_choice *choice;
} tr_sketching;
/* Why the layer cannot be; NULL: it can. */
const char *tr_sketch_obstacle(const tr_model *m, const tr_layer *l);
bool tr_sketch_chosen(const tr_sketching *s, const tr_layer *l);
/* TR_CONFIG where a pattern (of the key `key`) names no layer, or all of them none that can be. */
tr_status tr_sketch_check(const tr_sketching *s, const char *key);
/* A tr_model_edit whose ctx is a const tr_sketching: those that are chosen, of the same names and
 * options. */
tr_status tr_sketch_edit(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value);
/* Multiply-adds of one sample; 0 of what is no product. */
double tr_layer_multiply_adds(const tr_model *m, const tr_layer *l);
/* Of these the part that is not with zeros around its input: kernels leave out the rest. 1 of what
 * pads nothing. */
double tr_layer_unpadded(const tr_model *m, const tr_layer *l);

#endif
