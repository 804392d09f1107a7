/* A config's training step on the CPU, on random data: what floor.c and passes.c run. */
#ifndef TR_BENCH_STEP_H
#define TR_BENCH_STEP_H

#include "kernels/cpu/cpu.h"
#include "runtime/config/config.h"
#include "runtime/plan/internal.h"

typedef struct {
    const char *file; /* the config */
    const char *text; /* it, in the place of the file's; NULL: that */
    int64_t samples;
    tr_precision precision;
    unsigned skip_passes; /* of the graph: a set of TR_PASS_IS */
} bench_step_options;

typedef struct {
    tr_config *config;
    tr_model *model;
    void *ctx;
    tr_params *params; /* with AdamW's slots */
    tr_session *session;
    tr_plan *plan;
    tr_control control;
    void *inputs[TR_MAX_IN], *target;
} bench_step;

/* *Local.* On one thread. Closed by bench_step_close, also when this fails. */
tr_status bench_step_open(const bench_step_options *o, bench_step *s);
void bench_step_close(bench_step *s);
/* *Collective* over MPI_COMM_WORLD, as all begin together. Forward and backward. `pack`: the
 * weights count as updated, and are packed anew where kernels read them; else those of the run
 * before do. What it took is in *seconds. */
tr_status bench_step_run(bench_step *s, bool pack, double *seconds);

/* Sorts v. */
double bench_median(double *v, size_t n);
/* Of [SAMPLES [fp32|bf16 [ROUNDS]]] from argv[2] on, with 64, fp32 and 21 where they are not given.
 * TR_CONFIG with `usage`. */
tr_status bench_step_arguments(int argc, char **argv, const char *usage, bench_step_options *o,
                               size_t *rounds);

#endif
