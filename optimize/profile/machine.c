/* The roofline of this machine: products of square matrices, through the backend's own kernel of a
 * model made for it, and copies, by as many threads as kernels have; the fastest of some runs each. What was measured is kept in a file. */
#include "optimize/profile/profile.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "runtime/base/host.h"
#include "runtime/graph/facts.h"

enum { MOST = 64 }; /* threads that copy */

/* ---- Products -------------------------------------------------------------------------------- */

/* Of (rows, in) and (out, in). `steps`: of 8 bits, from steps to steps. */
static tr_status product_network(int64_t in, int64_t out_features, bool steps, tr_network **out)
{
    tr_status st;
    tr_maker *mk = NULL;
    tr_model *m = NULL;
    int value;
    char options[80];
    static const char round[] = "{scale: 0.03125}";
    snprintf(options, sizeof options, "{out: %lld, bias: false%s}", (long long)out_features,
             steps ? ", stored: int8" : "");
    TR_TRY(tr_maker_open(TR_INIT_KAIMING, &mk));
    TR_TRY(tr_maker_input(mk, "input", 1, &in, &value));
    if (steps)
        TR_TRY(
            tr_maker_layer_text(mk, &(tr_layer_given){.type = tr_layer_rounder()}, round, &value));
    TR_TRY(tr_maker_layer_text(mk, &(tr_layer_given){.type = "linear"}, options, &value));
    if (steps)
        TR_TRY(
            tr_maker_layer_text(mk, &(tr_layer_given){.type = tr_layer_rounder()}, round, &value));
    TR_TRY(tr_maker_loss(mk, &(tr_loss_config){.kind = {TR_LOSS_MSE}}));
    TR_TRY(tr_maker_finish(mk, 0, &m));
    TR_TRY(tr_network_open(m, out));
    tr_model_init_params((*out)->model, 1, (*out)->params, 0, (*out)->model->flat_count);
    tr_model_init_states((*out)->model, (*out)->states);
out:
    tr_maker_close(mk);
    return st;
}

tr_status tr_machine_int8(const tr_backend *b, void *ctx, int threads, int64_t n, double *rate)
{
    tr_network *net = NULL;
    tr_profile p = {0};
    tr_status st;
    *rate = 0;
    TR_TRY(product_network(4 * n, n, true, &net));
    for (size_t i = 0; i < net->model->flat_count; i++) /* not all 0: that is done in less time */
        net->params[i] = (float)((int)(i * 37 % 255) - 127);
    const tr_profile_options o = {.network = net,
                                  .backend = b,
                                  .backend_ctx = ctx,
                                  .threads = threads,
                                  .precision = TR_PRECISION_FP32,
                                  .mode = TR_MODE_INFER,
                                  .batch = n,
                                  .runs = 30};
    st = tr_profile_measure(&o, NULL, &p);
    if (st == TR_UNSUPPORTED) st = TR_OK;
    for (size_t i = 0; st == TR_OK && i < p.nrows; i++)
        if (p.rows[i].type == TR_PEAK_INT8 && p.rows[i].flops > 0 && p.rows[i].least > 0)
            *rate = fmax(*rate, p.rows[i].flops / p.rows[i].least);
out:
    tr_profile_free(&p);
    tr_network_close(net);
    return st;
}

