/* How near a training step on CPUs comes to what its products and its memory traffic take.
 *
 *     mpirun -np 2 bench_floor CONFIG [SAMPLES [fp32|bf16 [ROUNDS [products]]]]
 *
 * Each process plans CONFIG's training step for SAMPLES samples on one thread, and takes turns
 * between
 *
 *     step    the plan's kernels on random data, each timed; then an update of AdamW, whatever
 *             CONFIG has
 *     floor   of a matrix product or convolution: the same problem alone, at the formats that
 *             oneDNN likes best, on arrays of its own; of bfloat16 also in float32, which some CPUs
 *             multiply in less time: the better of both counts; of anything else: the bytes that it
 *             must read and write, at the rate of memcpy from chunk to chunk of an arena as large
 *             as the plan's (copies of weights that products read, packed in their time, are bytes,
 *             too); of a recurrence both, a product for each row
 *
 * as all processes do at the same time, which share the memory's bandwidth. Medians over ROUNDS
 * rounds of rank 0. Prints a table by op, then one line of JSON. Ratio: time over floor. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/floor.h"
#include "tests/bench/step.h"

enum { CHUNK = 4 << 20, COPIES = 16, TYPES = 2 };

typedef struct {
    const char *name;
    double bytes; /* that must be moved; 0 where `of` says what it takes */
    struct {
        bench_product p;
        double *alone; /* [rounds] */
    } of[TYPES];       /* the step's type, then float32 where that is another */
    double *seconds;   /* [rounds] */
} work;

typedef struct {
    bench_step step;
    tr_cpu *team;
    void *training, *updater;
    tr_segment all;
    work *works; /* an op each, then the optimizer, then packing */
    size_t nworks, rounds;
    double *seconds; /* of a run's ops */
    double *copy;    /* [rounds] bytes a second, read and written */
    char *arena;
    size_t arena_size;
} bench;

/* ---- The step -------------------------------------------------------------------------------- */

static tr_status open_optimizer(bench *b)
{
    tr_status st;
    const tr_device_training *t = tr_cpu_backend.training;
    b->all =
        (tr_segment){.range = {0, b->step.model->learned_count}, .decay = 0.01, .lr_factor = 1};
    const tr_update u = {.kind = TR_UPDATE_ADAMW,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8,
                         .w = b->step.params->weights,
                         .g = b->step.params->grads,
                         .m = b->step.params->slots[0],
                         .v = b->step.params->slots[1],
                         .segments = &b->all,
                         .nsegments = 1};
    TR_TRY(t->open(b->step.ctx, 1, &b->training));
    TR_TRY(t->updater_open(b->training, &u, &b->updater));
out:
    return st;
}

static tr_status open_products(bench *b, const tr_op *op, work *w)
{
    tr_status st;
    const tr_graph *g = tr_plan_graph(b->step.plan);
    const tr_dtype type = g->tensors[op->in[0]].dtype;
    TR_TRY(bench_product_open(b->team, g, op, type, &w->of[0].p));
    if (type != TR_F32) TR_TRY(bench_product_open(b->team, g, op, TR_F32, &w->of[1].p));
out:
    return st;
}

