/* clang-format off */
/* Every op of a graph: operands in order, attributes, meaning. Kernels are written against this
 * page.
 *
 * [x] optional operand (id -1 when absent). N batch, C channels. `act` is tr_op.act, applied last.
 * Activations and their gradients have a type (float32, bfloat16 or float16) and a layout each;
 * parameters, states and parameter gradients are float32; statistics are float64 unless said
 * otherwise. Kernels compute in float32 at least and round once on output; those of parameter
 * gradients overwrite or add (tr_run_adds).
 *  op                     in                                        out
 *  linear                 x(..,I) weight(O,I) [bias(O)]             y(..,O) = act(x W^T + b)
 *  linear.grad_input      dy weight [z]                dx = dy W [times the derivative of act at z]
 *  linear.grad_weight     x dy                                      dweight [dbias]
 *  sklinear.down          x(..,I) S1(K,I)
 *                         h(..,2K) = x A^T (tr_sketch): linear of A, whose lower half is fixed
 *                         signs
 *  sklinear               h S2(O,K) [bias]    y(..,O) = act(h B^T + b), the left half of B is fixed
 *  skconv2d               h(N,2K,H,W) S1(2K,I,kh,kw) [bias]
 *                         y(N,O,H,W), the same of an image's channels, all of B fixed; behind a
 *                         conv2d with S1, which is read by none
 *  sklinear.grad_input, sklinear.grad_weight
 *      of all three, as linear's; dweight of the learned half
 *  conv2d                 x weight(O,I/g,kh,kw) [bias] [residual]   y = act(conv + b + residual)
 *  conv1d                 x(N,C,1,L) weight(O,I/g,k): conv2d with a height of 1; its backward ops
 *                         are conv2d's
 *  conv2d.grad_input      dy weight                                 dx
 *  conv2d.grad_weight     x dy                                      dweight [dbias]
 *  conv_transpose2d       x weight(I,O/g,kh,kw): as conv2d.grad_input; .grad_input as conv2d;
 *                         .grad_weight dy x: as conv2d's
 *  channel_bias           x(N,C,H,W) bias(C)         y = act(x + bias); channel_bias.grad dy: dbias
 *  batchnorm.stats        x                                         stats[1+2C] = count, mean, M2
 *  batchnorm.merge        stats                               stats of all ranks (Chan); collective
 *  batchnorm.running      rmean rvar                stats = 1, mean, variance: in the batch's place
 *  batchnorm              x [weight bias] stats [rmean rvar] [residual]
 *                         y = act(bn(x) + residual); updates rmean, rvar unless tr_op.recomputed
 *  batchnorm.infer        x [weight bias] rmean rvar [residual]     y, from the running statistics
 *  batchnorm.grad_stats   dy x stats [weight] [y] [dy2]             dz sums[2C] [dweight dbias]
 *                           dz = (dy + dy2) masked by y > 0 (where y is given); sums = sum dz, sum
 *                           dz*xhat (local: also the parameter gradients). dz may share dy's bytes;
 *                           without y and dy2 it always does and is not written.
 *  batchnorm.grad_merge   sums                                      sums over all ranks; collective
 *  batchnorm.grad_input   dz [x] stats [weight] [sums]
 *                         dx (may share dz's bytes); x, sums absent: the statistics do not depend
 *                         on x: dx = dz * weight / std
 *                           stats: merged over all ranks where synchronized; count = stats[0]
 *  layernorm              x(..,D) weight bias             y stats[rows*2] float32: mean, rstd a row
 *  layernorm.grad         dy x weight stats                         dx dweight dbias
 *  rmsnorm                x(..,D) weight           y stats[rows*2] float32: 0, 1 / root mean square
 *  rmsnorm.grad           dy x weight stats                         dx dweight
 *  groupnorm              x(N,C,..) [weight(C) bias(C)]
 *                         y stats[N*groups*2] float32: mean, rstd of a sample's group
 *  groupnorm.grad         dy x [weight] stats          dx [dweight dbias] (dx may share dy's bytes)
 *  relu gelu silu sigmoid tanh          x                           y
 *  relu.grad sigmoid.grad tanh.grad     dy y                        dx (may share dy's bytes)
 *  gelu.grad silu.grad                  dy x                        dx (may share dy's bytes)
 *  leaky_relu             x                                       y = x where x > 0, else slope * x
 *  leaky_relu.grad        dy x                                      dx (may share dy's bytes)
 *  fake_quantize          x                                         y = scale * (q - zero_point)
 *                           q = clamp(r + zero_point), r = x * (1 / scale) in float32, to the
 *                           nearest, even at halves
 *  fake_quantize.grad     dy x               dx = dy where q was not clamped (may share dy's bytes)
 *  quantize_weight        weight(O,..)
 *                         y(O,..) = scale[o] * round(weight / scale[o]), scale[o] the 127th part of
 *                         the largest magnitude of output o (all outputs: per_tensor); 1 where that
 *                         is 0. The gradient passes: it is the weight's own
 *  fake_quantize.learned      x scale(1)                    y = s * q, s = |scale|, at least 1e-20,
 *                           q = clamp(round(x / s)) to [least, most] of tr_learned_steps, by 1 / s
 *                           as fake_quantize
 *  quantize_weight.learned    weight(O,..) scale(O or 1)
 *                             y(O,..), the same with the scale of output o
 *  quantize.learned_grad      dy x scale                            [dx] [dscale]
 *                           dx = dy where q was not clamped (may share dy's bytes; a weight's: its
 *                           gradient); dscale = sign(scale) / sqrt(n * positive) * sum of dy * (q -
 *                           x / s, or q where it was clamped)
 *  dynamic_quantize       x
 *                         y = s * q, q = clamp(round(x / s)) to 8 bits, s of each row
 *                         (tr_dynamic_rows): its largest value or magnitude (at least 1e-30) / 255
 *                         or 127; by 1 / s as fake_quantize
 *  int8.dynamic           x
 *                         y of 8 bits, those q; s(rows) float32; NaN becomes the least, -127 or 0
 *  int8.rescale           x s(rows) [bias] [residual]
 *                         y = act(fma(x, s of its row, bias) + residual), x float32, of a product
 *                         of int8.dynamic's y as if its scale were 1 (may share x's bytes)
 *  int8.quantize          x
 *                         y of 8 bits, with its scale (tr_tensor.scale): clamp(r) of type y, r as
 *                         of fake_quantize; NaN becomes the least
 *  int8.dequantize        x of 8 bits                               y = scale * x
 *  conv2d.int8, conv2d.int8_groups, linear.int8   x weight scale(O) [bias] [residual]
 *      y = act(x * weight + bias + residual), act relu or none x, residual of 8 bits; y too, or of
 *      the type of activations; weight / scale whole, in [-127, 127]; sums are exact, what follows
 *      is kernels/cpu/int8/int8.h's
 *  avgpool2d.int8, global_avgpool.int8   x of 8 bits
 *                                        y of 8 bits: v = sum * ((scale of x / scale of y) / places
 *                                        that count),
 *                           sum exact, clamped to y's type, then rounded, halves even
 *  concat.int8            a b [...] of 8 bits
 *                         y of 8 bits: v = q * (scale of the operand / scale of y), likewise
 *  relu6                  x                                         y = x within [0, 6]
 *  relu6.grad             dy y                                      dx (may share dy's bytes)
 *  elu                    x                            y = x where x > 0, else alpha * (exp(x) - 1)
 *  hardswish              x                                         y = x * relu6(x + 3) / 6
 *  hardsigmoid            x                                         y = relu6(x + 3) / 6
 *  softplus               x             y = log(1 + exp(beta x)) / beta; x where beta x > threshold
 *  elu.grad hardswish.grad hardsigmoid.grad softplus.grad   dy x    dx (may share dy's bytes)
 *  prelu                  x weight
 *                         y = x where x > 0, else weight * x; weight of one element, or one a
 *                         channel of an image, a feature
 *  prelu.grad             dy x weight
 *                         [dx] dweight = sum of dy * x where x <= 0 (dx may share dy's bytes)
 *  softmax                x
 *                         y, over the innermost stored dimension (channels of a channels-last x,
 *                         else the last)
 *  softmax.grad           dy y                                      dx
 *  maxpool2d              x
 *                         y [indices] (training; oneDNN's layout: position in the window, uint8, or
 *                         int32 from 256 positions)
 *  maxpool1d avgpool1d    x(N,C,1,L): maxpool2d, avgpool2d with a height of 1; backward ops are
 *                         these'
 *  maxpool2d.grad         dy indices                                dx
 *  avgpool2d              x                                         y
 *  avgpool2d.grad         dy                                        dx
 *  global_maxpool         x(N,C,H,W)                  y(N,C,1,1) [indices]: maxpool2d of one window
 *  global_avgpool         x(N,C,H,W)                                y(N,C,1,1)
 *  global_avgpool.grad    dy                                        dx
 *  adaptive_avgpool2d, pad, upsample    x(N,C,H,W)
 *                                       y(N,C,OH,OW) = value where tr_resample has nothing, else
 *                                       sums of weight_h * weight_w * x
 *  adaptive_avgpool2d.grad, pad.grad, upsample.grad    dy           dx, by the same weights
 *  class_token            x(N,T,F) weight(F)             y(N,T+1,F): the weight, then the rows of x
 *  class_token.row        dy(N,T+1,F)                               its first row (N,F,1,1)
 *  class_token.grad       dy(N,T+1,F)                               dx(N,T,F)
 *  select                 x(N,T,F) [lengths(N,1) int32]
 *                         y(N,F): row index (tr_rows_taken), 0 where there is none
 *  mean_rows              x(N,T,F) [lengths(N,1) int32]
 *                         y(N,F): the mean of all rows, or of those that count; 0 of none
 *  select.grad, mean_rows.grad    dy(N,F) [lengths]
 *                                 dx(N,T,F): dy over the number of rows taken; 0 elsewhere
 *  reshape, permute       x
 *                         y: its elements in another shape or order (a view where the stored order
 *                         stays)
 *  reshape.grad, permute.grad           dy                          dx
 *  flatten                x(N,C,H,W)
 *                         y(N,C*H*W) in C,H,W order (a view where the stored order already is that)
 *  flatten.grad           dy                                        dx
 *  dropout                x                                         y = x * keep / (1-p)
 *  dropout.grad           dy                                        dx: the same mask again
 *                           element e of the sample with ordinal s is kept iff
 *                           tr_uniform(word e%4 of tr_philox_at(seed, TR_RNG_DROPOUT, layer_index,
 *                           s, e/4)) >= p, e counting in stored order
 *  drop_path              x
 *                         y = x * keep / (1-p), keep one of each sample: as element 0's of dropout
 *                         (may share x's bytes)
 *  drop_path.grad         dy                         dx: the same ones again (may share dy's bytes)
 *  attention              q(N,T,heads D) k(N,S,kv D) v(N,S,kv D) [lengths(N,1) int32]
 *                         y(N,T,heads D) [lse(N,heads,T) float32] or for q a packed (N,T,(heads + 2
 *                         kv) D), k and v absent; kv: kv_heads y = softmax(scale q k^T - slope |i -
 *                         j|) v of each head, over the keys of tr_attention_keys; 0 where a row has
 *                         none. lse: log of the sum of a row's exponentials; training alone in a
 *                         graph that decodes (tr_decode) behind q k v lengths: past(N,1) count(N,1)
 *                         int32 keys(N,kv,S,D) values(N,kv,S,D) held: rows 0 to count - 1 of k and
 *                         v go to rows past on of them, and query i sees keys 0 to past + i
 *  attention.grad         dy q k v [lengths] y lse
 *                         [dq] [dk] [dv]; of a packed one dq is all of it with dropout the
 *                         probability of key j for query i of head h of the sample with ordinal s
 *                         is kept, and divided by 1 - p, iff tr_uniform(word j%4 of
 *                         tr_philox_at(seed, TR_RNG_DROPOUT, layer_index, (s heads + h) T + i,
 *                         j/4)) >= p
 *  rotary                 x(N,T,heads D) [past(N,1)]
 *                         y: pairs of a head's first `dim` values turned by the angle position *
 *                         base^(-2k/dim): k and k + dim/2 (half), or 2k and 2k + 1 (interleaved)
 *                         past: of a graph that decodes, the first row's position
 *  rotary.grad            dy                       dx: turned back (both may share x's, dy's bytes)
 *  embedding              ids(N,T) int32, weight(V,D)               y(N,T,D) = weight[ids]
 *  embedding.grad         dy ids                        dweight: dy of equal ids summed by position
 *  positions              x(N,T,F) [weight(T,F)] [past(N,1)]
 *                         y = x + weight of each sample, absent: sines (tr_positions_table); past:
 *                         of a graph that decodes, the first row's position (may share x's bytes);
 *                         positions.grad dy: dweight
 *  add                    a b [...]                y = act(a + b + ...) (may share any one's bytes)
 *  mul                    a(N,C,H,W) b
 *                         y = a * b, b of a's shape, or (N,C,1,1): a factor for each channel of a
 *                         channels-last a (may share a's bytes)
 *  mul.grad_scale         dy a                        db(N,C,1,1): sums of dy * a over each channel
 *  concat                 a b [...]                                 y along dimension `axis`
 *  concat.grad            dy                                        da db [...]
 *  lstm_layer             x(N,T,4H) weight(4H,H) [bias(4H)] [lengths(N,1) int32]
 *                         y(N,T,H) [gates(N,T,4H) cells(N,T,H) float32]
 *  gru_layer              x(N,T,3H) weight(3H,H) [bias(3H)] [lengths(N,1) int32]
 *                         y(N,T,H) [gates(N,T,3H) recurrent(N,T,H)] x: the inputs' product with its
 *                         bias; gates in PyTorch's order: i f g o, r z n. gates, after their
 *                         activations (may share x's bytes), cells and recurrent (what r scales) in
 *                         training. Rows from a sample's length on leave the state as it is; y
 *                         there: 0, with hold the state. In a graph that decodes behind lengths,
 *                         its count: h(N,H) state(N,H) float32 held: what the last run left
 *  lstm_layer.grad, gru_layer.grad   dy y gates cells weight [lengths]
 *                                    dx [before(N,T,H)] [dproduct(N,T,3H)] (dx may share gates'
 *                                    bytes)
 *                           before: the state that each row started from, y of the row before;
 *                           dproduct, gru's alone: the gradient of weight h + bias (lstm's is dx).
 *                           With them linear.grad_weight makes dweight dbias
 *  cross_entropy          logits(N,..,C) labels(N,..) int32
 *                         [dlogits] in training (may share logits' bytes) of rows of C that lie
 *                         next to each other, an image's channels (N,C,H,W) with labels (N,H,W); or
 *                         probabilities float32, stored like the logits, for labels
 *  mse, l1, huber,        y target (same shape) float32
 *                         [dy] in training; bce and focal take logits.
 *  smooth_l1, bce, focal                                              The target is stored like y
 *                           with [weights(N) float32] behind the target: of each sample's loss,
 *                           weight and gradient. losses add to tr_run.tally; gradients are of the
 *                           *sum* of weighted per-sample losses times tr_run.loss_scale
 *  soft_loss              logits(N,C) teacher(N,C) [labels(N)]
 *                         [dlogits]; labels where classes have weights adds factor *
 *                         KL(softmax(teacher / T) || softmax(logits / T)) to the tally's loss alone
 *  feature_loss           x teacher (same shape) [labels(N)]        [dx]
 *                           adds factor * sum of (x - teacher)^2 of each sample, likewise */
