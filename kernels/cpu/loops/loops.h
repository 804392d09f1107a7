/* The vector loops: plain C with `omp simd`, compiled once for each instruction set level and
 * reached through one table a level. Single-threaded, no allocation, no state: kernels (ops/) cut
 * the work into pieces, hand them to threads and merge what comes back.
 *
 * `t` is the type of the activations: TR_F32 or TR_BF16. Arithmetic is in float32 and rounds once
 * on output; sums leave a loop in float64. In and out may be the same array, never shifted ones.
 * NaN and infinities go through every loop as IEEE says.
 *
 * Normalization, over `rows` rows of C contiguous channels:
 *  bn_stats       mean[C] and M2[C] (sum of squared deviations) of the rows
 *  bn_apply       y = act(x * scale[c] + shift[c] + residual), residual NULL = none
 *  bn_grad_stats  d = dy + dy2 where y > 0, else 0 (dy2, y NULL = not there); writes d to dz unless
 *                 it is dy itself (no dy2, no y); sum_d[C] = sum d,
 *                 sum_dx[C] = sum d * (x - mean[c])
 *  bn_grad_input  dx = a[c] * dz + b[c] * x + c0[c]
 *  ln_apply       layernorm of rows of D; stats[2 * rows] = mean, 1/sqrt(var + eps), or NULL; bias
 *                 NULL = none; not `centered`: 0 in the mean's place, the mean square in the
 *                 variance's
 *  ln_grad_input  dx of rows of D
 *  ln_grad_param  dw[D] += sum dy * xhat, db[D] += sum dy; float64
 *  column_sums    sums[C] (+)= sum over rows of x, rows `stride` elements apart
 *
 * Elementwise, over n elements:
 *  act, act_grad  of tr_act; `saved` is y for relu, sigmoid and tanh and x for gelu and silu
 *  add            y = act(in[0] + ... + in[count - 1])
 *  elementwise    the op of kernels/elementwise.h, with its numbers; y NULL with one operand
 *  quantize       y = x * inverse, clamped to [least, 127 or 255] and rounded, int8 or uint8
 *                 (`is_signed`); NaN is least
 *  dequantize     y = x * scale, x int8 or uint8
 *  learned        y = scale * clamped and rounded x / scale
 *  learned_grad   dx = dy where nothing was clamped, added to what is there if `add` (float32),
 *                 NULL = not wanted; returns the sum of dy * d y / d scale
 *  largest        of n elements: the largest magnitude, or if not `is_signed` the largest value; at
 *                 least 0; NaN counts not
 *  rescale        y = act(fma(x, scale, bias[c]) + residual), rows of C, x float32, row r's scale:
 *                 scale[r / places]; bias, residual NULL = none
 *  quantize_rows  rows of D float32: to multiples of the largest magnitude's 127th part (1 where it
 *                 is 0)
 *  mul            y = x * factor, of rows of C with one row of factors (stride 0) or as many (C)
 *  prelu          y = x where x > 0, else weight * x, of rows of C with one row of weights
 *                 (`each`), or one weight for all
 *  prelu_grad     dx (NULL = not wanted); dw[C] (or dw[1]) = sum dy * x where x <= 0; float64
 *  scale          y = x * factor, factor one number
 *  dropout        one sample's elements, of which x[0] is element `first` (a multiple of 4)
 *  cast_bf16, cast_f32; round_bf16: float32, of values that bfloat16 has
 *  sign_tables    of each four of n numbers (n a multiple of 4) the 16 sums by their signs: bit k
 *                 of the place: minus x[k]
 *  signed_sums    y[r] = unit * sum of +-x, of `rows` rows of signs of 32 * words bits each (1:
 *                 minus), x as long, given as its tables; of TR_SIGN_ROWS rows, up to a multiple of
 *                 which signs are there, the first words stand together, then the second; `add`: to
 *                 what is there
 *
 * Rows of D of a float32 table by number:
 *  gather_rows    y[r] = table[ids[r]]
 *  scatter_rows   table[ids[r]][begin..end) += dy[r][begin..end), r ascending, of ids that are
 *                 `which` modulo `of`
 *
 * Attention, of a tile of scores, its rows queries, its columns keys (tr_cpu_scores):
 *  attention_probs    s to probabilities in p (may be s), by the largest score so far: top, sum and
 *                     fade of each row, fade what was added up before is times (online softmax);
 *                     then dropout
 *  attention_grad     s and dp to probabilities p and the gradient ds of the scores (may be s and
 *                     dp)
 *  attention_fade     o *= fade, rows of D
 *  attention_out      y = o / sum, lse = top + log(sum) (NULL: not wanted), rows of D; 0 and -inf
 *                     where sum is 0
 *  attention_delta    delta = sum of dy * y of rows of D, `pitch` apart
 *  attention_held     y(heads, D) of one query's q(heads, D) that looks back on rows of keys and
 *                     values
 *  dots               out[i] = sum of x * row i, of n rows of D
 *  add_act            y = act(x + bias), bias NULL = none
 *  rotate             `pairs` pairs (x[k], x[k + apart]), or with apart 0 (x[2k], x[2k + 1]),
 *                     turned: turn[k] = cos, turn[pairs + k] = sin, times `sign`; y may be x
 *
 * Rows of C: mul_sums  sums[begin..end) = sums of dy * x over the rows, rounded to the type
 *
 * Rows of D: softmax, softmax_grad; transpose of a rows x cols matrix of 1-, 2- or 4-byte elements;
 * transpose_apart of float32 whose rows are so many elements apart.
 *
 *  product         c = a b, or c += a b, of small matrices (tr_cpu_product)
 *  product_pairs   the same of words of two bfloat16 that follow one another along the depth;
 *                  `depth` counts words
 *  pair_rows       words of two rows of n bfloat16; second NULL: zeros
 *  panel           y = x w + bias, bias NULL = none, of TR_CPU_PANEL outputs; the memory behind w
 *                  is asked for, but not read
 *
 *  max_pool_steps  of int8 or uint8, without indices
 *  avg_pool_steps  of int8 or uint8 to either (`to_signed`): sums times factor / places that count,
 *                  clamped and rounded
 *  requantize      y = x * factor, int8 or uint8 each, clamped and rounded
 * Pooling, channels-last: rows [begin, end) of the N*OH output rows, or N*H input rows for
 * gradients; a gradient gathers, so that every element is written once. indices: place in the
 * window, NULL = not wanted, int32 if p->wide else uint8.
 *
 *  recurrent       row `row` of samples [begin, end) of a recurrent layer; `first`: no row came
 *                  before
 *  recurrent_grad  its gradient; `first`: no row was gone through yet, `last`: none is left
 *
 *  resample       rows [begin, end) of the N*OH rows that are written
 *
 * Losses: mse, robust (l1, huber, smooth_l1), bce and focal return the sum over n elements and
 * write dy = scale * gradient unless dy is NULL; pos: pos_weight of each element, NULL: 1; xent and
 * xent_soft (probabilities) do one row. Of a row beside a teacher's: soft returns
 * KL(softmax(teacher * inverse) || softmax(z * inverse)), dz = gain * (second softmax - first);
 * distance the sum of (x - teacher)^2, dx = gain * (x - teacher).
 *
 * Parameters: update is one optimizer step of elements [begin, end) in one pass over memory;
 * update_norms is what goes before it where steps have norms: the sums of squares of each 16
 * elements (TR_NORM_...), and LAMB's moments. */
