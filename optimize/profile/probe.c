/* What a device computes at most: the op of a model made for it, through the backend's own kernel.
 * Kernels of products and of convolutions are written apart, and a device may need much to be busy:
 * so there are some of each, ever larger ones for as long as that gains something and takes no time
 * to speak of. */
#include "optimize/profile/probe.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "runtime/graph/facts.h"

#define SECONDS 0.05 /* of the runs of one, at least */
#define LONGEST 0.05 /* a run that takes longer is the last one */
#define GAIN    1.02

/* ---- Models ---------------------------------------------------------------------------------- */

/* One layer. `steps`: of 8 bits, between two that round. */
static tr_status one_layer(int ndim, const int64_t *dims, const char *type, const char *options,
                           bool steps, tr_network **out)
{
    tr_status st;
    tr_maker *mk = NULL;
    tr_model *m = NULL;
    int value;
    static const char round[] = "{scale: 0.03125}";
    const tr_layer_given rounder = {.type = tr_layer_rounder()};
    TR_TRY(tr_maker_open(TR_INIT_KAIMING, &mk));
    TR_TRY(tr_maker_input(mk, "input", ndim, dims, &value));
    if (steps) TR_TRY(tr_maker_layer_text(mk, &rounder, round, &value));
    TR_TRY(tr_maker_layer_text(mk, &(tr_layer_given){.type = type}, options, &value));
    if (steps) TR_TRY(tr_maker_layer_text(mk, &rounder, round, &value));
    TR_TRY(tr_maker_loss(mk, &(tr_loss_config){.kind = {TR_LOSS_MSE}}));
    TR_TRY(tr_maker_finish(mk, 0, &m));
    TR_TRY(tr_network_open(m, out));
    tr_model_init_params((*out)->model, 1, (*out)->params, 0, (*out)->model->flat_count);
    tr_model_init_states((*out)->model, (*out)->states);
out:
    tr_maker_close(mk);
    return st;
}

/* Of (rows, in) and (out, in). */
static tr_status product_network(int64_t in, int64_t out_features, bool steps, tr_network **out)
{
    char options[80];
    snprintf(options, sizeof options, "{out: %lld, bias: false%s}", (long long)out_features,
             steps ? ", stored: int8" : "");
    return one_layer(1, &in, "linear", options, steps, out);
}

enum { CHANNELS = 64, SIDE = 16, WINDOW = 3 };

/* Nothing is padded: what is counted is what is computed. */
static tr_status convolution_network(tr_network **out)
{
    static const int64_t dims[] = {CHANNELS, SIDE + WINDOW - 1, SIDE + WINDOW - 1};
    char options[80];
    snprintf(options, sizeof options, "{out: %d, kernel: %d, bias: false}", CHANNELS, WINDOW);
    return one_layer(3, dims, "conv2d", options, false, out);
}

/* ---- Probes ---------------------------------------------------------------------------------- */

typedef struct {
    const tr_backend *b;
    void *ctx;
    int threads;
    tr_machine *m;
} probes;

/* Of the fastest run of a probe; 0: the device lacks the type. */
typedef struct {
    double seconds, rate;
} reached;

static tr_status probe(const probes *p, const tr_network *net, tr_precision precision,
                       int64_t batch, const char *what, reached *out)
{
    const tr_profile_options o = {.network = net,
                                  .backend = p->b,
                                  .backend_ctx = p->ctx,
                                  .threads = p->threads,
                                  .precision = precision,
                                  .mode = TR_MODE_INFER,
                                  .batch = batch,
                                  .runs = 1};
    const tr_profile_turns t = {.turns = 1, .seconds = SECONDS, .limit = SECONDS};
    tr_profile found;
    tr_status st = tr_profile_in_turns(&o, 1, &t, &found);
    *out = (reached){0};
    if (st == TR_UNSUPPORTED) st = TR_OK;
    for (size_t i = 0; st == TR_OK && i < found.nrows; i++) { /* what rounds is slower */
        const tr_profile_row *r = &found.rows[i];
        if (r->least > 0 && r->flops / r->least > out->rate)
            *out = (reached){r->least, r->flops / r->least};
        if (r->least > 0) tr_machine_raise_peak(p->m, r->type, r->flops / r->least, what);
    }
    tr_profile_free(&found);
    return st;
}

