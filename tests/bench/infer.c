/* Answers of one network, timed: what tests/bench/infer.py runs beside other engines.
 *
 *     bench_infer NETWORK BATCH PRECISION THREADS [ONNX|-] [PASS...]
 *
 * PASS: a pass over the graph that is left out (docs/passes.md), or "all". NETWORK: a run file, or
 * a config, whose network gets values by its seed and is written to ONNX for the others. Prints
 * what opening and the first answer took and the answer's first values; then, for every line
 * "SECONDS" of the input, the median of a call over so many seconds in microseconds; "SECONDS cpu":
 * of the processor's time, where the machine is busy with other work. "ops" prints the least time
 * of each op in 200 runs; "ops N": in N. Inputs are the same numbers for whoever asks: value i is
 * ((i * 7919) % 2000) / 1000 - 1. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "optimize/inference/inference.h"
#include "optimize/onnx/onnx.h"
#include "trainer/stages/stages.h"

enum { MOST = 1 << 16 }; /* calls of one measurement: their times count in the memory printed */

typedef struct {
    void *cpu;
    tr_network *network;
    tr_inference *inf;
    float *x, *y;
    int64_t batch;
    double *times;
} bench;

static double clock_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

static tr_status from_config(const char *file, const tr_variant_def *stages, tr_network **out)
{
    tr_status st = TR_OK;
    tr_config *c = NULL;
    tr_model *m = NULL;
    static char text[1 << 16];
    FILE *f = fopen(file, "r");
    TR_NEED(f, TR_CONFIG, "%s cannot be read", file);
    const size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    TR_TRY(tr_config_open(file, text, n, NULL, 0, stages, &c));
    TR_TRY(tr_model_open(c, 0, &m));
    TR_TRY(tr_network_open(m, out));
    m = (*out)->model;
    tr_model_init_params(m, 1, (*out)->params, 0, m->flat_count);
    tr_model_init_states(m, (*out)->states);
out:
    tr_config_close(c);
    return st;
}

static tr_status open_network(bench *b, const char *file)
{
    const size_t n = strlen(file);
    tr_variant_def stages[TR_STAGES + 1];
    tr_stages_known(stages);
    if (n > 3 && strcmp(file + n - 3, ".h5") == 0)
        return tr_network_read(file, NULL, 0, stages, &b->network, NULL);
    return from_config(file, stages, &b->network);
}

static tr_status answer(bench *b)
{
    return tr_inference_run(b->inf, (const void *const[]){b->x}, b->batch, &b->y);
}

