/* A training step of one GPU, op by op: what each moves and computes by the plan, which kernel,
 * engine or algorithm was chosen for it, and how long the device was at it. And the step as it
 * trains: how much of the wall clock the device's stream had work. */
#include "tests/bench/gpu.h"

#include <math.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "runtime/plan/internal.h"
#include "trainer/arguments/arguments.h"
#include "trainer/plan/plan.h"
#include "trainer/plan/shares.h"
#include "trainer/loop/trainer.h"

enum { MOST = 20, WARM = 6 };

typedef struct {
    tr_config *config;
    tr_model *model;
    int64_t batch; /* samples that a plan takes at once */
    int micro_batches;
    int runs, warm; /* steps that are timed, before those: at most MOST, WARM and train.steps */
    /* plan */
    void *ctx;
    tr_session *dry;
    /* ops, step */
    tr_comm *comm;
    tr_trainer *t;
    double *seconds; /* [ops of the graph] */
} bench;

/* ---- What is printed ------------------------------------------------------------------------- */

static void print_shape(const tr_graph *g, const tr_op *op)
{
    const tr_tensor *t = op->nout > 0 && op->out[0] >= 0 ? &g->tensors[op->out[0]] : NULL;
    printf("\"shape\":\"");
    for (int d = 0; t && d < t->ndim; d++) printf("%s%lld", d ? "x" : "", (long long)t->dims[d]);
    printf("\",\"type\":\"%s\"", tr_dtype_name(tr_op_dtype(g, op)));
}

/* `us`: of one step; NAN: not timed. */
static void print_end(double flops, double nbytes, double us)
{
    printf(",\"flops\":%.0f,\"bytes\":%.0f,\"us\":", flops, nbytes);
    if (isnan(us))
        printf("null}\n");
    else
        printf("%.2f}\n", us);
}

/* What a step launches beside the plan's ops, once however many micro-batches there are: parameters
 * into the layout and type that kernels read, the sum of squares, the update. */
static void print_others(const bench *b, const tr_session *s)
{
    const tr_params_options p = tr_params_options_of(b->config, b->model, s->o.backend);
    const double learned = (double)b->model->learned_count;
    for (size_t i = 0; i < s->npacked; i++) {
        const tr_packing *k = &s->packed[i].what;
        const tr_param *row = &b->model->params[k->param];
        printf("{\"layer\":\"%s\",\"op\":\"pack\",\"kernel\":\"pack\",\"choice\":\"\",\"phase\":"
               "\"update\","
               "\"shape\":\"%zu\",\"type\":\"float32\"",
               row->layer, row->count);
        print_end(0, (double)(row->count * sizeof(float) + k->nbytes), NAN);
    }
    printf("{\"layer\":\"\",\"op\":\"sum of squares\",\"kernel\":\"sum_squares\",\"choice\":\"\","
           "\"phase\":\"update\",\"shape\":\"%.0f\",\"type\":\"float32\"",
           learned);
    print_end(2 * learned, learned * sizeof(float), NAN);
    printf("{\"layer\":\"\",\"op\":\"update\",\"kernel\":\"update\",\"choice\":\"\",\"phase\":"
           "\"update\",\"shape\":"
           "\"%.0f\",\"type\":\"float32\"",
           learned);
    /* the gradient is read, weights and slots are read and written */
    print_end(16 * learned, learned * sizeof(float) * (3 + 2 * p.nslots), NAN);
}

static void print_rows(const bench *b, const tr_session *s, const tr_plan *p)
{
    const tr_graph *g = tr_plan_graph(p);
    const double times = b->micro_batches;
    for (size_t i = 0; i < tr_plan_rows(p); i++) {
        const tr_plan_row row = tr_plan_row_at(p, i);
        if (strcmp(row.impl, "view") == 0) continue;
        printf(
            "{\"layer\":\"%s\",\"op\":\"%s\",\"kernel\":\"%s\",\"choice\":\"%s\",\"phase\":\"%s\",",
            row.layer, row.op, row.impl, row.choice,
            row.phase == TR_PHASE_BACKWARD ? "backward" : "forward");
        print_shape(g, &g->ops[i]);
        printf(",\"scratch\":%.0f", times * (double)(p->kernels[i] ? p->kernels[i]->workspace : 0));
        print_end(times * row.flops, times * row.bytes,
                  b->seconds ? times * b->seconds[i] / b->runs * 1e6 : (double)NAN);
    }
    print_others(b, s);
    fflush(stdout);
}

/* ---- plan ------------------------------------------------------------------------------------ */

static tr_status plan(bench *b)
{
    tr_status st = TR_OK;
    const tr_plan_key key = {.mode = TR_MODE_TRAIN, .batch = b->batch};
    tr_backend_options o = tr_gpu_options(b->config, 0, true);
    o.dry = true;
    TR_TRY(tr_cuda_backend.open(&o, &b->ctx));
    const tr_session_options so = {.model = b->model,
                                   .backend = &tr_cuda_backend,
                                   .backend_ctx = b->ctx,
                                   .threads = 1,
                                   .precision = (tr_precision)b->config->train.precision,
                                   .sync_batchnorm =
                                       b->config->train.sync_batchnorm != TR_SYNC_NONE,
                                   .ranks = 1,
                                   .recompute = b->config->train.recompute.kind.which,
                                   .recompute_every = b->config->train.recompute.every,
                                   .keys = &key,
                                   .nkeys = 1,
                                   .dry = true};
    TR_TRY(tr_session_open(&so, &b->dry));
    print_rows(b, b->dry, tr_session_plan(b->dry, TR_MODE_TRAIN, b->batch));
out:
    return st;
}

/* ---- ops ------------------------------------------------------------------------------------- */