/* clang-format on */
#ifndef TR_OPS_H
#define TR_OPS_H

#include "runtime/graph/attention.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/rows.h"

/* Of products of 8 bits: so many of at most 255 * 127 sum up to an int32. */
#define TR_INT8_SUMMANDS (INT32_MAX / (255 * 127))

typedef struct {
    int64_t out;
    bool bias;
    tr_sketch sketch; /* the matrix is part learned, part fixed signs */
} tr_linear_attrs;

typedef struct {
    int64_t out, groups;
    int64_t kernel[2], stride[2], padding[2], dilation[2]; /* dilation 1 = dense; height, width */
    int64_t extra[2]; /* padding at the end beyond that at the beginning */
    bool bias;
} tr_conv2d_attrs;

/* Of skconv2d: the op's, and the convolution's before it. */
typedef struct {
    tr_linear_attrs a;
    tr_conv2d_attrs conv;
} tr_skconv2d_attrs;

/* The matrix W (out, in) that a linear op multiplies with, `learned` (rows, columns) of it, from a
 * row or column on, being `weight`, or what a gradient is of. */
typedef struct {
    int64_t out, in, learned[2], at[2];
} tr_linear_matrix;
static inline tr_linear_matrix tr_linear_matrix_of(const tr_op *op, const tr_tensor *weight)
{
    const tr_linear_attrs *a = (const tr_linear_attrs *)op->attrs;
    const int64_t rows = weight->dims[0], columns = weight->dims[1];
    tr_linear_matrix m = {.out = rows, .in = columns, .learned = {rows, columns}, .at = {0, 0}};
    switch (a ? a->sketch.side : TR_SKETCH_NONE) {
    case TR_SKETCH_DOWN:
        m.out = 2 * rows;
        break;
    case TR_SKETCH_UP:
        m.in = 2 * columns;
        m.at[1] = columns;
        break;
    case TR_SKETCH_SIGNS:
        m.out = a->out;
        m.in = rows;
        m.learned[0] = m.learned[1] = 0;
        break;
    default:
        break;
    }
    return m;
}

