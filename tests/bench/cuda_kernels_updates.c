/* Updates of parameters, and the gradient's sum of squares. */
#include "runtime/config/config.h"
#include "tests/bench/cuda_kernels.h"

static const tr_backend *const b = &tr_cuda_backend;

/* w, g and the moments; an update that is to be applied. */
static tr_status open_optimizer(bench *k, int kind, int moments)
{
    tr_status st = TR_OK;
    const tr_control control = {.beta1 = 0.9,
                                .beta2 = 0.999,
                                .loss_scale = 1,
                                .in.lr = 1e-3,
                                .apply = 1,
                                .grad_scale = 1e-3,
                                .correct1 = 0.5,
                                .correct2 = 0.5};
    TR_TRY(bench_put_all(k, 2 + moments, k->n, 4));
    if (kind == TR_OPT_ADAMW)
        TR_TRY(b->memory->zero(k->cuda, k->array[3], k->n * 4)); /* not negative */
    k->control = b->memory->alloc(k->cuda, TR_MEM_OTHER, sizeof control);
    if (!k->control) TR_TRY(tr_last_error()->status);
    TR_TRY(b->memory->upload(k->cuda, k->control, &control, sizeof control));
    k->all = (tr_segment){.range = {0, k->n}, .decay = 0.01, .lr_factor = 1};
    const tr_update u = {.kind = kind,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8,
                         .momentum = 0.9,
                         .w = k->array[0],
                         .g = k->array[1],
                         .m = moments > 0 ? k->array[2] : NULL,
                         .v = moments > 1 ? k->array[3] : NULL,
                         .segments = &k->all,
                         .nsegments = 1};
    TR_TRY(b->training->open(k->cuda, 1, &k->training));
    TR_TRY(b->training->updater_open(k->training, &u, &k->updater));
out:
    return st;
}

static tr_status open_adamw(bench *k)
{
    return open_optimizer(k, TR_OPT_ADAMW, 2);
}

static tr_status open_sgd(bench *k)
{
    return open_optimizer(k, TR_OPT_SGD, 1);
}

static tr_status run_optimizer(bench *k)
{
    return b->training->updater_run(k->updater, k->control);
}

static tr_status open_sum(bench *k)
{
    tr_status st = TR_OK;
    TR_TRY(bench_put_all(k, 1, k->n, 4));
    TR_TRY(bench_put(k, 1, 8, &k->sums));
out:
    return st;
}

static tr_status run_sum(bench *k)
{
    return b->training->sum_squares(k->cuda, k->array[0], k->n, k->sums);
}

static const bench_case cases[] = {
    {"adamw, 25.6 M parameters", 1597320, 16, 28, 0.85, open_adamw, run_optimizer},
    {"adamw, 134 M parameters", 8388608, 16, 28, 0.85, open_adamw, run_optimizer},
    {"sgd with momentum, 134 M parameters", 8388608, 16, 20, 0.85, open_sgd, run_optimizer},
    {"sum of squares, 134 M", 8388608, 16, 4, 0, open_sum, run_sum},
};
const bench_subject bench_updates = {cases, TR_COUNT(cases)};