#ifndef TR_CPU_LOOPS_H
/* return type, name, arguments. One line a loop. */
#define TR_CPU_LOOPS_H

#include "kernels/cpu/cpu.h"

#include "kernels/elementwise.h"
#include "runtime/graph/ops.h"

/* What one row of cross entropy brings. */
typedef struct tr_xent {
    double loss;
    int64_t rank;   /* logits before the true class: 0 = correct; equal ones go by index */
    int64_t argmax; /* first of the largest; 0 when all are NaN */
    int64_t label;  /* the true class */
    bool finite;    /* no NaN and no +inf among the logits: else neither right nor wrong */
} tr_xent;

/* Rows of signs whose words stand together. */
enum { TR_SIGN_ROWS = 16 };

/* A pooling of (N, H, W, C) to (N, OH, OW, C). */
typedef struct tr_cpu_pool {
    tr_dtype type;
    size_t C;
    int64_t H, W, OH, OW;
    int64_t kernel[2], stride[2], padding[2];
    int64_t end[2];   /* padding behind an image */
    bool include_pad; /* averages count padded places */
    bool wide;
} tr_cpu_pool;

/* An image of weighted sums over rows and columns of another one (tr_taps). */
typedef struct tr_cpu_resampling {
    tr_dtype type;
    size_t C, H, W; /* of what is read */
    tr_taps rows, columns;
    float value; /* where there are no taps */
} tr_cpu_resampling;