static tr_status open_trainer(bench *b)
{
    tr_status st = TR_OK;
    const tr_comm_options co = {.timeout = 60};
    TR_TRY(tr_comm_open(&co, &b->comm));
    const tr_trainer_options o = {
        .comm = b->comm, .config = b->config, .config_text = "", .model = b->model, .quiet = true};
    TR_TRY(tr_trainer_open(&o, &b->t));
    TR_NEED(!b->t->backend->host, TR_CONFIG, "device: cuda is needed, not %s", b->t->backend->name);
out:
    return st;
}

static tr_status step(bench *b, bool ahead)
{
    tr_status st = TR_OK;
    TR_TRY(tr_trainer_issue(b->t));
    while (b->t->issued - b->t->state.step > (ahead ? (uint64_t)b->t->lag : 0)) {
        const tr_status got = tr_trainer_collect(b->t);
        if (got != TR_NONFINITE) TR_TRY(got);
    }
out:
    return st;
}

/* Marks between ops are not recorded: these steps run as they come (run.cuda_graph: off). Of
 * several micro-batches the last one is timed. Where the host is slower than the device, an op's
 * time has the wait for its launch in it. */
static tr_status ops(bench *b)
{
    tr_status st = TR_OK;
    TR_TRY(open_trainer(b));
    TR_NEED(b->config->run.cuda_graph == TR_GRAPH_OFF, TR_CONFIG,
            "ops cannot be timed within recorded steps: add run.cuda_graph=off");
    tr_plan *p = tr_session_plan(b->t->session, TR_MODE_TRAIN, b->batch);
    TR_NEED(p, TR_INTERNAL, "there is no plan for %lld samples", (long long)b->batch);
    for (int i = 0; i < b->warm; i++) TR_TRY(step(b, false));
    b->seconds = tr_alloc(TR_MEM_OTHER, tr_plan_graph(p)->nops, sizeof *b->seconds);
    TR_HAVE(b->seconds);
    TR_TRY(tr_plan_time_ops(p, true));
    for (int i = 0; i < b->runs; i++) {
        TR_TRY(step(b, false));
        TR_TRY(tr_plan_op_seconds(p, b->seconds));
    }
    TR_TRY(tr_plan_time_ops(p, false));
    print_rows(b, b->t->session, p);
out:
    return st;
}

/* ---- step ------------------------------------------------------------------------------------ */

static tr_status drain(tr_trainer *t)
{
    tr_status st = TR_OK;
    while (t->issued > t->state.step) {
        const tr_status got = tr_trainer_collect(t);
        if (got != TR_NONFINITE) TR_TRY(got);
    }
out:
    return st;
}

/* The device's own clock is read within each recorded step, where it begins and ends (laps): the
 * rest of the wall clock the device had no step to work on. Events would stand in the stream before
 * the host has the next batch, and count the wait for it as work. NVML says in which part of its
 * samples (1/6 s to 1 s each) some kernel ran. */
static tr_status time_steps(bench *b)
{
    tr_status st = TR_OK;
    tr_trainer *t = b->t;
    double utilization = 0;
    int looks = 0;
    for (int i = 0; i < b->warm; i++) TR_TRY(step(b, true));
    TR_TRY(drain(t));
    const tr_times before = t->since;
    const double began = tr_now();
    for (int i = 0; i < b->runs; i++) {
        tr_device_load load = {.utilization = NAN};
        TR_TRY(step(b, true));
        if (t->backend->load && t->backend->load(t->backend_ctx, &load) &&
            !isnan(load.utilization)) {
            utilization += load.utilization;
            looks++;
        }
    }
    TR_TRY(drain(t));
    const double wall = tr_now() - began;
    const double busy = t->since.compute - before.compute + t->since.comm_wait - before.comm_wait;
    printf("{\"steps\":%d,\"batch\":%lld,\"wall_ms\":%.4f,\"device_ms\":%.4f,\"idle_share\":%.4f,"
           "\"nvml_utilization\":",
           b->runs, (long long)b->config->train.batch, wall / b->runs * 1e3, busy / b->runs * 1e3,
           wall > busy ? 1 - busy / wall : 0);
    if (looks > 0)
        printf("%.1f}\n", utilization / looks);
    else
        printf("null}\n");
out:
    return st;
}

tr_status bench_config(const char *verb, int argc, char **argv)
{
    tr_arguments a;
    bench b = {.config = NULL};
    tr_status st = tr_arguments_parse(argc, argv, "", &a);
    if (st != TR_OK) return st;
    tr_log_init(0, 1, TR_LOG_WARN);
    TR_TRY(tr_arguments_config(&a, NULL, &b.config));
    TR_TRY(tr_train_model(b.config, &b.model));
    b.micro_batches = tr_micro_batches(b.config, 1);
    const int64_t steps = b.config->train.steps > 0 ? b.config->train.steps : MOST;
    b.runs = steps < MOST ? (int)steps : MOST;
    b.warm = steps < WARM ? (int)steps : WARM;
    b.batch = (b.config->train.batch + b.micro_batches - 1) / b.micro_batches;
    if (strcmp(verb, "plan") == 0) {
        TR_TRY(plan(&b));
    } else if (strcmp(verb, "ops") == 0) {
        TR_TRY(ops(&b));
    } else {
        TR_TRY(open_trainer(&b));
        TR_TRY(time_steps(&b));
    }
out:
    tr_free(b.seconds);
    tr_session_close(b.dry);
    if (b.ctx) tr_cuda_backend.close(b.ctx);
    tr_trainer_close(b.t);
    tr_comm_close(b.comm);
    tr_model_close(b.model);
    tr_config_close(b.config);
    tr_arguments_free(&a);
    return st;
}
