/* Generation of a config's model, values by its seed, one id a step and sequence, beside the time that its bytes take.
 *
 *     bench_decode CONFIG PRECISION THREADS [SEQUENCES [PAST [cpu]]]
 *
 * The bound: what a step's kernels read of weights (of an embedding nothing) and of the rows before, at the rate at which as
 * many threads read memory that is in no cache, measured in turns with the steps; cpu: by the
 * processor's time, of one thread, where the machine is busy with other work. Prints medians of rounds: ids a second,
 * of the bound, and the ops that take longest. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "optimize/sample/sample.h"
#include "runtime/config/config.h"
#include "trainer/pipeline/stages.h"

enum { ROUNDS = 9, STEPS = 8, MOST = 64 };
#define BUFFER ((size_t)1 << 29)

static tr_status from_config(const char *file, tr_network **out)
{
    tr_status st = TR_OK;
    tr_variant_def stages[TR_STAGES + 1];
    tr_config *c = NULL;
    tr_model *m = NULL;
    char *text = NULL;
    size_t n;
    tr_stages_known(stages);
    TR_TRY(tr_read_text(file, &text, &n));
    TR_TRY(tr_config_open(file, text, n, NULL, 0, stages, &c));
    TR_TRY(tr_model_open(c, 0, &m));
    TR_TRY(tr_network_open(m, out));
    m = (*out)->model;
    tr_model_init_params(m, 1, (*out)->params, 0, m->flat_count);
    tr_model_init_states(m, (*out)->states);
out:
    tr_config_close(c);
    tr_free(text);
    return st;
}

static clockid_t used = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    clock_gettime(used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Bytes a second that `threads` read; every one of them counts. */
static double read_rate(const uint64_t *buffer, int threads)
{
    const double began = now();
    uint64_t sum = 0;
#pragma omp parallel for simd num_threads(threads) schedule(static) reduction(+ : sum)
    for (size_t i = 0; i < BUFFER / sizeof *buffer; i++) sum += buffer[i];
    const double seconds = now() - began;
    if (sum == 1) printf("?\n");
    return (double)BUFFER / seconds;
}

static double bytes_of(tr_decoder *d, int64_t sequences, int64_t past)
{
    tr_plan *p = tr_decoder_plan(d);
    const tr_graph *g = tr_plan_graph(p);
    double bytes = 0;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        const tr_plan_row row = tr_plan_row_at(p, i);
        double small = 0; /* what is no weight */
        bool looks_up = false, holds = false;
        for (int k = 0; k < op->nin; k++) {
            if (op->in[k] < 0) continue;
            const tr_tensor *t = &g->tensors[op->in[k]];
            if (t->role != TR_ROLE_PARAM) small += (double)t->nbytes;
            if (t->role == TR_ROLE_HELD && t->ndim == 4) {
                holds = true;
                bytes += (double)t->nbytes * (double)(past + 1) / (double)t->dims[2];
            }
            looks_up |= t->role == TR_ROLE_INPUT && t->index == 0;
        }
        for (int k = 0; k < op->nout; k++)
            if (op->out[k] >= 0) small += (double)g->tensors[op->out[k]].nbytes;
        if (!looks_up && !holds && row.bytes > small) bytes += row.bytes - small;
    }
    (void)sequences;
    return bytes;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static tr_status step(tr_decoder *d, int64_t sequences)
{
    static int32_t ids[MOST];
    static bool live[MOST];
    const float *logits;
    for (int64_t s = 0; s < sequences; s++) ids[s] = (int32_t)s + 1, live[s] = true;
    return tr_decoder_step(d, ids, live, &logits);
}

static tr_status print_ops(tr_decoder *d, int64_t sequences)
{
    tr_plan *p = tr_decoder_plan(d);
    const size_t n = tr_plan_rows(p);
    tr_status st = TR_OK;
    double *seconds = tr_alloc(TR_MEM_OTHER, n, sizeof *seconds);
    TR_HAVE(seconds);
    TR_TRY(tr_plan_time_ops(p, true));
    for (int i = 0; i < STEPS; i++) {
        TR_TRY(step(d, sequences));
        TR_TRY(tr_plan_op_seconds(p, seconds));
    }
    for (size_t shown = 0; shown < 8; shown++) {
        size_t most = 0;
        for (size_t i = 0; i < n; i++)
            if (seconds[i] > seconds[most]) most = i;
        const tr_plan_row r = tr_plan_row_at(p, most);
        printf("  %-24s %-12s %-16s %8.1f us %8.2f GB/s\n", r.layer, r.op, r.impl,
               seconds[most] / STEPS * 1e6, r.bytes * STEPS / seconds[most] / 1e9);
        seconds[most] = 0;
    }
out:
    tr_free(seconds);
    return st;
}

