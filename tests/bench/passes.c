/* What the passes over the graph save of a training step on CPUs, each by itself, and what packing
 * weights costs it.
 *
 *     mpirun -np 2 bench_passes CONFIG [SAMPLES [fp32|bf16 [ROUNDS]]]
 *
 * Each process has CONFIG's step, forward and backward, on one thread and in several forms: as a
 * run has it, with all passes and weights packed inside the step; with its weights packed already,
 * as if that had been done off the critical path; once more in memory of its own, whose ratio says
 * what the ratios below are good to; without one pass, for each that finds something; and without
 * any. All take turns, so that others on the machine slow them alike. Prints for rank 0 medians of
 * the milliseconds and of the rounds' own ratios to the first form, the quarters of rounds below
 * and above, and by the plan what ops read and write, and the arena. */
#include <mpi.h>
#include <stdio.h>

#include "tests/bench/step.h"

enum { FORMS = TR_GRAPH_PASSES + 4, WARM = 3 };

typedef struct {
    char name[48];
    bench_step own, *step;
    bool packed;             /* already */
    double *seconds, *ratio; /* [rounds]; to the first form's */
} form;

typedef struct {
    bench_step_options o;
    size_t rounds, nforms;
    form forms[FORMS];
} bench;

/* `step` NULL: one of its own. */
static tr_status add_form(bench *b, const char *name, unsigned skip, bench_step *step)
{
    tr_status st = TR_OK;
    form *f = &b->forms[b->nforms++];
    bench_step_options o = b->o;
    o.skip_passes = skip;
    f->step = step ? step : &f->own;
    f->packed = step != NULL;
    snprintf(f->name, sizeof f->name, "%s", name);
    TR_HAVE(f->seconds = tr_alloc(TR_MEM_OTHER, b->rounds, sizeof *f->seconds));
    TR_HAVE(f->ratio = tr_alloc(TR_MEM_OTHER, b->rounds, sizeof *f->ratio));
    if (!step) TR_TRY(bench_step_open(&o, &f->own));
out:
    return st;
}

static tr_status open_forms(bench *b)
{
    tr_status st;
    unsigned all = 0;
    TR_TRY(add_form(b, "as it runs", 0, NULL));
    TR_TRY(add_form(b, "weights packed before", 0, &b->forms[0].own));
    TR_TRY(add_form(b, "as it runs, again", 0, NULL));
    const size_t *found = tr_plan_graph(b->forms[0].own.plan)->found;
    for (int i = 0; i < TR_GRAPH_PASSES; i++) {
        char name[48];
        if (found[i] == 0) continue;
        all |= TR_PASS_IS(i);
        snprintf(name, sizeof name, "without %s (%zu)", tr_graph_pass_at((tr_graph_pass_id)i)->name,
                 found[i]);
        TR_TRY(add_form(b, name, TR_PASS_IS(i), NULL));
    }
    TR_TRY(add_form(b, "without any pass", all, NULL));
out:
    return st;
}

/* Each begins a round in its turn: who comes after whom counts for none. */
static tr_status run_forms(bench *b, size_t round)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < b->nforms; i++) {
        form *f = &b->forms[(i + round) % b->nforms];
        TR_TRY(bench_step_run(f->step, !f->packed, &f->seconds[round]));
    }
    for (size_t i = 0; i < b->nforms; i++)
        b->forms[i].ratio[round] = b->forms[i].seconds[round] / b->forms[0].seconds[round];
out:
    return st;
}

static double op_bytes(const tr_plan *p)
{
    double nbytes = 0;
    const tr_graph *g = tr_plan_graph(p);
    for (size_t i = 0; i < tr_plan_rows(p); i++)
        if (!tr_op_is_view(g, &g->ops[i])) nbytes += tr_plan_row_at(p, i).bytes;
    return nbytes;
}

static void print_forms(bench *b)
{
    printf("%-28s %9s %7s %15s %9s %9s\n", "step", "ms", "ratio", "quarters", "op MB", "arena MB");
    for (size_t i = 0; i < b->nforms; i++) {
        form *f = &b->forms[i];
        tr_memory_plan m;
        tr_session_memory(f->step->session, &m);
        const double ms = 1e3 * bench_median(f->seconds, b->rounds);
        const double ratio = bench_median(f->ratio, b->rounds); /* sorts them */
        printf("%-28s %9.3f %7.3f %7.3f-%7.3f %9.1f %9.1f\n", f->name, ms, ratio,
               f->ratio[b->rounds / 4], f->ratio[3 * b->rounds / 4], op_bytes(f->step->plan) * 1e-6,
               (double)m.arena * 1e-6);
    }
}

static tr_status run(bench *b, int argc, char **argv)
{
    tr_status st;
    TR_TRY(bench_step_arguments(argc, argv, "bench_passes CONFIG [SAMPLES [fp32|bf16 [ROUNDS]]]",
                                &b->o, &b->rounds));
    TR_TRY(open_forms(b));
    for (size_t i = 0; i < WARM + b->rounds; i++) TR_TRY(run_forms(b, i < WARM ? 0 : i - WARM));
out:
    return st;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    bench b = {.nforms = 0};
    const tr_status st = run(&b, argc, argv);
    if (st != TR_OK) {
        fprintf(stderr, "bench_passes: %s\n", tr_last_error()->text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (rank == 0) print_forms(&b);
    for (size_t i = 0; i < b.nforms; i++) {
        bench_step_close(&b.forms[i].own);
        tr_free(b.forms[i].seconds);
        tr_free(b.forms[i].ratio);
    }
    MPI_Finalize();
    return 0;
}