/* A tile of scores: places of its first row and column, and how rows lie in memory. */
typedef struct tr_cpu_scores {
    int64_t row, column, rows, columns;
    int64_t keys, window; /* tr_attention_keys */
    bool causal;
    size_t pitch, D;
    float scale, slope;
    uint64_t key, index; /* of dropout: of the first row, those behind it count on */
    float drop, keep;    /* drop 0: none; keep: 1 / (1 - drop) */
} tr_cpu_scores;

/* A product of m x depth by depth x n float32 that lie in a cache. Sums of an element of c go over
 * `depth` in order. */
enum { TR_CPU_PRODUCT_COLUMNS = 16 };
typedef struct tr_cpu_product {
    size_t m, n, depth;     /* n: a multiple of TR_CPU_PRODUCT_COLUMNS */
    size_t a_row, a_column; /* from one row and column of a to the next */
    size_t b_pitch, c_pitch;
    bool add;
} tr_cpu_product;

/* A product of rows with some of a weight's outputs (loops/panel.c): the panel is depth x
 * TR_CPU_PANEL values of `type`, of bfloat16 outputs 0, 16, 1, 17 ... 15, 31. */
enum { TR_CPU_PANEL = 32 };
typedef struct tr_cpu_panel {
    size_t rows, depth, x_pitch, y_pitch; /* elements from row to row */
    tr_dtype type;
    bool add, relu; /* add: to what is in y, instead of the bias */
} tr_cpu_panel;

/* Heads of one query that share a head of keys and values, which lie row after row. */
typedef struct tr_cpu_look_back {
    size_t D, heads;
    int64_t position, begin, end; /* of the query; keys that it sees */
    float scale;
    const float *slopes; /* a head's; NULL: none */
} tr_cpu_look_back;
/* Keys whose scores are worked on at a time; floats of scratch. */
enum { TR_CPU_LOOK_BACK = 256 };
static inline size_t tr_cpu_look_back_scratch(size_t heads, size_t D)
{
    return 2 * heads * D + TR_CPU_LOOK_BACK;
}

/* A recurrent layer (lstm_layer, gru_layer) while its samples go from row to row. */
typedef struct tr_cpu_recurrence {
    tr_dtype type;
    size_t gates, hidden, rows; /* gates: TR_GRU_GATES, TR_LSTM_GATES; rows of a sample */
    bool reverse, hold;
    const int32_t *lengths; /* of samples; NULL: all rows */
    const float *zeros;     /* gates * hidden, or hidden backward */
    const float *product,
        *bias; /* product: (samples, gates * hidden), backward (samples, hidden); bias NULL: none */
    float *state; /* (samples, hidden): the cell, gru's output; backward the cell's gradient */
    void *kept_gates, *kept; /* operands; NULL: not wanted */
    void *y;
    /* Forward: */
    const void *x;
    void *h; /* (samples, hidden): what the next product reads */
    /* Backward: */
    const void *dy;
    float *through;               /* (samples, hidden): the output's gradient past the product */
    void *dg;                     /* (samples, gates * hidden): what the next product reads */
    void *dx, *before, *dproduct; /* operands; the latter two may be NULL */
} tr_cpu_recurrence;