typedef struct {
    double best;
    int misses; /* one after the other: other work may be in the way of one */
} growth;

static bool is_enough(growth *g, const reached *now)
{
    g->misses = now->rate < GAIN * g->best ? g->misses + 1 : 0;
    g->best = fmax(g->best, now->rate);
    return g->misses == 2 || now->rate == 0 || now->seconds > LONGEST;
}

static tr_status probe_products(const probes *p, tr_precision precision)
{
    enum { LEAST = 128, MOST = 4096 };
    tr_status st = TR_OK;
    reached now;
    growth g = {0};
    for (int n = LEAST; n <= MOST; n *= 2) {
        tr_network *net = NULL;
        char what[TR_NAME];
        snprintf(what, sizeof what, "a product of %d x %d x %d", n, n, n);
        st = product_network(n, n, false, &net);
        if (st == TR_OK) st = probe(p, net, precision, n, what, &now);
        tr_network_close(net);
        if (st != TR_OK || is_enough(&g, &now)) break;
    }
    return st;
}

static tr_status probe_convolutions(const probes *p, tr_precision precision)
{
    enum { MOST = 1024 };
    tr_status st;
    tr_network *net = NULL;
    reached now;
    growth g = {0};
    TR_TRY(convolution_network(&net));
    for (int64_t n = 1; n <= MOST; n *= 4) {
        char what[TR_NAME];
        snprintf(what, sizeof what, "a convolution of %lld images, %d channels", (long long)n,
                 CHANNELS);
        TR_TRY(probe(p, net, precision, n, what, &now));
        if (is_enough(&g, &now)) break;
    }
out:
    tr_network_close(net);
    return st;
}

/* n rows of 4 n values, n outputs, so that its sums, which go through memory, take little of the
 * time. */
static tr_status int8_network(int64_t n, tr_network **out)
{
    const tr_status st = product_network(4 * n, n, true, out);
    if (st != TR_OK) return st;
    for (size_t i = 0; i < (*out)->model->flat_count; i++) /* not all 0: that takes less time */
        (*out)->params[i] = (float)((int)(i * 37 % 255) - 127);
    return TR_OK;
}

/* Of a device. */
static tr_status probe_int8(const probes *p)
{
    enum { LEAST = 64, MOST = 4096 };
    tr_status st = TR_OK;
    reached now;
    growth g = {0};
    for (int n = LEAST; n <= MOST; n *= 2) {
        tr_network *net = NULL;
        char what[TR_NAME];
        snprintf(what, sizeof what, "a product of %d x %d x %d", n, 4 * n, n);
        st = int8_network(n, &net);
        if (st == TR_OK) st = probe(p, net, TR_PRECISION_FP32, n, what, &now);
        tr_network_close(net);
        if (st != TR_OK || is_enough(&g, &now)) break;
    }
    return st;
}

static tr_status probe_int8_host(const probes *p)
{
    double rate;
    const tr_status st = tr_cpu_int8_rate(p->ctx, p->threads, &rate);
    if (st == TR_OK)
        tr_machine_raise_peak(p->m, TR_PEAK_INT8, rate, "a product of 512 x 512 x 512");
    return st;
}

tr_status tr_probe_peaks(const tr_backend *b, void *ctx, int threads, tr_machine *m)
{
    static const tr_precision precisions[] = {[TR_PEAK_FP32] = TR_PRECISION_FP32,
                                              [TR_PEAK_BF16] = TR_PRECISION_BF16,
                                              [TR_PEAK_FP16] = TR_PRECISION_FP16};
    const probes p = {b, ctx, threads, m};
    tr_status st = TR_OK;
    for (size_t k = 0; k < TR_COUNT(precisions); k++) {
        TR_TRY(probe_products(&p, precisions[k]));
        if (m->peak[k] > 0) TR_TRY(probe_convolutions(&p, precisions[k]));
    }
    st = b == &tr_cpu_backend ? probe_int8_host(&p) : probe_int8(&p);
out:
    return st;
}
