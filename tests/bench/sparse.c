/* Whether a product with a sparse weight is worth it: the hidden layers of the bench MLP
 * (784-512-512-10) by the inference engine, dense in float32 and in bfloat16, and by rows of
 * nonzeros (CSR) in plain C, with so much of the weights 0. One thread; medians of the CPU time of
 * calls that alternate.
 *
 *     bench_sparse [seconds a figure] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "optimize/inference/inference.h"
#include "optimize/prune/prune.h"

enum { LAYERS = 3, WAYS = 3, CALLS = 4000 };
static const int widths[LAYERS + 1] = {784, 512, 512, 10};

typedef struct {
    int *begin, *column;
    float *value;
} csr;

static void need(bool good)
{
    if (good) return;
    fprintf(stderr, "bench_sparse: %s\n", tr_last_error()->text);
    exit(1);
}

static tr_network *open_mlp(void)
{
    tr_maker *mk;
    tr_model *m;
    tr_network *n = NULL;
    int value;
    const int64_t dims[] = {784};
    need(tr_maker_open(TR_INIT_KAIMING, &mk) == TR_OK &&
         tr_maker_input(mk, "input", 1, dims, &value) == TR_OK);
    for (int i = 0; i < LAYERS; i++) {
        char options[40];
        snprintf(options, sizeof options, "{out: %d}", widths[i + 1]);
        need(tr_maker_layer_text(mk, &(tr_layer_given){.type = "linear"}, options, &value) ==
             TR_OK);
        if (i + 1 < LAYERS)
            need(tr_maker_layer(mk, &(tr_layer_given){.type = "relu"}, &value) == TR_OK);
    }
    need(tr_maker_loss(mk, &(tr_loss_config){.kind = {TR_LOSS_MSE}}) == TR_OK &&
         tr_maker_finish(mk, 0, &m) == TR_OK && tr_network_open(m, &n) == TR_OK);
    tr_maker_close(mk);
    tr_model_init_params(n->model, 1, n->params, 0, n->model->flat_count);
    return n;
}

static csr make_csr(const float *w, int rows, int columns)
{
    csr s = {malloc(sizeof(int) * (size_t)(rows + 1)),
             malloc(sizeof(int) * (size_t)(rows * columns)),
             malloc(sizeof(float) * (size_t)(rows * columns))};
    int n = 0;
    for (int r = 0; r < rows; r++) {
        s.begin[r] = n;
        for (int c = 0; c < columns; c++)
            if (w[r * columns + c] != 0) s.column[n] = c, s.value[n++] = w[r * columns + c];
    }
    s.begin[rows] = n;
    return s;
}

/* y[rows][batch] = W x[columns][batch] + b, of features by samples, so that samples are vectors. */
static void multiply(const csr *s, int rows, const float *bias, int batch, bool relu,
                     const float *restrict x, float *restrict y)
{
    for (int r = 0; r < rows; r++) {
        float *restrict to = y + r * batch;
        if (batch == 1) {
            float sum[4] = {bias[r]};
            int k = s->begin[r];
            for (; k + 4 <= s->begin[r + 1]; k += 4)
                for (int j = 0; j < 4; j++) sum[j] += s->value[k + j] * x[s->column[k + j]];
            for (; k < s->begin[r + 1]; k++) sum[0] += s->value[k] * x[s->column[k]];
            to[0] = sum[0] + sum[1] + sum[2] + sum[3];
        } else {
            float sum[32];
            for (int i = 0; i < 32; i++) sum[i] = bias[r];
            for (int k = s->begin[r]; k < s->begin[r + 1]; k++)
                for (int i = 0; i < 32; i++) sum[i] += s->value[k] * x[s->column[k] * 32 + i];
            memcpy(to, sum, sizeof sum);
        }
        for (int i = 0; relu && i < batch; i++) to[i] = to[i] > 0 ? to[i] : 0;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const tr_network *n, void *ctx, double amount, int batch, double seconds)
{
    tr_network *masked;
    tr_inference *dense[2];
    csr s[LAYERS];
    const float *bias[LAYERS];
    static double taken[WAYS][CALLS];
    float *x = tr_alloc(TR_MEM_OTHER, 784 * 32, sizeof *x);
    float *a = tr_alloc(TR_MEM_OTHER, 784 * 32, sizeof *a),
          *b = tr_alloc(TR_MEM_OTHER, 784 * 32, sizeof *b);
    for (int i = 0; i < 784 * 32; i++) x[i] = (float)((i * 7919) % 1000) / 1000;
    need(tr_mask(n, &(tr_mask_options){.amount = amount, .per_layer = true}, &masked) == TR_OK);
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "linear%d", i + 1);
        s[i] = make_csr(tr_network_param(masked, name, "weight"), widths[i + 1], widths[i]);
        bias[i] = tr_network_param(masked, name, "bias");
    }
    for (int k = 0; k < 2; k++)
        need(tr_inference_open(
                 masked,
                 &(tr_inference_options){.backend = &tr_cpu_backend,
                                         .backend_ctx = ctx,
                                         .threads = 1,
                                         .max_batch = batch,
                                         .precision = k ? TR_PRECISION_BF16 : TR_PRECISION_FP32},
                 &dense[k]) == TR_OK);
    int calls = 0;
    for (const double begin = tr_now(); calls < CALLS && tr_now() - begin < seconds; calls++) {
        for (int k = 0; k < 2; k++) {
            const double t = now();
            need(tr_inference_run(dense[k], (const void *const[]){x}, batch, (float *const[]){a}) ==
                 TR_OK);
            taken[k][calls] = now() - t;
        }
        const double t = now();
        multiply(&s[0], 512, bias[0], batch, true, x, a);
        multiply(&s[1], 512, bias[1], batch, true, a, b);
        multiply(&s[2], 10, bias[2], batch, false, b, a);
        taken[2][calls] = now() - t;
    }
    printf("| %d | %.0f %% |", batch, amount * 100);
    for (int k = 0; k < WAYS; k++) {
        qsort(taken[k], (size_t)calls, sizeof(double), ascending);
        printf(" %.3f |", taken[k][calls / 2] * 1e3);
    }
    printf("\n");
    for (int i = 0; i < LAYERS; i++) {
        free(s[i].begin);
        free(s[i].column);
        free(s[i].value);
    }
    tr_inference_close(dense[0]);
    tr_inference_close(dense[1]);
    tr_network_close(masked);
    tr_free(x);
    tr_free(a);
    tr_free(b);
}

int main(int argc, char **argv)
{
    static const double amounts[] = {0.5, 0.7, 0.8, 0.9, 0.95};
    const double seconds = argc > 1 ? atof(argv[1]) : 1;
    const tr_backend_options o = {0};
    void *ctx;
    need(tr_cpu_backend.open(&o, &ctx) == TR_OK);
    tr_network *n = open_mlp();
    printf("| samples | zeros | dense fp32, ms | dense bf16, ms | CSR fp32, ms |\n| --- | --- | "
           "--- | --- | --- |\n");
    for (int batch = 1; batch <= 32; batch += 31)
        for (size_t i = 0; i < TR_COUNT(amounts); i++) measure(n, ctx, amounts[i], batch, seconds);
    tr_network_close(n);
    tr_cpu_backend.close(ctx);
    return 0;
}