static tr_status measure(const char *config, tr_precision precision, int threads, int64_t sequences,
                         int64_t past)
{
    tr_status st = TR_OK;
    tr_network *n = NULL;
    tr_decoder *d = NULL;
    void *cpu = NULL;
    uint64_t *buffer = NULL;
    double rate[ROUNDS], seconds[ROUNDS], prompt = 0;
    int32_t *ids = NULL;
    const int32_t *rows[MOST];
    size_t counts[MOST];
    TR_TRY(from_config(config, &n));
    TR_TRY(tr_cpu_backend.open(&(tr_backend_options){0}, &cpu));
    const int64_t chunk = past < 128 ? past : 128;
    const tr_decoder_options o = {.backend = &tr_cpu_backend,
                                  .backend_ctx = cpu,
                                  .threads = threads,
                                  .precision = precision,
                                  .sequences = sequences,
                                  .rows = past + (ROUNDS + 2) * STEPS,
                                  .chunk = chunk};
    TR_TRY(tr_decoder_open(n, &o, &d));
    tr_network_close(n);
    n = NULL;
    TR_HAVE(buffer = tr_alloc(TR_MEM_OTHER, BUFFER, 1));
    memset(buffer, 1, BUFFER);
    TR_HAVE(ids = tr_alloc(TR_MEM_OTHER, (size_t)past + 1, sizeof *ids));
    for (int64_t s = 0; s < sequences; s++) rows[s] = ids, counts[s] = (size_t)past;
    TR_TRY(tr_decoder_reset(d));
    const double began = now();
    if (past > 0) TR_TRY(tr_decoder_feed(d, rows, counts));
    prompt = now() - began;
    for (int i = 0; i < STEPS; i++) TR_TRY(step(d, sequences));
    for (int r = 0; r < ROUNDS; r++) {
        rate[r] = read_rate(buffer, threads);
        const double from = now();
        for (int i = 0; i < STEPS; i++) TR_TRY(step(d, sequences));
        seconds[r] = (now() - from) / STEPS;
    }
    const double bytes = bytes_of(d, sequences, past), each = median(seconds, ROUNDS);
    const double read = median(rate, ROUNDS);
    printf("%s: %.1f ids/s a sequence, %.3f ms a step, %.1f MB; memory reads %.2f GB/s: bound %.1f "
           "ids/s, %.0f %% of it; prompt %.1f ids/s\n",
           precision == TR_PRECISION_BF16 ? "bf16" : "fp32", 1 / each, each * 1e3, bytes / 1e6,
           read / 1e9, read / bytes, 100 * bytes / read / each,
           past > 0 ? (double)(past * sequences) / prompt : 0.0);
    TR_TRY(print_ops(d, sequences));
out:
    tr_free(buffer);
    tr_free(ids);
    tr_decoder_close(d);
    tr_network_close(n);
    if (cpu) tr_cpu_backend.close(cpu);
    return st;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: bench_decode CONFIG fp32|bf16 THREADS [SEQUENCES [PAST [cpu]]]\n");
        return 2;
    }
    const tr_precision precision =
        strcmp(argv[2], "bf16") == 0 ? TR_PRECISION_BF16 : TR_PRECISION_FP32;
    const int64_t sequences = argc > 4 ? atoll(argv[4]) : 1, past = argc > 5 ? atoll(argv[5]) : 512;
    if (sequences < 1 || sequences > MOST || past < 0) return 2;
    if (argc > 6) used = CLOCK_PROCESS_CPUTIME_ID;
    const tr_status st = measure(argv[1], precision, atoi(argv[3]), sequences, past);
    if (st != TR_OK) fprintf(stderr, "%s\n", tr_last_error()->text);
    return st == TR_OK ? 0 : 1;
}