typedef struct {
    double eps;
    double momentum; /* running = (1-m) * running + m * batch (variance unbiased), as PyTorch's */
} tr_batchnorm_attrs;

typedef struct {
    double eps;
    bool rms; /* by the root of the mean square, with no mean taken off and no bias */
    int dims; /* so many of a sample's last dimensions, as they are written; 0: what lies innermost
               */
} tr_layernorm_attrs;

typedef struct {
    int64_t groups;
    double eps;
    bool affine;
} tr_groupnorm_attrs;

typedef struct {
    bool tanh; /* the tanh approximation; else exact (erf) */
} tr_gelu_attrs;

typedef struct {
    double negative_slope;
} tr_leaky_relu_attrs;

/* Of ops that round by a learned scale. */
typedef struct {
    float least, most; /* steps, less the zero point */
    float positive;    /* Q_P of the gradient's scale: the type's largest number */
    bool sampled;      /* n of the gradient's scale: a sample's elements, else those of a scale */
} tr_learned_steps;

typedef struct {
    double alpha;
} tr_elu_attrs;

typedef struct {
    double beta, threshold;
} tr_softplus_attrs;

typedef struct {
    bool per_channel; /* else one weight for all */
    double init;
} tr_prelu_attrs;

typedef struct {
    double scale; /* a float32 */
    int64_t zero_point;
    bool is_signed; /* -128 to 127, else 0 to 255 */
    bool learn_scale;
    tr_learned_steps steps; /* the same, where the scale is learned */
} tr_fake_quantize_attrs;

