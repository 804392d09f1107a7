/* oneDNN's own LSTM and GRU beside ours: a step's forward and backward of the same model, from the
 * same values.
 *
 *     mpirun -np N bench_rnn [SAMPLES [T [FEATURES [HIDDEN [ROUNDS]]]]]
 *
 * Two layers, all samples of T rows, one thread a process. Ours: the plan of a config with this
 * model alone. oneDNN's: forward_training and backward, a primitive a layer, at the weights'
 * layouts that it asks for, and what a training step needs beside: the input brought to its order
 * of rows, weights reordered (and rounded) for either direction, their gradients back to where
 * parameters have theirs. It counts as a step that the gradient of the model's own input is
 * computed, which the primitive cannot leave out. `gru` is oneDNN's first GRU, whose reset gate
 * comes before the product: another layer than ours and PyTorch's, which is `lbr_gru`; shown for
 * its time alone.
 *
 * All take turns. Prints a line a form: medians of milliseconds of forward, backward and of both,
 * oneDNN's over ours, and the least cosine of a gradient of theirs and of ours, which says that
 * both computed the same model. In float32 oneDNN 2.6's LSTM adds something to the gradient of the
 * recurrent weights that is not 0 even with T = 1, where it must be: with few rows the cosine shows
 * it (T = 3: 0.995), with 64 hardly (0.999998); its bf16 LSTM and its GRUs do not. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/rnn.h"

enum { WARM = 2 };

static const char *const names[] = {"lstm", "gru", "lbr_gru"};

static double cosine_of(const rnn_form *f, const float *theirs, const float *ours, size_t gate)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t g = 0; g < f->gates; g++)
        for (size_t i = 0; i < gate; i++) {
            const double a = theirs[(size_t)g * gate + i];
            const double b = ours[(size_t)rnn_gate_of(f, g) * gate + i];
            ab += a * b;
            aa += a * a;
            bb += b * b;
        }
    return ab / sqrt(aa * bb);
}

static void compare(rnn_form *f)
{
    f->cosine = 1;
    for (int i = 0; i < RNN_LAYERS; i++)
        for (int k = 0; k < 2; k++) {
            const size_t gate = (size_t)(f->H * (k || i ? f->H : f->features));
            const double c = cosine_of(f, f->layers[i].gradients[k],
                                       tr_params_grad(f->ours.params, (size_t)(4 * i + k)), gate);
            if (!(c >= f->cosine)) f->cosine = c;
        }
}

static tr_status open_form(tr_cpu *team, rnn_form *f, size_t rounds)
{
    tr_status st = TR_OK;
    char text[512];
    snprintf(text, sizeof text,
             "name: rnn\ndata: {train: {format: synthetic, samples: 64}}\n"
             "model:\n  input: [%lld, %lld]\n  layers:\n"
             "    - %s: {hidden: %lld, layers: %d, output: last}\n  loss: mse\n"
             "train: {steps: 1, batch: 1, optimizer: adamw}\n",
             (long long)f->T, (long long)f->features, f->kind == RNN_LSTM ? "lstm" : "gru",
             (long long)f->H, RNN_LAYERS);
    const bench_step_options o = {.file = "rnn",
                                  .text = text,
                                  .samples = f->N,
                                  .precision =
                                      f->type == TR_BF16 ? TR_PRECISION_BF16 : TR_PRECISION_FP32};
    for (size_t k = 0; k < TR_COUNT(f->seconds); k++)
        TR_HAVE(f->seconds[k] = tr_alloc(TR_MEM_OTHER, rounds, sizeof(double)));
    TR_TRY(bench_step_open(&o, &f->ours));
    memset(f->ours.target, 0, (size_t)(f->N * f->H) * sizeof(float));
    f->works = rnn_open_theirs(team, f) == TR_OK;
    if (!f->works)
        printf("%s %s: %s\n", names[f->kind], f->type == TR_BF16 ? "bf16" : "fp32",
               tr_last_error()->text);
out:
    return st;
}

static void print(rnn_form *f, size_t rounds)
{
    double ms[4];
    if (!f->works) return;
    for (size_t k = 0; k < 4; k++) ms[k] = 1e3 * bench_median(f->seconds[k], rounds);
    printf("%-8s %-5s %-32s %9.2f %9.2f %9.2f %9.2f %7.3f %10.6f\n", names[f->kind],
           f->type == TR_BF16 ? "bf16" : "fp32", tr_dnnl_impl(f->layers[1].forward.pd), ms[0],
           ms[1], ms[2], ms[3], ms[2] / ms[3], f->kind == RNN_GRU ? NAN : f->cosine);
}

static void close_form(rnn_form *f)
{
    rnn_close_theirs(f);
    bench_step_close(&f->ours);
    for (size_t k = 0; k < TR_COUNT(f->seconds); k++) tr_free(f->seconds[k]);
}

static int64_t argument(int argc, char **argv, int i, int64_t otherwise)
{
    const int64_t v = argc > i ? strtoll(argv[i], NULL, 10) : otherwise;
    return v > 0 ? v : otherwise;
}

static tr_status run(int argc, char **argv, rnn_form *forms, size_t nforms)
{
    tr_status st;
    const int64_t N = argument(argc, argv, 1, 32), T = argument(argc, argv, 2, 64),
                  features = argument(argc, argv, 3, 64), H = argument(argc, argv, 4, 256);
    const size_t rounds = (size_t)argument(argc, argv, 5, 15);
    void *ctx = NULL, *team = NULL;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    TR_TRY(tr_cpu_backend.open(&(tr_backend_options){0}, &ctx));
    TR_TRY(tr_team_open(&tr_cpu_backend, ctx, 1, &team));
    if (!((tr_cpu *)team)->bf16) nforms /= 2;
    for (size_t i = 0; i < nforms; i++) {
        rnn_form *f = &forms[i];
        f->kind = (rnn_kind)(i % 3);
        f->type = i < 3 ? TR_F32 : TR_BF16;
        f->N = N;
        f->T = T;
        f->features = features;
        f->H = H;
        f->gates = f->kind == RNN_LSTM ? TR_LSTM_GATES : TR_GRU_GATES;
        TR_TRY(open_form(team, f, rounds));
    }
    for (size_t i = 0; i < WARM + rounds; i++)
        for (size_t k = 0; k < nforms; k++) {
            rnn_form *f = &forms[(k + i) % nforms];
            const size_t round = i < WARM ? 0 : i - WARM;
            TR_TRY(bench_step_run(&f->ours, true, &f->seconds[3][round]));
            if (f->works) TR_TRY(rnn_run_theirs(team, f, round));
        }
    if (rank == 0)
        printf("%-8s %-5s %-32s %9s %9s %9s %9s %7s %10s\n", "", "", "oneDNN's", "forward",
               "backward", "both, ms", "ours, ms", "ratio", "cosine");
    for (size_t i = 0; i < nforms; i++) {
        if (forms[i].works) compare(&forms[i]);
        if (rank == 0) print(&forms[i], rounds);
        close_form(&forms[i]);
    }
    tr_team_close(&tr_cpu_backend, team);
    tr_cpu_backend.close(ctx);
out:
    return st;
}

int main(int argc, char **argv)
{
    static rnn_form forms[6];
    MPI_Init(&argc, &argv);
    const tr_status st = run(argc, argv, forms, TR_COUNT(forms));
    if (st != TR_OK) {
        fprintf(stderr, "bench_rnn: %s\n", tr_last_error()->text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
