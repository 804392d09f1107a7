/* AdaRound (Nagel, Amjad, van Baalen, Louizos and Blankevoort 2020): which way each weight is rounded is learned. For
 * an output with weights w and a scale s, rounded to s (floor(w / s) + h(v)) with the rectified sigmoid h, it is
 *
 *     d' H d / (that of rounding to nearest) + strength * mean of (1 - |2 h - 1|^beta),   d = s (floor(w / s) + h) - w
 *
 * that Adam makes small, beta falling from 20 to 2, so that h ends at 0 or 1. H, the mean of x x' over what
 * the output's window reads, is all that there is to know of the data: outputs do not depend on each other, and are
 * dealt to the ranks. Where rounding to nearest was better after all, it stays. */
#include "optimize/quantize/internal.h"

#include <math.h>
#include <string.h>

enum { MOMENTS = 256 << 20 };
enum { STEPS = 127, WARM = 100, ITERATIONS = 500, POSITIONS = 16 /* of a sample */ };
static const double RATE = 0.02, STRENGTH = 1.0, WIDE = 1.2, LOW = -0.1;

/* ---- H --------------------------------------------------------------------------------------- */

/* What a window reads: of an image (channels, height, width) with its layout, or a row. */
typedef struct {
    const tr_evaluator *e;
    const tr_layer *l;
    tr_product product;
    int64_t kernel[2], K;
} window;

static window window_of(const tr_evaluator *e, const tr_network *n, const tr_layer *l)
{
    const tr_param *w = tr_own_weight(n->model, l);
    window v = {.e = e, .l = l, .K = (int64_t)(w->count / (size_t)w->dims[0])};
    tr_layer_product(l, &v.product);
    for (int i = 0; i < 2; i++) v.kernel[i] = i + 2 < w->ndim ? w->dims[2 + i] : 1;
    return v;
}

/* The place `at` of the output of one sample; order of the weight: channel, row, column. */
static void read_window(const window *v, const tr_tensor *t, const void *x, size_t sample,
                        int64_t at, double *column)
{
    const tr_shape *in = &v->l->inputs[0], *y = &v->l->output;
    const bool image = in->layout == TR_LAYOUT_CHANNELS_LAST;
    const int64_t C = tr_shape_channels(in), H = image ? in->dims[1] : 1,
                  W = image ? in->dims[2] : tr_shape_places(in);
    const int64_t width = image ? y->dims[2] : W;
    const int64_t top = at / width * v->product.stride[0] - v->product.padding[0],
                  left = at % width * v->product.stride[1] - v->product.padding[1];
    size_t n = 0;
    for (int64_t c = 0; c < C; c++)
        for (int64_t i = 0; i < v->kernel[0]; i++)
            for (int64_t j = 0; j < v->kernel[1]; j++) {
                const int64_t r = top + i * v->product.dilation[0],
                              s = left + j * v->product.dilation[1];
                const bool inside = r >= 0 && r < H && s >= 0 && s < W;
                const size_t e = (size_t)((((int64_t)sample * H + r) * W + s) * C + c);
                column[n++] = inside ? tr_value_at(t->dtype, x, e) : 0;
            }
}

/* A batch's sum of x x', the upper half of K x K; then how many x there were. */
static tr_status take(void *ctx, const tr_plan *p, const tr_batch *b, const double *tally,
                      void *result)
{
    const window *v = ctx;
    const tr_graph *g = tr_plan_graph(p);
    const tr_tensor *t = &g->tensors[g->outputs[0]];
    const size_t K = (size_t)v->K;
    const int64_t places = tr_shape_places(&v->l->output),
                  stride = (places + POSITIONS - 1) / POSITIONS;
    double *sum = result;
    tr_host_values host = {0};
    const void *x;
    tr_status st = TR_OK;
    (void)b, (void)tally;
    double *column = tr_alloc(TR_MEM_OTHER, K, sizeof *column);
    TR_HAVE(column);
    TR_TRY(tr_host_values_of(v->e, p, t->id, &host, &x));
    for (size_t s = 0; s < (size_t)t->dims[0]; s++)
        for (int64_t at = (int64_t)s % stride; at < places; at += stride) {
            read_window(v, t, x, s, at, column);
            sum[K * K] += 1;
            for (size_t i = 0; i < K; i++)
                for (size_t j = i; column[i] != 0 && j < K; j++)
                    sum[i * K + j] += column[i] * column[j];
        }
out:
    tr_free(column);
    tr_free(host.buffer);
    return st;
}