typedef struct {
    bool per_tensor; /* one scale for all outputs */
} tr_quantize_weight_attrs;

typedef struct {
    bool is_signed; /* steps from -127 to 127, else from 0 to 255 */
} tr_dynamic_attrs;

/* Rows that dynamic_quantize rounds apart: samples of images, else what lies along the last
 * dimension. No row is of two samples, so that answers do not depend on the batch. */
static inline size_t tr_dynamic_rows(const tr_tensor *x)
{
    return x->ndim == 4 ? (size_t)x->dims[0] : x->count / (size_t)x->dims[x->ndim - 1];
}

typedef struct {
    int64_t kernel[2], stride[2], padding[2], extra[2]; /* as a convolution's */
    bool count_include_pad;                             /* average: padding counts, as zeros */
    bool ceil_mode; /* a last window may end behind the padding, where nothing counts */
} tr_pool2d_attrs;

/* Of adaptive_avgpool2d, pad and upsample: rows are made of rows, columns of columns, by
 * weights. */
typedef enum {
    TR_RESAMPLE_AVERAGE, /* adaptive: result o is the mean of places [o S / R, (o + 1) S / R),
                            rounded outwards */
    TR_RESAMPLE_NEAREST,
    TR_RESAMPLE_BILINEAR,
    TR_RESAMPLE_CONSTANT, /* pad: */
    TR_RESAMPLE_REFLECT,
    TR_RESAMPLE_REPLICATE
} tr_resample_kind;
typedef struct {
    int kind;
    bool align_corners; /* bilinear: the outermost places stay where they are */
    int64_t before[2];  /* pad: rows above, columns to the left; negative ones are cut off */
    double value;       /* constant: of what is put around */
} tr_resample_attrs;

