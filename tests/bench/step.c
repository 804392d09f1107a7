/* A training step without a trainer: the plan's kernels on one thread, parameters as they begin,
 * random inputs. */
#include "tests/bench/step.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/floor.h"

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, ascending);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

tr_status bench_step_arguments(int argc, char **argv, const char *usage, bench_step_options *o,
                               size_t *rounds)
{
    tr_status st = TR_OK;
    const bool bf16 = argc > 3 && !strcmp(argv[3], "bf16");
    *o = (bench_step_options){.file = argv[1],
                              .samples = argc > 2 ? strtoll(argv[2], NULL, 10) : 64,
                              .precision = bf16 ? TR_PRECISION_BF16 : TR_PRECISION_FP32};
    *rounds = argc > 4 ? strtoull(argv[4], NULL, 10) : 21;
    TR_NEED(argc > 1 && o->samples > 0 && *rounds > 0 &&
                (bf16 || argc < 4 || !strcmp(argv[3], "fp32")),
            TR_CONFIG, "%s", usage);
out:
    return st;
}

static tr_status open_config(const char *file, tr_config **out)
{
    tr_status st;
    char *text = NULL;
    size_t n = 0, got;
    FILE *to = open_memstream(&text, &n), *from = fopen(file, "r");
    char piece[4096];
    TR_NEED(to && from, TR_CONFIG, "%s cannot be read", file);
    while ((got = fread(piece, 1, sizeof piece, from)) > 0) fwrite(piece, 1, got, to);
    fflush(to);
    TR_TRY(tr_config_open(file, text, n, NULL, 0, NULL, out));
out:
    if (from) fclose(from);
    if (to) fclose(to);
    free(text);
    return st;
}

static tr_status open_plan(const bench_step_options *o, bench_step *s)
{
    tr_status st;
    const tr_plan_key key = {.mode = TR_MODE_TRAIN, .batch = o->samples};
    if (o->text)
        TR_TRY(tr_config_open(o->file, o->text, strlen(o->text), NULL, 0, NULL, &s->config));
    else
        TR_TRY(open_config(o->file, &s->config));
    TR_TRY(tr_model_open(s->config, 0, &s->model));
    TR_TRY(tr_cpu_backend.open(&(tr_backend_options){0}, &s->ctx));
    const tr_params_options po = {.model = s->model,
                                  .count = s->model->flat_count,
                                  .buckets = s->model->buckets,
                                  .nbuckets = s->model->nbuckets,
                                  .state_count = s->model->state_count,
                                  .nslots = 2,
                                  .slot_names = {"exp_avg", "exp_avg_sq"}};
    const tr_range owned = {0, s->model->learned_count};
    TR_TRY(tr_params_open(&po, &owned, 1, NULL, &s->params));
    tr_model_init_params(s->model, 1, s->params->weights, 0, s->model->flat_count);
    tr_model_init_states(s->model, s->params->states);
    const tr_session_options so = {.model = s->model,
                                   .backend = &tr_cpu_backend,
                                   .backend_ctx = s->ctx,
                                   .params = s->params,
                                   .threads = 1,
                                   .precision = o->precision,
                                   .ranks = 1,
                                   .skip_passes = o->skip_passes,
                                   .keys = &key,
                                   .nkeys = 1};
    TR_TRY(tr_session_open(&so, &s->session));
    s->plan = tr_session_plan(s->session, TR_MODE_TRAIN, o->samples);
out:
    return st;
}

static int32_t *ids_below(int64_t ids, size_t count)
{
    int32_t *v = tr_alloc(TR_MEM_OTHER, count, sizeof *v);
    for (size_t i = 0; v && i < count; i++) v[i] = (int32_t)((int64_t)(i * 31) % ids);
    return v;
}

static tr_status open_data(bench_step *s)
{
    tr_status st = TR_OK;
    const tr_graph *g = tr_plan_graph(s->plan);
    for (size_t i = 0; i < s->model->ninputs; i++) {
        const tr_tensor *t = &g->tensors[g->inputs[i]];
        const int64_t ids = s->model->inputs[i].ids;
        s->inputs[i] = ids > 0 ? (void *)ids_below(ids, t->count) : bench_numbers(t->nbytes);
        TR_HAVE(s->inputs[i]);
    }
    TR_HAVE(s->target = tr_alloc(TR_MEM_OTHER, g->tensors[g->target].nbytes, 1)); /* class 0 */
out:
    return st;
}

tr_status bench_step_open(const bench_step_options *o, bench_step *s)
{
    const tr_status st = open_plan(o, s);
    s->control = (tr_control){.loss_scale = 1, .beta1 = 0.9, .beta2 = 0.999};
    return st == TR_OK ? open_data(s) : st;
}

void bench_step_close(bench_step *s)
{
    for (size_t i = 0; i < TR_MAX_IN; i++) tr_free(s->inputs[i]);
    tr_free(s->target);
    tr_session_close(s->session);
    tr_params_close(s->params);
    if (s->ctx) tr_cpu_backend.close(s->ctx);
    tr_model_close(s->model);
    tr_config_close(s->config);
}

tr_status bench_step_run(bench_step *s, bool pack, double *seconds)
{
    tr_status st;
    double tally[TR_TALLY] = {0};
    const tr_run run = {.seed = 1,
                        .loss_scale = 1,
                        .last = true,
                        .params_changed = pack,
                        .tally = tally,
                        .control = &s->control};
    TR_TRY(tr_session_stage(s->session));
    for (size_t i = 0; i < s->model->ninputs; i++)
        TR_TRY(tr_plan_set_input(s->plan, i, s->inputs[i]));
    TR_TRY(tr_plan_set_target(s->plan, s->target));
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = tr_now();
    TR_TRY(tr_plan_run(s->plan, &run));
    *seconds = tr_now() - begin;
out:
    return st;
}