/* A type that the device lacks has a peak of 0. */
static tr_status measure_products(const tr_backend *b, void *ctx, int threads, tr_machine *m)
{
    static const tr_precision precisions[] = {[TR_PEAK_FP32] = TR_PRECISION_FP32,
                                              [TR_PEAK_BF16] = TR_PRECISION_BF16,
                                              [TR_PEAK_FP16] = TR_PRECISION_FP16};
    const int64_t n = b->host ? 512 : 4096;
    tr_network *net = NULL;
    tr_status st;
    TR_TRY(product_network(n, n, false, &net));
    for (int k = 0; k < (int)TR_COUNT(precisions); k++) {
        tr_profile p = {0};
        const tr_profile_options o = {.network = net,
                                      .backend = b,
                                      .backend_ctx = ctx,
                                      .threads = threads,
                                      .precision = precisions[k],
                                      .mode = TR_MODE_INFER,
                                      .batch = n,
                                      .runs = 30};
        st = tr_profile_measure(&o, NULL, &p);
        for (size_t i = 0; st == TR_OK && i < p.nrows; i++)
            if (p.rows[i].flops > 0 && p.rows[i].least > 0)
                m->peak[k] = fmax(m->peak[k], p.rows[i].flops / p.rows[i].least);
        tr_profile_free(&p);
        if (st != TR_UNSUPPORTED) TR_TRY(st);
        st = TR_OK;
    }
    if (b == &tr_cpu_backend)
        TR_TRY(tr_cpu_int8_rate(ctx, threads, &m->peak[TR_PEAK_INT8]));
    else
        TR_TRY(tr_machine_int8(b, ctx, threads, n, &m->peak[TR_PEAK_INT8]));
out:
    tr_network_close(net);
    return st;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

typedef struct {
    const tr_backend *b;
    void *ctx;
    size_t nbytes;
    void *from, *to;
    double rate; /* bytes a second, read and written */
    tr_status st;
} copier;

/* For a while, so that all threads are at it together most of the time; the fastest round counts, as
 * others may have the core now and then. */
static void *copy(void *arg)
{
    copier *c = arg;
    enum { LEAST = 5 };
    const double seconds = 0.1, begin = tr_now();
    const int times = (int)(((size_t)4 << 20) / c->nbytes) + 1; /* a round */
    for (int r = 0; c->st == TR_OK && (r < LEAST || tr_now() - begin < seconds); r++) {
        const double from = tr_now();
        for (int i = 0; i < times && c->st == TR_OK; i++)
            c->st = c->b->memory->copy(c->ctx, c->to, c->from, c->nbytes);
        if (c->st == TR_OK) c->st = tr_device_finish(c->b, c->ctx);
        const double rate = 2 * (double)c->nbytes * times / (tr_now() - from);
        if (r > 0 && rate > c->rate) c->rate = rate;
    }
    return NULL;
}

/* Threads that cannot be started are not counted. */
static double run_copiers(copier *c, int n)
{
    pthread_t threads[MOST];
    bool started[MOST] = {0};
    double sum = 0;
    for (int i = 1; i < n; i++) started[i] = pthread_create(&threads[i], NULL, copy, &c[i]) == 0;
    copy(&c[0]);
    for (int i = 1; i < n; i++)
        if (started[i]) pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++) sum += c[i].rate;
    return sum;
}

static tr_status measure_copies(const tr_backend *b, void *ctx, int threads, size_t nbytes,
                                double *rate)
{
    tr_status st = TR_OK;
    copier c[MOST];
    const int n = !b->host ? 1 : threads < MOST ? threads : MOST;
    memset(c, 0, sizeof c);
    for (int i = 0; i < n; i++) {
        c[i] = (copier){.b = b, .ctx = ctx, .nbytes = nbytes};
        c[i].from = b->memory->alloc(ctx, TR_MEM_OTHER, nbytes);
        c[i].to = b->memory->alloc(ctx, TR_MEM_OTHER, nbytes);
        TR_HAVE(c[i].from && c[i].to);
        TR_TRY(b->memory->copy(ctx, c[i].from, c[i].to, nbytes)); /* pages of their own */
    }
    *rate = run_copiers(c, n);
    for (int i = 0; i < n; i++) TR_TRY(c[i].st);
out:
    for (int i = 0; i < n; i++) {
        b->memory->free(ctx, c[i].from);
        b->memory->free(ctx, c[i].to);
    }
    return st;
}

/* Larger than the last cache, as far as there is memory; a thread's part of it. */
static size_t beyond_cache(int threads)
{
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t nbytes = (size_t)64 << 20;
    if (l3 > 0 && (size_t)l3 > nbytes / 2) nbytes = 2 * (size_t)l3;
    if (nbytes > (size_t)128 << 20) nbytes = (size_t)128 << 20;
    while (nbytes > (size_t)4 << 20 && nbytes > tr_mem_available() / 8) nbytes /= 2;
    nbytes /= (size_t)threads;
    return nbytes > (size_t)4 << 20 ? nbytes : (size_t)4 << 20;
}

/* ---- The whole ------------------------------------------------------------------------------- */

void tr_machine_name(const tr_backend *b, void *ctx, int threads, tr_machine *out)
{
    *out = (tr_machine){.threads = threads};
    char what[112];
    tr_host host = {.cpu = ""};
    b->describe(ctx, what, sizeof what);
    if (b->host) tr_host_look(&host);
    snprintf(out->device, sizeof out->device, "%s%s%s", host.cpu, host.cpu[0] ? ", " : "", what);
}

tr_status tr_machine_measure(const tr_backend *b, void *ctx, int threads, tr_machine *out)
{
    tr_status st;
    const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const size_t cache =
        b->host ? (l2 > (256 << 10) ? (size_t)l2 : (size_t)256 << 10) : (size_t)8 << 20;
    tr_machine m;
    tr_machine_name(b, ctx, threads, &m);
    m.cache_bytes = (double)cache * (b->host ? threads : 1);
    TR_TRY(measure_products(b, ctx, threads, &m));
    TR_TRY(measure_copies(b, ctx, threads, cache / 4, &m.cache));
    TR_TRY(measure_copies(b, ctx, threads, b->host ? beyond_cache(threads) : (size_t)256 << 20,
                          &m.memory));
    m.cache = fmax(m.cache, m.memory);
    *out = m;
out:
    return st;
}