/* Places of one axis that each place of what is written is made of: taps [begin[o], begin[o + 1]),
 * `from` ascending. Owned: tr_free(begin). */
typedef struct {
    int32_t from;
    float weight;
} tr_tap;
typedef struct {
    size_t size, count; /* places written; taps */
    tr_tap *taps;
    int32_t *begin; /* [size + 1] */
} tr_taps;
/* A tensor as images, channels innermost: rows (N, T, F) of height T and width 1, (N, F) of one
 * pixel. */
typedef struct {
    int64_t channels, size[2]; /* height, width */
} tr_places;
static inline tr_places tr_places_of(const tr_tensor *t)
{
    const bool image = t->layout == TR_LAYOUT_CHANNELS_LAST;
    return image ? (tr_places){t->dims[1], {t->dims[2], t->dims[3]}}
                 : (tr_places){t->dims[t->ndim - 1], {t->ndim > 2 ? t->dims[1] : 1, 1}};
}
/* Of an op of that kind or its gradient. axis: 0 height, 1 width. */
tr_status tr_resample_taps(const tr_graph *g, const tr_op *op, int axis, tr_taps *out);
float tr_resample_value(const tr_op *op); /* where there are no taps */

typedef struct {
    int64_t dims[TR_MAX_DIMS]; /* result's dimension i is this one of x; 0 counts samples */
} tr_permute_attrs;