static tr_status open_works(bench *b)
{
    tr_status st = TR_OK;
    const tr_graph *g = tr_plan_graph(b->step.plan);
    b->nworks = g->nops + 2;
    TR_HAVE(b->works = tr_alloc(TR_MEM_OTHER, b->nworks, sizeof *b->works));
    TR_HAVE(b->seconds = tr_alloc(TR_MEM_OTHER, g->nops, sizeof *b->seconds));
    TR_HAVE(b->copy = tr_alloc(TR_MEM_OTHER, b->rounds, sizeof *b->copy));
    for (size_t i = 0; i < b->nworks; i++) {
        work *w = &b->works[i];
        TR_HAVE(w->seconds = tr_alloc(TR_MEM_OTHER, b->rounds, sizeof *w->seconds));
        for (int t = 0; t < TYPES; t++)
            TR_HAVE(w->of[t].alone = tr_alloc(TR_MEM_OTHER, b->rounds, sizeof *w->of[t].alone));
        if (i == g->nops) {
            w->name = "adamw";
            w->bytes = 28.0 * (double)b->step.model->learned_count; /* w g m v, and w m v back */
            continue;
        }
        if (i > g->nops) {
            w->name = "packing";
            for (size_t k = 0; k < b->step.session->npacked; k++) {
                const tr_packing *what = &b->step.session->packed[k].what;
                w->bytes +=
                    4.0 * (double)b->step.model->params[what->param].count + (double)what->nbytes;
            }
            continue;
        }
        w->name = tr_op_name(&g->ops[i]);
        if (bench_is_product(&g->ops[i]) || bench_recurs(&g->ops[i]))
            TR_TRY(open_products(b, &g->ops[i], w));
        if (!bench_is_product(&g->ops[i]))
            w->bytes = tr_op_is_view(g, &g->ops[i]) ? 0 : tr_plan_row_at(b->step.plan, i).bytes;
    }
    tr_memory_plan m;
    tr_session_memory(b->step.session, &m);
    b->arena_size = tr_align_up(m.arena, 2 * CHUNK) + 2 * CHUNK;
    TR_HAVE(b->arena = bench_numbers(b->arena_size));
out:
    return st;
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

static tr_status run_step(bench *b, size_t round)
{
    tr_status st;
    const size_t nops = tr_plan_graph(b->step.plan)->nops;
    double all;
    TR_TRY(bench_step_run(&b->step, true, &all));
    const double begin = tr_now();
    b->step.control.sum_squares = 1;
    b->step.control.sums[TR_TALLY_WEIGHT] = b->step.control.sums[TR_TALLY_SAMPLES] = 1;
    TR_TRY(tr_cpu_backend.training->updater_decide(b->updater, &b->step.control));
    TR_TRY(tr_cpu_backend.training->updater_run(b->updater, &b->step.control));
    b->works[nops].seconds[round] = tr_now() - begin;
    memset(b->seconds, 0, nops * sizeof *b->seconds);
    TR_TRY(tr_plan_op_seconds(b->step.plan, b->seconds));
    for (size_t i = 0; i < nops; i++) b->works[i].seconds[round] = b->seconds[i];
out:
    return st;
}

static tr_status run_products(bench *b, size_t round)
{
    tr_status st = TR_OK;
    tr_dnnl_use(b->team);
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < b->nworks; i++) {
        for (int t = 0; t < TYPES; t++) {
            const bench_product *p = &b->works[i].of[t].p;
            if (!p->pd) continue;
            const double begin = tr_now();
            for (int64_t k = 0; k < p->times; k++)
                TR_DNNL(dnnl_primitive_execute(p->primitive, b->team->stream, p->nargs, p->args),
                        "run a primitive");
            b->works[i].of[t].alone[round] = tr_now() - begin;
        }
    }
out:
    return st;
}

/* From chunk to chunk, over the arena or its first 128 MB: none is found in a smaller cache. */
static void run_copies(bench *b, size_t round)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = tr_now();
    size_t copied = 0;
    for (size_t at = 0; at + 2 * CHUNK <= b->arena_size && copied < (size_t)COPIES * CHUNK;
         at += 2 * CHUNK) {
        memcpy(b->arena + at + CHUNK, b->arena + at, CHUNK);
        copied += CHUNK;
    }
    b->copy[round] = 2.0 * (double)copied / (tr_now() - begin);
}

/* ---- The report ------------------------------------------------------------------------------ */

/* Milliseconds of the better product, whose type it is in *better. */
static double product_floor(const bench *b, const work *w, int *better)
{
    const double own = 1e3 * bench_median(w->of[0].alone, b->rounds);
    const double wide = w->of[1].p.pd ? 1e3 * bench_median(w->of[1].alone, b->rounds) : own;
    *better = wide < own;
    return *better ? wide : own;
}

/* Products one by one: which layers and implementations are away from their floor. */
static void print_products(const bench *b)
{
    printf("%-26s %-26s %-24s %-24s %9s %9s %6s\n", "layer", "op", "implementation", "alone", "ms",
           "floor ms", "ratio");
    for (size_t i = 0; i < b->nworks; i++) {
        const work *w = &b->works[i];
        if (!w->of[0].p.pd) continue;
        int better;
        const tr_plan_row row = tr_plan_row_at(b->step.plan, i);
        const double ms = 1e3 * bench_median(w->seconds, b->rounds),
                     floor = product_floor(b, w, &better);
        printf("%-26s %-26s %-24s %-24s %9.3f %9.3f %6.2f%s\n", row.layer, row.op, row.impl,
               tr_dnnl_impl(w->of[better].p.pd), ms, floor, ms / floor, better ? " (fp32)" : "");
    }
}