/* One segment of an optimizer's update, with the step's values: see tr_update and tr_control. */
typedef struct tr_sweep {
    int kind;
    double lr, beta1, beta2, eps, momentum, decay, grad_scale, correct1, correct2, ema_decay;
    double trust; /* of updates with norms: tr_update_trust */
    bool nesterov, masked;
    float *w;
    const float *g;
    float *m, *v, *a, *ema;
    size_t count;
} tr_sweep;

#define TR_CPU_LOOPS(X)                                                                            \
    X(void, bn_stats,                                                                              \
      (tr_dtype t, const void *x, size_t rows, size_t C, double *mean, double *m2))                \
    X(void, bn_apply,                                                                              \
      (tr_dtype t, tr_act act, const void *x, size_t pitch, const void *residual,                  \
       const float *scale, const float *shift, void *y, size_t rows, size_t C))                    \
    X(void, bn_grad_stats,                                                                         \
      (tr_dtype t, const void *dy, const void *dy2, const void *y, const void *x,                  \
       const float *mean, void *dz, size_t rows, size_t C, double *sum_d, double *sum_dx))         \
    X(void, bn_grad_input,                                                                         \
      (tr_dtype t, const void *dz, const void *x, const float *a, const float *b, const float *c0, \
       void *dx, size_t rows, size_t C))                                                           \
    X(void, ln_apply,                                                                              \
      (tr_dtype t, const void *x, const float *weight, const float *bias, double eps,              \
       bool centered, void *y, float *stats, size_t rows, size_t D))                               \
    X(void, ln_grad_input,                                                                         \
      (tr_dtype t, const void *dy, const void *x, const float *weight, const float *stats,         \
       bool centered, void *dx, size_t rows, size_t D))                                            \
    X(void, ln_grad_param,                                                                         \
      (tr_dtype t, const void *dy, const void *x, const float *stats, size_t rows, size_t D,       \
       double *dw, double *db))                                                                    \
    X(void, column_sums,                                                                           \
      (tr_dtype t, const void *x, size_t rows, size_t C, size_t stride, float *sums,               \
       bool accumulate))                                                                           \
    X(void, act, (tr_dtype t, tr_act act, const void *x, void *y, size_t n))                       \
    X(void, act_grad,                                                                              \
      (tr_dtype t, tr_act act, const void *dy, const void *saved, void *dx, size_t n))             \
    X(void, add, (tr_dtype t, tr_act act, int count, const void *const *in, void *y, size_t n))    \
    X(void, elementwise,                                                                           \
      (tr_dtype t, tr_elementwise which, tr_numbers numbers, const void *x, const void *y,         \
       void *out, size_t count))                                                                   \
    X(void, quantize,                                                                              \
      (tr_dtype t, bool is_signed, float least, float inverse, const void *x, void *y, size_t n))  \
    X(void, dequantize,                                                                            \
      (tr_dtype t, bool is_signed, float scale, const void *x, void *y, size_t n))                 \
    X(float, largest, (tr_dtype t, bool is_signed, const void *x, size_t n))                       \
    X(void, rescale,                                                                               \
      (tr_dtype t, tr_act act, const float *x, const float *scale, size_t places,                  \
       const float *bias, const void *residual, void *y, size_t rows, size_t C))                   \
    X(void, quantize_rows, (const float *x, float *y, size_t rows, size_t D))                      \
    X(void, learned,                                                                               \
      (tr_dtype t, const tr_learned_steps *steps, float scale, const void *x, void *y, size_t n))  \
    X(double, learned_grad,                                                                        \
      (tr_dtype t, const tr_learned_steps *steps, float scale, const void *dy, const void *x,      \
       void *dx, bool add, size_t n))                                                              \
    X(void, mul,                                                                                   \
      (tr_dtype t, const void *x, const void *factor, size_t stride, void *y, size_t rows,         \
       size_t C))                                                                                  \
    X(void, mul_sums,                                                                              \
      (tr_dtype t, const void *dy, const void *x, void *sums, size_t rows, size_t C, size_t begin, \
       size_t end))                                                                                \
    X(void, prelu,                                                                                 \
      (tr_dtype t, const void *x, const float *weight, bool each, void *y, size_t rows, size_t C)) \
    X(void, prelu_grad,                                                                            \
      (tr_dtype t, const void *dy, const void *x, const float *weight, bool each, void *dx,        \
       size_t rows, size_t C, double *dw))                                                         \
    X(void, scale, (tr_dtype t, const void *x, float factor, void *y, size_t n))                   \
    X(void, dropout,                                                                               \
      (tr_dtype t, const void *x, void *y, size_t n, uint64_t key, uint64_t sample, size_t first,  \
       float p, float scale))                                                                      \
    X(void, gather_rows,                                                                           \
      (tr_dtype t, const float *table, size_t D, const int32_t *ids, size_t rows, void *y))        \
    X(void, scatter_rows,                                                                          \
      (tr_dtype t, const void *dy, size_t D, const int32_t *ids, size_t rows, size_t begin,        \
       size_t end, uint32_t of, uint32_t which, float *table))                                     \
    X(void, sign_tables, (const float *x, size_t n, float *tables))                                \
    X(void, signed_sums,                                                                           \
      (const float *tables, const uint32_t *signs, size_t words, size_t rows, float unit,          \
       bool add, float *y))                                                                        \
    X(void, cast_bf16, (tr_bf16 * dst, const float *src, size_t n))                                \
    X(void, cast_f32, (float *dst, const tr_bf16 *src, size_t n))                                  \
    X(void, round_bf16, (float *dst, const float *src, size_t n))                                  \
    X(void, softmax, (tr_dtype t, const void *x, void *y, size_t rows, size_t D))                  \
    X(void, softmax_grad,                                                                          \
      (tr_dtype t, const void *dy, const void *y, void *dx, size_t rows, size_t D))                \
    X(void, max_pool,                                                                              \
      (const tr_cpu_pool *p, const void *x, void *y, void *indices, size_t begin, size_t end))     \
    X(void, max_pool_steps,                                                                        \
      (const tr_cpu_pool *p, const void *x, void *y, size_t begin, size_t end))                    \
    X(void, avg_pool_steps,                                                                        \
      (const tr_cpu_pool *p, bool to_signed, float factor, const void *x, void *y, size_t begin,   \
       size_t end))                                                                                \
    X(void, requantize,                                                                            \
      (bool x_signed, bool y_signed, float factor, const void *x, void *y, size_t n))              \
    X(void, max_pool_grad,                                                                         \
      (const tr_cpu_pool *p, const void *dy, const void *indices, void *dx, size_t begin,          \
       size_t end))                                                                                \
    X(void, avg_pool, (const tr_cpu_pool *p, const void *x, void *y, size_t begin, size_t end))    \
    X(void, avg_pool_grad,                                                                         \
      (const tr_cpu_pool *p, const void *dy, void *dx, size_t begin, size_t end))                  \
    X(void, resample,                                                                              \
      (const tr_cpu_resampling *p, const void *x, void *y, size_t begin, size_t end))              \
    X(void, attention_probs,                                                                       \
      (tr_dtype t, const tr_cpu_scores *a, float *s, void *p, float *top, double *sum,             \
       float *fade))                                                                               \
    X(void, attention_grad,                                                                        \
      (tr_dtype t, const tr_cpu_scores *a, float *s, float *dp, const float *lse,                  \
       const float *delta, void *p, void *ds))                                                     \
    X(void, attention_fade, (float *o, const float *fade, size_t rows, size_t D))                  \
    X(void, attention_out,                                                                         \
      (tr_dtype t, const float *o, size_t o_pitch, const float *top, const double *sum, void *y,   \
       size_t pitch, float *lse, size_t rows, size_t D))                                           \
    X(void, attention_delta,                                                                       \
      (tr_dtype t, const void *dy, const void *y, size_t pitch, float *delta, size_t rows,         \
       size_t D))                                                                                  \
    X(void, attention_held,                                                                        \
      (tr_dtype t, const tr_cpu_look_back *a, const void *q, const void *keys, const void *values, \
       void *y, float *scratch))                                                                   \
    X(void, dots, (tr_dtype t, const float *x, const void *rows, size_t n, size_t D, float *out))  \
    X(void, add_act,                                                                               \
      (tr_dtype t, tr_act act, const float *x, const float *bias, void *y, size_t n))              \
    X(void, rotate,                                                                                \
      (tr_dtype t, const void *x, void *y, size_t pairs, size_t apart, const float *turn,          \
       float sign))                                                                                \
    X(void, recurrent,                                                                             \
      (const tr_cpu_recurrence *r, size_t row, bool first, size_t begin, size_t end))              \
    X(void, recurrent_grad,                                                                        \
      (const tr_cpu_recurrence *r, size_t row, bool first, bool last, size_t begin, size_t end))   \
    X(void, transpose, (size_t size, const void *x, void *y, size_t rows, size_t cols))            \
    X(void, transpose_apart,                                                                       \
      (const float *x, size_t x_pitch, float *y, size_t y_pitch, size_t rows, size_t cols))        \
    X(void, product, (const tr_cpu_product *p, const float *a, const float *b, float *c))          \
    X(void, product_pairs, (const tr_cpu_product *p, const void *a, const void *b, float *c))      \
    X(void, pair_rows, (const tr_bf16 *first, const tr_bf16 *second, void *y, size_t n))           \
    X(void, panel,                                                                                 \
      (const tr_cpu_panel *p, const float *x, const void *w, const float *bias, float *y))         \
    X(double, mse,                                                                                 \
      (tr_dtype t, const void *y, const float *target, void *dy, size_t n, float scale))           \
    X(double, robust,                                                                              \
      (const tr_elementwise_loss_attrs *a, tr_dtype t, const void *y, const float *target,         \
       void *dy, size_t n, float scale))                                                           \
    X(double, bce,                                                                                 \
      (tr_dtype t, const void *y, const float *target, const float *pos, void *dy, size_t n,       \
       float scale, size_t *correct))                                                              \
    X(double, focal,                                                                               \
      (const tr_elementwise_loss_attrs *a, tr_dtype t, const void *y, const float *target,         \
       void *dy, size_t n, float scale, size_t *correct))                                          \
    X(tr_xent, xent,                                                                               \
      (tr_dtype t, const void *logits, size_t classes, size_t label, double smoothing,             \
       double gamma, const double *weights, void *dlogits, float scale))                           \
    X(tr_xent, xent_soft,                                                                          \
      (tr_dtype t, const void *logits, const float *target, size_t classes, double smoothing,      \
       const double *weights, void *dlogits, float scale))                                         \
    X(double, soft,                                                                                \
      (tr_dtype t, const void *z, const void *teacher, size_t n, float inverse, void *dz,          \
       float gain))                                                                                \
    X(double, distance,                                                                            \
      (tr_dtype t, const void *x, const void *teacher, size_t n, void *dx, float gain))            \
    X(void, update, (const tr_sweep *u, size_t begin, size_t end))                                 \
    X(void, update_norms,                                                                          \
      (const tr_sweep *u, size_t begin, size_t end, double *weight, double *step))

typedef struct tr_cpu_loops {
    const char *name; /* "base", "avx2", "avx512" */
#define X(type, name, args) type(*name) args;
    TR_CPU_LOOPS(X)
#undef X
} tr_cpu_loops;

/* The table of a level (tr_cpu_isa_level); the nearest lower one where the build lacks it. The
 * caller has seen to it that the CPU has the level (tr_cpu_isa). */
const tr_cpu_loops *tr_cpu_loops_at(int isa);

#endif