typedef struct {
    double p;
} tr_dropout_attrs;

typedef struct {
    int64_t num, dim; /* V, D */
} tr_embedding_attrs;

typedef enum { TR_POSITIONS_LEARNED, TR_POSITIONS_SINUSOIDAL } tr_positions_kind;
typedef struct {
    int kind;
} tr_positions_attrs;
/* Sinusoidal (Vaswani et al. 2017): out[t * width + 2i] = sin(t / 10000^(2i / width)), out[t *
 * width + 2i + 1] the cosine. */
void tr_positions_table(size_t length, size_t width, float *out);

tr_attention_shape tr_attention_of(const tr_graph *g, const tr_op *op);

typedef struct {
    int64_t heads, dim; /* dim: of a head's values, so many are turned */
    double base;
    int style; /* tr_rotary_style */
} tr_rotary_attrs;
typedef enum { TR_ROTARY_HALF, TR_ROTARY_INTERLEAVED } tr_rotary_style;
/* turn[positions][2][dim / 2]: each pair's cosine at a position, then sines. */
void tr_rotary_table(const tr_rotary_attrs *a, size_t positions, float *turn);

/* Of a recurrent layer's ops: the linear one of its inputs too. */
enum { TR_RECURRENT_H = 4, TR_RECURRENT_STATE }; /* operands in a graph that decodes */
typedef struct {
    tr_linear_attrs product; /* out: gates * hidden */
    int64_t hidden;
    bool reverse; /* from the last row to the first */
    bool hold;    /* rows behind a sample's length have its last state, else 0 */
} tr_recurrent_attrs;
enum { TR_GRU_GATES = 3, TR_LSTM_GATES = 4 };

