/* What rounding a weight does to its layer's outputs goes by the second moments of what the layer
 * reads: H, the mean of x x' over windows x of samples. Of a window of more than TR_ADAROUND_WINDOW
 * values only what its blocks of so many have among themselves, the blocks on H's diagonal; of
 * channels in groups each group's own. */
#include "optimize/quantize/adaround.h"

#include <math.h>

enum { MOMENTS = 256 << 20, BATCHES = 4, POSITIONS = 16 /* of a sample */ };

tr_reading tr_reading_of(const tr_evaluator *e, const tr_network *n, const tr_layer *l)
{
    const tr_param *w = tr_own_weight(n->model, l);
    tr_reading v = {.e = e, .l = l, .K = w->count / (size_t)w->dims[0]};
    tr_layer_product(l, &v.product);
    v.block = v.K < TR_ADAROUND_WINDOW ? v.K : TR_ADAROUND_WINDOW;
    /* sums of some batches are held: more of the data rather than more of what goes with what */
    const size_t fits = MOMENTS / BATCHES / sizeof(double) / (v.K * (size_t)v.product.groups);
    if (v.block > fits) v.block = fits > 1 ? fits : 1;
    for (int i = 0; i < 2; i++) v.kernel[i] = i + 2 < w->ndim ? w->dims[2 + i] : 1;
    return v;
}

/* The place `at` of a group's outputs of one sample; order of the weight: channel, row, column. */
static void read_window(const tr_reading *v, const tr_tensor *t, const void *x, size_t sample,
                        int64_t at, int64_t group, double *column)
{
    const tr_shape *in = &v->l->inputs[0], *y = &v->l->output;
    const bool image = in->layout == TR_LAYOUT_CHANNELS_LAST;
    const int64_t C = tr_shape_channels(in), own = C / v->product.groups,
                  H = image ? in->dims[1] : 1, W = image ? in->dims[2] : tr_shape_places(in);
    const int64_t width = image ? y->dims[2] : W;
    const int64_t top = at / width * v->product.stride[0] - v->product.padding[0],
                  left = at % width * v->product.stride[1] - v->product.padding[1];
    size_t n = 0;
    for (int64_t c = group * own; c < (group + 1) * own; c++)
        for (int64_t i = 0; i < v->kernel[0]; i++)
            for (int64_t j = 0; j < v->kernel[1]; j++) {
                const int64_t r = top + i * v->product.dilation[0],
                              s = left + j * v->product.dilation[1];
                const bool inside = r >= 0 && r < H && s >= 0 && s < W;
                const size_t e = (size_t)((((int64_t)sample * H + r) * W + s) * C + c);
                column[n++] = inside ? tr_value_at(t->dtype, x, e) : 0;
            }
}

/* Adds x x' of each block of a window, the upper half. */
static void add_products(const tr_reading *v, const double *column, double *sum)
{
    for (size_t k = 0; k < tr_reading_blocks(v); k++, sum += v->block * v->block) {
        const size_t n = tr_reading_values(v, k);
        const double *x = column + k * v->block;
        for (size_t i = 0; i < n; i++)
            for (size_t j = i; x[i] != 0 && j < n; j++) sum[i * v->block + j] += x[i] * x[j];
    }
}

/* Values of all blocks of all groups. */
static size_t sums_of(const tr_reading *v)
{
    return (size_t)v->product.groups * tr_reading_blocks(v) * v->block * v->block;
}

/* A batch's sums of all groups; then how many x there were of each. */
static tr_status take(void *ctx, const tr_plan *p, const tr_batch *b, const double *tally,
                      void *result)
{
    const tr_reading *v = ctx;
    const tr_graph *g = tr_plan_graph(p);
    const tr_tensor *t = &g->tensors[g->outputs[0]];
    const size_t all = sums_of(v), groups = (size_t)v->product.groups;
    const int64_t places = tr_shape_places(&v->l->output),
                  stride = (places + POSITIONS - 1) / POSITIONS;
    double *sum = result;
    tr_host_values host = {0};
    const void *x;
    tr_status st = TR_OK;
    (void)b, (void)tally;
    double *column = tr_alloc(TR_MEM_OTHER, v->K, sizeof *column);
    TR_HAVE(column);
    TR_TRY(tr_host_values_of(v->e, p, t->id, &host, &x));
    for (size_t s = 0; s < (size_t)t->dims[0]; s++)
        for (int64_t at = (int64_t)s % stride; at < places; at += stride) {
            sum[all] += 1;
            for (size_t k = 0; k < groups; k++) {
                read_window(v, t, x, s, at, (int64_t)k, column);
                add_products(v, column, sum + k * (all / groups));
            }
        }
out:
    tr_free(column);
    tr_free(host.buffer);
    return st;
}

/* Both halves of each block's mean; sum: of all batches. */
static void put_means(const tr_reading *v, const double *sum, float *H)
{
    const double count = sum[sums_of(v)];
    const size_t B = v->block, blocks = tr_reading_blocks(v);
    for (size_t b = 0; b < (size_t)v->product.groups * blocks; b++) {
        const size_t n = tr_reading_values(v, b % blocks), pitch = tr_reading_pitch(n);
        const double *of = sum + b * B * B;
        float *to = H + b * tr_reading_apart(v);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++)
                to[i * pitch + j] = (float)(of[i < j ? i * B + j : j * B + i] / count);
    }
}

tr_status tr_reading_moments(tr_evaluator *e, const tr_network *both, const tr_config *config,
                             uint64_t samples, tr_reading *v, const char *steps, float **H)
{
    tr_status st = TR_OK;
    const size_t all = sums_of(v) + 1, each = all * sizeof(double);
    double *sum = NULL;
    uint64_t batches;
    /* every rank holds every batch's sums: of the samples, as many as keep them within MOMENTS
     * bytes */
    const int64_t set = config->train.eval.batch;
    const uint64_t whole = MOMENTS / each > 0 ? MOMENTS / each : 1;
    const uint64_t most = whole * (uint64_t)(set > 0 ? set : config->train.batch);
    const tr_over_data what = {.source = TR_OVER_TRAIN,
                               .samples = samples > 0 && samples < most ? samples : most,
                               .nbytes = each,
                               .take = take,
                               .ctx = v,
                               .infer = true,
                               .outputs = &steps,
                               .noutputs = 1};
    TR_TRY(tr_run_over(e, both, config, &what, (void **)&sum, &batches));
    for (uint64_t b = 1; b < batches; b++)
        for (size_t i = 0; i < all; i++) sum[i] += sum[b * all + i];
    *H = tr_alloc(TR_MEM_OTHER,
                  (size_t)v->product.groups * tr_reading_blocks(v) * tr_reading_apart(v),
                  sizeof **H);
    TR_TRY(tr_agree(tr_evaluator_comm(e), *H ? TR_OK : tr_last_status(), NULL));
    put_means(v, sum, *H);
out:
    tr_free(sum);
    return st;
}
