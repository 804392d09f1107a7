/* A network with synthetic data on one rank, for tests of what data decides. The backend:
 * TEST_BACKEND, the CPU's unless a test of another says so before. */
#ifndef TEST_QUANTIZE_BENCH_H
#define TEST_QUANTIZE_BENCH_H

#include "optimize/quantize/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/graph/models.h"

#ifndef TEST_BACKEND
#include "kernels/cpu/cpu.h"
#define TEST_BACKEND tr_cpu_backend
#endif

static inline void ok(tr_status st)
{
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
}

typedef struct {
    char *text; /* of the config */
    tr_config *config;
    tr_network *n;
    tr_comm *comm;
    tr_evaluator *e;
    void *device;
    tr_value_range ranges[16];
    bool chosen[16];
} bench;

/* Values `v` are rounded by scales[v]; weights as a fresh model has them. */
static inline void open_bench(bench *b, const char *layers, int samples, int batch,
                              const double *scales)
{
    const tr_comm_options co = {.timeout = 60};
    const tr_backend_options bo = {0};
    tr_model *m = NULL;
    *b = (bench){0};
    b->text = tr_sprintf("name: m\nseed: 5\ndata: {train: {format: synthetic, samples: %d}}\n"
                         "model:\n%strain: {batch: %d, epochs: 1, optimizer: {sgd: {lr: 0.1}}}\n",
                         samples, layers, batch);
    ok(tr_config_open("m.yaml", b->text, strlen(b->text), NULL, 0, NULL, &b->config));
    ok(tr_model_open(b->config, 0, &m));
    ok(tr_network_open(m, &b->n));
    tr_model_init_params(m, 3, b->n->params, 0, m->flat_count);
    ok(tr_comm_open(&co, &b->comm));
    ok(TEST_BACKEND.open(&bo, &b->device));
    ok(tr_evaluator_open(&(tr_evaluator_options){.comm = b->comm, .config = b->config}, &b->e));
    tr_evaluator_move(b->e, &TEST_BACKEND, b->device, 1);
    for (size_t i = 0; i < m->nlayers; i++) b->chosen[i] = tr_quantizable(m, &m->layers[i]);
    for (size_t v = 0; v <= m->nlayers; v++)
        b->ranges[v] = (tr_value_range){.is_signed = true, .scale = scales[v]};
}

static inline void close_bench(bench *b)
{
    tr_evaluator_close(b->e);
    TEST_BACKEND.close(b->device);
    tr_comm_close(b->comm);
    tr_network_close(b->n);
    tr_config_close(b->config);
    tr_free(b->text);
}

static inline float *outputs(bench *b, const tr_network *n, size_t *count)
{
    float *y = NULL;
    ok(tr_outputs_over(b->e, n, b->config, true, 0, &y, count));
    return y;
}

#endif