/* What flatten and its gradient do to a stored sample: rows x cols elements as read, transposed;
 * where either is 1, a plain copy. */
typedef struct {
    size_t samples, rows, cols;
} tr_transposition;
tr_transposition tr_flatten_of(const tr_graph *g, const tr_op *op);
/* The same of reshape, permute and their gradients; false: it is none. Then a stored sample's
 * element i is its element table[i] before. */
bool tr_rearrange_of(const tr_graph *g, const tr_op *op, tr_transposition *out);
void tr_rearrange_table(const tr_graph *g, const tr_op *op, int32_t *table);

/* Of concat and concat.grad: dims[axis] of each piece, whether its gradient is wanted or not. */
typedef struct {
    int64_t axis; /* from 1: 0 counts samples */
    int64_t width[TR_MAX_IN];
} tr_concat_attrs;

/* Where a concat's result has operand k: rows of it, one behind the other or side by side with
 * those of the other operands. */
typedef struct {
    size_t rows, at; /* of the result, and the first byte of the operand in its first one */
    int64_t pitch;   /* elements from one row of the result to the next */
    bool innermost;  /* a row is the result's innermost dimension */
} tr_concat_place;
tr_concat_place tr_concat_place_of(const tr_graph *g, const tr_op *op, int k);
/* It lies there (TR_PASS_CONCAT_IN_PLACE), and is not to be copied. */
bool tr_concat_in_place(const tr_graph *g, const tr_op *op, int k);

/* Of cross_entropy. Of labels: loss(i) = w[label] * -log p[label], smoothed as PyTorch's:
 * (1-s) * w[label] * -log p[label] + s/C * sum_c w[c] * -log p[c]; with gamma w[label] * (1 -
 * p[label])^gamma * -log p[label] (Lin et al. 2017). Its weight is w[label]. A sample with the
 * label ignore_index has no loss, weight or gradient, and is not counted.
 * Of probabilities t: sum_c w[c] * ((1-s) t[c] + s/C) * -log p[c], its weight 1; its class is the
 * first of the greatest. */
typedef struct {
    double label_smoothing;
    size_t classes;
    const double *class_weights; /* NULL: all 1 */
    double factor;               /* of loss and gradient: 1, but where a model is distilled */
    double gamma;                /* of labels; 0: none */
    bool ignores;
    int32_t ignore_index;
} tr_cross_entropy_attrs;

/* Whether a row's label may be one that does not count, and which: the loss's ignore_index, or,
 * where a sequence is evaluated, what windows of tokens are filled up with. */
static inline bool tr_xent_ignores(const tr_cross_entropy_attrs *a, tr_mode mode, size_t rows,
                                   int32_t *label)
{
    *label = a->ignores ? a->ignore_index : TR_FILLED_LABEL;
    return a->ignores || (mode == TR_MODE_EVALUATE && rows > 1);
}

/* Of the losses of one output and one target each. z: output, t: target, d = z - t, p = sigmoid(z).
 *   mse       d^2
 *   l1, huber, smooth_l1   |d| < delta: curve / 2 * d^2, else slope * (|d| - delta / 2)
 *   bce       -(w t log p + (1 - t) log(1 - p)), w: pos_weight
 *   focal     (1 - p_t)^gamma * bce without weights, p_t = p t + (1 - p)(1 - t), and where alpha >=
 *             0 times alpha t + (1 - alpha)(1 - t) (Lin et al. 2017; torchvision's
 *             sigmoid_focal_loss) */
typedef struct tr_elementwise_loss_attrs {
    int kind; /* tr_loss_kind */
    float delta, curve, slope;
    float gamma, alpha;
    size_t npos; /* 0: all 1; else one weight for each place of the last stored dimension */
    const float *pos_weight;
} tr_elementwise_loss_attrs;

/* Of soft_loss and feature_loss. A sample's loss is multiplied by the weight of its class. */
typedef struct {
    double factor, temperature;  /* T: of soft_loss */
    size_t classes;              /* of the labels */
    const double *class_weights; /* NULL: all 1 */
} tr_distill_attrs;

#endif
