/* Small language models, prompts, and what is made of them: for the tests of generation. */
#ifndef TR_TEST_GENERATE_HARNESS_H
#define TR_TEST_GENERATE_HARNESS_H

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "optimize/inference/inference.h"
#include "optimize/sample/sample.h"
#include "tests/unit/graph/random.h"

static const char *const models[] = {
    "  input: [24]\n  init: normal\n  layers:\n"
    "    - embedding: {num: 31, dim: 32, std: 1, name: wte}\n    - positions\n"
    "    - transformer: {layers: 2, heads: 4, activation: gelu_tanh, causal: true}\n"
    "    - layernorm\n    - linear: {out: 31, bias: false}\n  loss: cross_entropy\n",
    "  input: [24]\n  layers:\n    - embedding: {num: 31, dim: 24}\n"
    "    - transformer: {layers: 1, heads: 4, kv_heads: 2, causal: true, norm_type: rmsnorm,\n"
    "                    activation: swiglu, position: rotary, bias: false}\n"
    "    - rmsnorm\n    - linear: {out: 31}\n  loss: cross_entropy\n",
    "  input: [24]\n  layers:\n    - embedding: {num: 31, dim: 10}\n    - lstm: {hidden: 20}\n"
    "    - linear: {out: 31}\n  loss: cross_entropy\n",
    /* with lengths */
    "  inputs: {x: [24], n: [1]}\n  layers:\n    - embedding: {num: 31, dim: 24, from: x, name: "
    "e}\n"
    "    - transformer: {layers: 2, heads: 4, causal: true, from: [e, n]}\n"
    "    - linear: {out: 31}\n  loss: cross_entropy\n",
    "  inputs: {x: [24], n: [1]}\n  layers:\n    - embedding: {num: 31, dim: 10, from: x, name: "
    "e}\n"
    "    - lstm: {hidden: 20, layers: 2, from: [e, n]}\n    - linear: {out: 24}\n"
    "    - attention: {heads: 2, causal: true, from: [linear1, n]}\n"
    "    - linear: {out: 31}\n  loss: cross_entropy\n",
};
enum { T = 24, IDS = 31, MOST = 64, PROMPTS = 5 };

static void *cpu;

static inline tr_network *network(const char *model)
{
    test_model t = test_model_open(model);
    tr_network *n;
    ok(tr_network_open(t.model, &n));
    t.model = NULL;
    test_model_close(&t);
    tr_model_init_params(n->model, 3, n->params, 0, n->model->flat_count);
    for (size_t i = 0; i < n->model->flat_count; i++) n->params[i] *= 3; /* so that ids differ */
    return n;
}

static const int32_t words[] = {4, 9, 1, 30, 0, 7, 7, 12};
static const tr_ids prompts[PROMPTS] = {
    {words, 3}, {words, 8}, {words + 3, 1}, {words, 3}, {words + 2, 5}};

typedef struct {
    int32_t ids[PROMPTS][MOST];
    size_t count[PROMPTS];
    tr_end why[PROMPTS];
    bool ended[PROMPTS];
    int64_t stop_after; /* ids; -1: never */
    int asked, stop_at; /* how often; at the how-manieth; 0: never */
    uint64_t calls;     /* allocations, when an id came first and last */
    uint64_t last_calls;
} made;

static inline tr_status emit(void *ctx, size_t prompt, int32_t id)
{
    made *m = ctx;
    assert_false(m->ended[prompt]);
    assert_true(m->count[prompt] < MOST);
    m->ids[prompt][m->count[prompt]++] = id;
    if (m->calls == 0) m->calls = tr_mem_calls();
    m->last_calls = tr_mem_calls();
    return TR_OK;
}

static inline tr_status end(void *ctx, size_t prompt, tr_end why)
{
    made *m = ctx;
    assert_false(m->ended[prompt]);
    m->ended[prompt] = true;
    m->why[prompt] = why;
    return TR_OK;
}

static inline bool stop(void *ctx)
{
    made *m = ctx;
    if (++m->asked == m->stop_at) return true;
    return m->stop_after >= 0 && (int64_t)m->count[0] >= m->stop_after;
}

typedef struct {
    int64_t sequences, chunk;
    int threads;
} how;

static inline tr_status generate(const tr_network *n, how h, tr_generation g, made *out,
                                 tr_generated *done)
{
    tr_decoder *d = NULL;
    const int64_t limit = tr_graph_most_rows(n->model, NULL);
    const tr_decoder_options o = {.backend = &tr_cpu_backend,
                                  .backend_ctx = cpu,
                                  .threads = h.threads,
                                  .sequences = h.sequences,
                                  .rows = limit > 0 ? limit : 8 + g.tokens,
                                  .chunk = h.chunk};
    *out = (made){.stop_after = out->stop_after, .stop_at = out->stop_at};
    tr_network *own;
    ok(tr_network_edit(n, NULL, NULL, &own)); /* whose values the decoder takes */
    ok(tr_decoder_open(own, &o, &d));
    tr_network_close(own);
    if (!g.prompts) g.prompts = prompts, g.nprompts = PROMPTS;
    g.emit = emit;
    g.end = end;
    g.stop = stop;
    g.ctx = out;
    const tr_status st = tr_generate(d, &g, done);
    tr_decoder_close(d);
    return st;
}

static const tr_choice greedy = {0, 0, 1}, free_choice = {1.3, 20, 0.95};

static inline int open_cpu(void **state)
{
    const tr_backend_options o = {0};
    (void)state;
    return tr_cpu_backend.open(&o, &cpu) == TR_OK ? 0 : -1;
}

static inline int close_cpu(void **state)
{
    (void)state;
    tr_cpu_backend.close(cpu);
    return 0;
}

#endif
