/* Quantization: how large values become over data, and networks with weights and activations of
 * fewer bits. What comes out is a model as any other: layers `fake_quantize` say which values have
 * 8 bits, the layers' option `stored` how the file keeps their weights; inference makes products of
 * 8 bits of it. */
#ifndef TR_QUANTIZE_H
#define TR_QUANTIZE_H

#include "optimize/evaluation/evaluation.h"
#include "optimize/network/network.h"

/* Which of the values a range covers; what is beyond it is clipped. Histograms have 2048 bins of
 * the magnitude. */
typedef enum {
    TR_CALIBRATE_MINMAX,     /* all */
    TR_CALIBRATE_PERCENTILE, /* a share of them */
    TR_CALIBRATE_ENTROPY, /* least divergence of the distributions before and after (Migacz 2017) */
    TR_CALIBRATE_MSE      /* least squared error */
} tr_calibration_kind;

typedef struct {
    tr_calibration_kind kind;
    double percentile; /* in (0, 100] */
    uint64_t samples;  /* of data.train, the first ones; 0: all */
} tr_calibration;

/* One value's: an input's or a layer's output. */
typedef struct {
    double least, most; /* seen; 0 counts as seen */
    bool is_signed;     /* some are below 0: steps from -127 to 127, else from 0 to 255 */
    double scale;       /* of a step; a float32 */
    bool dynamic; /* none is known: each row's is found when it is computed (dynamic_quantize) */
} tr_value_range;

/* *Collective.* The ranges of the values wanted[v], [inputs + layers]; ids cannot be. The same bits
 * on any number of ranks and threads. ranges: [inputs + layers]. TR_DATA: a value that is not
 * finite; TR_FILE: so is what makes it, of the network. */
tr_status tr_calibrate(tr_evaluator *e, const tr_network *n, const tr_config *config,
                       const tr_calibration *o, const bool *wanted, tr_value_range *ranges);
/* From a histogram of magnitudes, bin i for [i, i + 1) * most / bins: what the range is to
 * cover. */
double tr_calibration_most(const tr_calibration *o, bool is_signed, double most,
                           const int64_t *histogram);
enum { TR_CALIBRATION_BINS = 2048 };

/* ---- Networks. All Local. -------------------------------------------------------------------- */

/* Whether a layer can be computed in 8 bits: a product with a weight of its own, float32. */
bool tr_quantizable(const tr_model *m, const tr_layer *l);
/* Layers with weights that could have fewer bits, 8 or 16, but for what they are: sketches, and
 * products (for 16 bits tables, too) whose weight others share. How many; `why` says which. */
size_t tr_quantize_floats(const tr_model *m, bool int8, char *why, size_t size);
/* Of the layer that rounds a value, "conv2d1.steps"; of the product that reads it beside the one
 * that does not, in a network of both. */
void tr_steps_name(const tr_model *m, int value, char name[TR_NAME]);
/* Whether the next function rounds the layer's weight: one of its own, float32, of a product or a
 * table. */
bool tr_quantize_stores(const tr_model *m, const tr_layer *l);
/* The weights of products and tables rounded to float16 or bfloat16. TR_CONFIG names a layer of one
 * that does not fit. */
tr_status tr_quantize_weights(const tr_network *n, tr_dtype stored, tr_network **out);
/* Ranges for rounding by the data of each call: is_signed where nothing rules out values below 0.
 * ranges: [inputs + layers]. */
void tr_quantize_dynamic(const tr_network *n, tr_value_range *ranges);
/* wanted[v]: where layers `fake_quantize` go when the layers chosen[l] are computed in 8 bits: what
 * they read, what is added to what they make, and what pooling and concats between them read. */
void tr_quantize_places(const tr_network *n, const bool *chosen, bool *wanted);
/* What a concat alone reads gets the range of what it makes, so that their steps are the same. */
void tr_quantize_share_ranges(const tr_network *n, const bool *wanted, tr_value_range *ranges);
/* The network with them and with int8 weights: symmetric, a scale for each output or one for all,
 * the largest weight's 127th part. Where ranges are dynamic, layers `dynamic_quantize` stand before
 * the chosen ones, and what is added is not rounded. sqnr: [layers] of a chosen layer's weight, in
 * dB; may be NULL. */
tr_status tr_quantize_static(const tr_network *n, const bool *chosen, const tr_value_range *ranges,
                             bool per_tensor, double *sqnr, tr_network **out);

/* Cross-layer equalization (equalize.c): *out computes the same as `n`, but for rounding; *count:
 * pairs of layers. */