static void print_table(bench *b)
{
    const double copy = bench_median(b->copy, b->rounds);
    double total[2] = {0, 0}, products[2] = {0, 0};
    int narrow = 0, wide = 0; /* products whose floor is of the step's type, of float32 instead */
    printf("%-26s %5s %9s %9s %6s %8s\n", "op", "calls", "ms", "floor ms", "ratio", "GB/s");
    for (size_t i = 0; i < b->nworks; i++) { /* each name at its first op */
        double ms = 0, floor = 0, bytes = 0;
        int calls = 0;
        bool seen = false;
        for (size_t j = 0; j < b->nworks; j++) {
            work *w = &b->works[j];
            if (strcmp(w->name, b->works[i].name)) continue;
            seen |= j < i;
            if (seen) break;
            ms += 1e3 * bench_median(w->seconds, b->rounds);
            bytes += w->bytes;
            calls++;
            floor += 1e3 * w->bytes / copy;
            if (!w->of[0].p.pd) continue;
            int better;
            const double product = product_floor(b, w, &better);
            floor += product;
            products[0] += 1e3 * bench_median(w->seconds, b->rounds);
            products[1] += product;
            *(better ? &wide : &narrow) += 1;
        }
        if (seen || floor == 0) continue;
        total[0] += ms;
        total[1] += floor;
        printf("%-26s %5d %9.3f %9.3f %6.2f %8.2f\n", b->works[i].name, calls, ms, floor,
               ms / floor, bytes / ms * 1e-6);
    }
    printf("%-26s %5s %9.3f %9.3f %6.2f\n", "all", "", total[0], total[1], total[0] / total[1]);
    if (wide)
        printf("floor: %d products in float32, which takes less time than bfloat16 here, %d in "
               "bfloat16\n",
               wide, narrow);
    printf("{\"step_ms\": %.4f, \"floor_ms\": %.4f, \"products_ms\": %.4f, "
           "\"products_floor_ms\": %.4f, \"floor_products_in_fp32\": %d, "
           "\"copy_gb_per_s\": %.3f}\n",
           total[0], total[1], products[0], products[1], wide, copy * 1e-9);
}

static void close_bench(bench *b)
{
    for (size_t i = 0; b->works && i < b->nworks; i++) {
        for (int t = 0; t < TYPES; t++) {
            bench_product_close(&b->works[i].of[t].p);
            tr_free(b->works[i].of[t].alone);
        }
        tr_free(b->works[i].seconds);
    }
    tr_free(b->works);
    tr_free(b->seconds);
    tr_free(b->copy);
    tr_free(b->arena);
    if (b->training) {
        tr_cpu_backend.training->updater_close(b->updater);
        tr_cpu_backend.training->close(b->training);
    }
    if (b->team) tr_team_close(&tr_cpu_backend, b->team);
    bench_step_close(&b->step);
}

static tr_status run(bench *b, int argc, char **argv)
{
    tr_status st;
    bench_step_options o;
    TR_TRY(bench_step_arguments(argc, argv,
                                "bench_floor CONFIG [SAMPLES [fp32|bf16 [ROUNDS [products]]]]", &o,
                                &b->rounds));
    TR_TRY(bench_step_open(&o, &b->step));
    TR_TRY(tr_plan_time_ops(b->step.plan, true));
    TR_TRY(tr_team_open(&tr_cpu_backend, b->step.ctx, 1, (void **)&b->team));
    TR_TRY(open_optimizer(b));
    TR_TRY(open_works(b));
    for (size_t i = 0; i < 3 + b->rounds; i++) { /* the first three warm up */
        const size_t round = i < 3 ? 0 : i - 3;
        TR_TRY(run_step(b, round));
        TR_TRY(run_products(b, round));
        run_copies(b, round);
    }
out:
    return st;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    bench b = {0};
    const tr_status st = run(&b, argc, argv);
    if (st != TR_OK) {
        fprintf(stderr, "bench_floor: %s\n", tr_last_error()->text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (rank == 0 && argc > 5) print_products(&b);
    if (rank == 0) print_table(&b);
    close_bench(&b);
    MPI_Finalize();
    return 0;
}