static tr_status open_engine(bench *b, const char *file, tr_precision precision, int threads,
                             const char *onnx, unsigned skip)
{
    tr_status st = TR_OK;
    const double start = now();
    TR_TRY(open_network(b, file));
    const double read = now();
    if (onnx) TR_TRY(tr_onnx_write(onnx, b->network, &(tr_onnx_options){0}));
    const double began = now();
    TR_TRY(tr_cpu_backend.open(&(tr_backend_options){0}, &b->cpu));
    const tr_inference_options o = {.backend = &tr_cpu_backend,
                                    .backend_ctx = b->cpu,
                                    .threads = threads,
                                    .max_batch = b->batch,
                                    .skip_passes = skip,
                                    .precision = precision};
    TR_TRY(tr_inference_take(b->network, &o, &b->inf));
    const size_t count = (size_t)b->batch * tr_inference_input(b->inf, 0).count;
    b->x = tr_alloc(TR_MEM_OTHER, count, sizeof *b->x);
    b->y = tr_alloc(TR_MEM_OTHER, (size_t)b->batch * tr_inference_output(b->inf, 0).count,
                    sizeof *b->y);
    b->times = tr_alloc(TR_MEM_OTHER, MOST, sizeof *b->times);
    TR_HAVE(b->x && b->y && b->times);
    for (size_t i = 0; i < count; i++) b->x[i] = (float)(i * 7919 % 2000) / 1000.0f - 1;
    tr_network_close(b->network);
    b->network = NULL;
    const double opened = now();
    TR_TRY(answer(b));
    printf("read_ms %.2f open_ms %.2f first_ms %.2f rss_mb %.1f y", (read - start) * 1e3,
           (opened - began) * 1e3, (now() - opened) * 1e3, (double)tr_mem_rss() / 1048576);
    for (int i = 0; i < 10; i++) printf(" %.6g", (double)b->y[i]);
    printf("\n");
    fflush(stdout);
out:
    return st;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static tr_status measure(bench *b, double seconds, clockid_t clock)
{
    tr_status st = TR_OK;
    size_t n = 0;
    const double start = clock_of(clock);
    for (double last = start; n < 3 || (n < MOST && last - start < seconds); n++) {
        TR_TRY(answer(b));
        const double t = clock_of(clock);
        b->times[n] = t - last;
        last = t;
    }
    qsort(b->times, n, sizeof *b->times, by_value);
    printf("%.3f\n", b->times[n / 2] * 1e6);
    fflush(stdout);
out:
    return st;
}

static tr_status print_ops(bench *b, int runs)
{
    tr_status st = TR_OK;
    tr_plan *p = tr_inference_plan(b->inf, b->batch);
    const size_t n = tr_plan_rows(p);
    double *seconds = tr_alloc(TR_MEM_OTHER, 2 * n, sizeof *seconds), *least = seconds + n, sum = 0;
    TR_HAVE(seconds);
    TR_TRY(tr_plan_time_ops(p, true));
    for (int i = 0; i < runs; i++) {
        memset(seconds, 0, n * sizeof *seconds);
        TR_TRY(answer(b));
        TR_TRY(tr_plan_op_seconds(p, seconds));
        for (size_t k = 0; k < n; k++)
            if (i == 0 || seconds[k] < least[k]) least[k] = seconds[k];
    }
    TR_TRY(tr_plan_time_ops(p, false));
    for (size_t i = 0; i < n; i++) {
        const tr_plan_row r = tr_plan_row_at(p, i);
        const double us = least[i] * 1e6;
        sum += us;
        printf("%-16s %-18s %9.2f us %8.2f GFLOP/s %6.2f GB/s  %s\n", r.layer, r.op, us,
               r.flops / us * 1e-3, r.bytes / us * 1e-3, r.impl);
    }
    printf("all ops %.2f us\n", sum);
    fflush(stdout);
out:
    tr_free(seconds);
    return st;
}

int main(int argc, char **argv)
{
    tr_status st = TR_OK;
    bench b = {0};
    char line[64];
    unsigned skip = 0;
    if (argc < 5) {
        fprintf(stderr,
                "usage: bench_infer NETWORK BATCH fp32|bf16|fp16 THREADS [ONNX|-] [PASS...]\n");
        return 2;
    }
    for (int i = 6; i < argc; i++) {
        const tr_graph_pass_id pass = tr_graph_pass_named(argv[i]);
        const bool all = strcmp(argv[i], "all") == 0;
        TR_NEED(all || pass < TR_GRAPH_PASSES, TR_CONFIG, "there is no pass \"%s\"", argv[i]);
        skip |= all ? TR_PASSES_ALL : TR_PASS_IS(pass);
    }
    const tr_precision precision = strcmp(argv[3], "bf16") == 0   ? TR_PRECISION_BF16
                                   : strcmp(argv[3], "fp16") == 0 ? TR_PRECISION_FP16
                                                                  : TR_PRECISION_FP32;
    b.batch = atoll(argv[2]);
    TR_TRY(open_engine(&b, argv[1], precision, atoi(argv[4]),
                       argc > 5 && strcmp(argv[5], "-") != 0 ? argv[5] : NULL, skip));
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "ops", 3) == 0)
            TR_TRY(print_ops(&b, atoi(line + 3) > 0 ? atoi(line + 3) : 200));
        else
            TR_TRY(measure(&b, atof(line),
                           strstr(line, "cpu") ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC));
    }
out:
    if (st != TR_OK) fprintf(stderr, "%s\n", tr_last_error()->text);
    tr_inference_close(b.inf);
    tr_network_close(b.network);
    if (b.cpu) tr_cpu_backend.close(b.cpu);
    tr_free(b.x);
    tr_free(b.y);
    tr_free(b.times);
    return st == TR_OK ? 0 : 1;
}