/* *Collective.* *H: [K * K] float32, the mean, of tr_alloc. */
static tr_status find_moments(tr_evaluator *e, const tr_network *both, const tr_config *config,
                              uint64_t samples, window *v, const char *steps, float **H)
{
    tr_status st = TR_OK;
    const size_t K = (size_t)v->K, each = (K * K + 1) * sizeof(double);
    double *sum = NULL;
    uint64_t batches;
    /* every rank holds every batch's sums: of the samples, as many as keep them within MOMENTS bytes */
    const int64_t set = config->train.eval.batch;
    const uint64_t most = MOMENTS / each * (uint64_t)(set > 0 ? set : config->train.batch);
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
        for (size_t i = 0; i <= K * K; i++) sum[i] += sum[b * (K * K + 1) + i];
    *H = tr_alloc(TR_MEM_OTHER, K * K, sizeof **H);
    TR_TRY(tr_agree(tr_evaluator_comm(e), *H ? TR_OK : tr_last_status(), NULL));
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < K; j++)
            (*H)[i * K + j] = (float)(sum[(i < j ? i * K + j : j * K + i)] / sum[K * K]);
out:
    tr_free(sum);
    return st;
}

/* ---- One output ------------------------------------------------------------------------------ */

typedef struct {
    size_t K;
    const float *H, *w; /* of the output: as it was */
    double scale;
    double *v, *first, *second; /* [K] the variable, Adam's moments */
    float *d, *g;               /* [K] errors, H d */
} output;

static double rectified(double v)
{
    return fmin(fmax(WIDE / (1 + exp(-v)) + LOW, 0), 1);
}

/* g = H d; returns d' H d. */
static double spread(output *o)
{
    double sum = 0;
    memset(o->g, 0, o->K * sizeof *o->g);
    for (size_t i = 0; i < o->K; i++) {
        const float d = o->d[i], *row = o->H + i * o->K;
        for (size_t j = 0; j < o->K; j++) o->g[j] += d * row[j];
    }
    for (size_t i = 0; i < o->K; i++) sum += (double)o->d[i] * (double)o->g[i];
    return sum;
}

/* The step that a weight becomes; `up`: in [0, 1], of floor. */
static double step_of(const output *o, size_t i, double up)
{
    return fmin(fmax(floor((double)o->w[i] / o->scale) + up, -STEPS), STEPS);
}

static double error_of(output *o, const float *rounded)
{
    for (size_t i = 0; i < o->K; i++) o->d[i] = rounded[i] - o->w[i];
    return spread(o);
}

static void descend(output *o, int t, double nearest)
{
    const bool warm = t < WARM;
    const double along = warm ? 0 : (double)(t - WARM) / (ITERATIONS - WARM),
                 beta = 2 + 18 * (0.5 + 0.5 * cos(3.14159265358979323846 * along));
    const double c1 = 1 - pow(0.9, t + 1), c2 = 1 - pow(0.999, t + 1);
    for (size_t i = 0; i < o->K; i++)
        o->d[i] = (float)(step_of(o, i, rectified(o->v[i])) * o->scale - (double)o->w[i]);
    spread(o);
    for (size_t i = 0; i < o->K; i++) {
        const double sigmoid = 1 / (1 + exp(-o->v[i])), h = WIDE * sigmoid + LOW;
        const double slope = h > 0 && h < 1 ? WIDE * sigmoid * (1 - sigmoid) : 0;
        double g = 2 * (double)o->g[i] * o->scale / nearest;
        if (!warm)
            g -= STRENGTH / (double)o->K * 2 * beta *
                 copysign(pow(fabs(2 * h - 1), beta - 1), 2 * h - 1);
        g *= slope;
        o->first[i] += 0.1 * (g - o->first[i]);
        o->second[i] += 0.001 * (g * g - o->second[i]);
        o->v[i] -= RATE * (o->first[i] / c1) / (sqrt(o->second[i] / c2) + 1e-12);
    }
}