tr_status tr_quantize_equalize(const tr_network *n, size_t *count, tr_network **out);
/* A copy in which the chosen layers have a bias, of zeros where they had none. */
tr_status tr_quantize_with_biases(const tr_network *n, const bool *chosen, tr_network **out);

/* Learned scales (learn.c). A network of 8 bits whose scales are parameters, at first as they were;
 * *count: layers. TR_CONFIG: it has none. Back: weights are as the file of a training keeps them,
 * multiples of the learned scales. */
tr_status tr_quantize_learn(const tr_network *n, size_t *count, tr_network **out);
tr_status tr_quantize_settle(const tr_network *n, tr_network **out);

/* ---- What rounding does to outputs ----------------------------------------------------------- */

/* Of one product's, by its own weight and input alone: sums of squares of what it makes of values
 * as they are, and of the error. */
typedef struct {
    double signal, noise;
    double places; /* that each channel was seen at */
    double *mean;  /* [outputs] of the error */
} tr_output_error;
void tr_output_errors_free(tr_output_error *errors, size_t count);

/* *Collective.* Of the chosen layers, over `samples` of data.train; `q`: of tr_quantize_static,
 * from `n`. errors: [layers], zeros before. The same bits on any number of ranks. */
tr_status tr_quantize_errors(tr_evaluator *e, const tr_network *n, const tr_network *q,
                             const tr_config *config, uint64_t samples, const bool *chosen,
                             const tr_value_range *ranges, tr_output_error *errors);
/* *Local.* Bias correction (Nagel et al. 2019): takes the mean error off the bias of q's layer, and
 * out of e->noise. */
void tr_quantize_correct(tr_network *q, const tr_layer *l, tr_output_error *e);

/* ---- All of it (int8.c) ---------------------------------------------------------------------- */

typedef struct {
    tr_calibration calibration;
    bool dynamic; /* activations are rounded by the data of each call: data is read only for what is
                     below */
    bool per_tensor, equalize, bias_correction, adaround;
    /* Which of the layers that can are worth their time; by_loss: and as long as the loss over the
     * samples of calibration rises by no more than loss_rise and accuracy falls by no more than
     * accuracy_drop (negative: not asked for). Of a model that has no accuracy, where loss_rise is
     * not asked for, by no more than loss_share of what it was. */
    bool choose, by_loss;
    int64_t batch; /* samples of a call that is timed */
    double accuracy_drop, loss_rise, loss_share;
    double seconds; /* the choice is to take no longer, but for what ends it */
    /* *Local*, asked on any rank while layers are chosen and roundings learned: end with
     * TR_STOPPED. NULL: never. */
    bool (*stop)(void *ctx);
    void *stop_ctx;
    /* So many of the chosen layers, with the largest errors of their outputs, are not computed in 8
     * bits. */
    size_t keep_float;
} tr_int8_options;

/* *Collective.* AdaRound (adaround.c) of the chosen layers' weights in q; of windows of more than
 * TR_ADAROUND_WINDOW values in blocks of so many. The same bits on any number of ranks. */
tr_status tr_quantize_adaround(tr_evaluator *e, const tr_network *n, const tr_config *config,
                               const tr_int8_options *o, const bool *chosen,
                               const tr_value_range *ranges, tr_network *q);
#define TR_ADAROUND_WINDOW 1152

typedef struct {
    size_t pairs; /* that were equalized */
    /* What a call takes as it was, and in 8 bits where layers are worth it (none is: with those
     * that were tried last), on rank 0, in turns; NaN: not measured. */
    double float_ms, int8_ms;
    /* Of o->choose: comparisons of times, evaluations, and seconds of all; whether time was over
     * before it was through. */
    int comparisons, evaluations;
    double seconds;
    bool cut;
} tr_int8_story;

/* Of a product. NaN: not measured. */
typedef struct {
    bool is_int8;
    tr_value_range input;
    double weight_sqnr, output_sqnr; /* dB */
    /* The same with rounding to nearest alone. */
    double weight_sqnr_nearest, output_sqnr_nearest;
    double float_us, int8_us; /* of a call, on rank 0 */
} tr_int8_layer;

/* *Collective.* chosen: [layers] that are to be computed in 8 bits, tr_quantizable; with o->choose
 * those that stay. *out NULL: none stayed. layers: [layers]. Weights and scales are the same on any
 * number of ranks, but for what times decide. */
tr_status tr_quantize_int8(tr_evaluator *e, const tr_network *n, const tr_config *config,
                           const tr_int8_options *o, bool *chosen, tr_int8_layer *layers,
                           tr_int8_story *story, tr_network **out);

#endif