/* `rounded`: to nearest; becomes what is better. */
static void round_output(output *o, float *rounded, float *learned)
{
    const double nearest = error_of(o, rounded);
    if (!(nearest > 0)) return;
    for (size_t i = 0; i < o->K; i++) {
        const double up = (double)o->w[i] / o->scale - floor((double)o->w[i] / o->scale);
        o->v[i] = -log(WIDE / (up - LOW) - 1);
        o->first[i] = o->second[i] = 0;
    }
    for (int t = 0; t < ITERATIONS; t++) descend(o, t, nearest);
    for (size_t i = 0; i < o->K; i++)
        learned[i] = (float)step_of(o, i, rectified(o->v[i]) >= 0.5) * (float)o->scale;
    if (error_of(o, learned) < nearest) memcpy(rounded, learned, o->K * sizeof *rounded);
}

/* ---- A layer --------------------------------------------------------------------------------- */

/* *Local.* Outputs rank, rank + size, ... of q's weight; those of others become 0. */
static tr_status round_mine(const tr_network *n, const tr_layer *l, const float *H,
                            const tr_topology *t, tr_network *q)
{
    tr_status st = TR_OK;
    const tr_param *was = tr_own_weight(n->model, l), *is = tr_network_row(q, l->name, "weight");
    const float *scale = q->states + q->model->states[is->scale].offset;
    const size_t O = (size_t)was->dims[0], K = was->count / O;
    output o = {.K = K, .H = H};
    float *learned = tr_alloc(TR_MEM_OTHER, 3 * K, sizeof *learned);
    double *v = tr_alloc(TR_MEM_OTHER, 3 * K, sizeof *v);
    TR_HAVE(learned && v);
    o.v = v, o.first = v + K, o.second = v + 2 * K;
    o.d = learned + K, o.g = learned + 2 * K;
    for (size_t i = 0; i < O; i++) {
        float *rounded = q->params + is->offset + i * K;
        o.w = n->params + was->offset + i * K;
        o.scale = (double)scale[i];
        if (i % (size_t)t->size == (size_t)t->rank)
            round_output(&o, rounded, learned);
        else
            memset(rounded, 0, K * sizeof *rounded);
    }
out:
    tr_free(learned);
    tr_free(v);
    return st;
}

tr_status tr_quantize_adaround(tr_evaluator *e, const tr_network *n, const tr_config *config,
                               uint64_t samples, const bool *chosen, const tr_value_range *ranges,
                               tr_network *q)
{
    tr_comm *comm = tr_evaluator_comm(e);
    const tr_topology *t = tr_comm_topology(comm);
    tr_network *both = NULL;
    float *H = NULL;
    tr_status st = tr_quantize_beside(n, q, chosen, ranges, &both);
    TR_TRY(tr_agree(comm, st, NULL));
    for (size_t i = 0; i < n->model->nlayers; i++) {
        const tr_layer *l = &n->model->layers[i];
        char steps[TR_NAME];
        if (!chosen[i]) continue;
        window v = window_of(e, n, l);
        if (v.K > TR_ADAROUND_WINDOW || v.product.groups > 1) continue;
        tr_steps_name(n->model, l->in[0], steps);
        tr_free(H);
        H = NULL;
        TR_TRY(find_moments(e, both, config, samples, &v, steps, &H));
        tr_comm_busy(comm, true);
        st = round_mine(n, l, H, t, q);
        tr_comm_busy(comm, false);
        TR_TRY(tr_agree(comm, st, NULL));
        /* each element is 0 on all ranks but one: sums are its bits; rows are padded to 64 bytes */
        const tr_param *is = tr_network_row(q, l->name, "weight");
        TR_TRY(tr_comm_all_reduce(comm, q->params + is->offset, (is->count + 1) / 2, TR_I64));
    }
out:
    tr_network_close(both);
    tr_free(H);
    return st;
}
