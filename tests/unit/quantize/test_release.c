/* links: trireme_quantize trireme_profile trireme_inference trireme_cpu trireme_runtime
 * trireme_collectives */
/* An engine in 8 bits holds its weights once, packed: a number of samples that comes later has its
 * copies from those, and answers as an engine that was opened for it. Convolutions whole, in groups
 * and depthwise; linear layers. */
#include "tests/unit/quantize/bench.h"

#include "optimize/inference/inference.h"

enum { IN = 3 * 9 * 7, OUT = 5, MOST = 6 };
static const char net[] =
    "  input: [3, 9, 7]\n  layers:\n    - conv2d: {out: 20, kernel: 3, padding: 1}\n    - relu\n"
    "    - conv2d: {out: 20, kernel: 3, padding: 1, groups: 20}\n    - relu\n"
    "    - conv2d: {out: 24, kernel: 3, stride: 2, groups: 4}\n    - relu\n    - flatten\n"
    "    - linear: {out: 40}\n    - relu\n    - linear: {out: 5}\n  loss: cross_entropy\n";

static tr_inference *engine(const bench *b, const tr_network *q, int64_t size)
{
    tr_inference *inf = NULL;
    ok(tr_inference_open(q,
                         &(tr_inference_options){.backend = &TEST_BACKEND,
                                                 .backend_ctx = b->device,
                                                 .max_batch = MOST,
                                                 .sizes = &size,
                                                 .nsizes = 1},
                         &inf));
    return inf;
}

static void answer(tr_inference *inf, const float *x, int64_t n, float *y)
{
    ok(tr_inference_run(inf, (const void *[]){x}, n, &y));
}

/* Of all weights of more than a dimension nothing is in memory as floats. */
static void check_weights(const tr_inference *inf, const tr_model *m)
{
    tr_memory_plan memory;
    size_t left = m->state_count * sizeof(float);
    for (size_t i = 0; i < m->nparams; i++)
        if (m->params[i].ndim < 2) left += m->params[i].count * sizeof(float);
    tr_inference_memory(inf, &memory);
    assert_int_equal(memory.bytes[TR_MEM_WEIGHTS], left);
}

static void test_release(void **state)
{
    (void)state;
    static const double scales[] = {0.02, 0.01, 0.01, 0.01, 0.01, 0.01,
                                    0.01, 0.01, 0.01, 0.01, 0.01};
    static float x[MOST * IN], y[MOST * OUT], want[MOST * OUT];
    bench b;
    tr_network *q = NULL;
    open_bench(&b, net, 8, 8, scales);
    ok(tr_quantize_static(b.n, b.chosen, b.ranges, false, NULL, &q));
    for (size_t i = 0; i < TR_COUNT(x); i++)
        x[i] = (float)(tr_philox_at(5, TR_RNG_TEST, 0, i, 0).v[0] % 2000) / 1000.0f - 1;
    tr_inference *grown = engine(&b, q, 1);
    check_weights(grown, q->model);
    for (int64_t n = 1; n <= MOST; n++) {
        tr_inference *fresh = engine(&b, q, n);
        answer(fresh, x, n, want);
        answer(grown, x, n, y);
        assert_memory_equal(y, want, (size_t)n * OUT * sizeof *y);
        tr_inference_close(fresh);
        check_weights(grown, q->model);
    }
    assert_true(y[0] != y[1]);
    tr_inference_close(grown);
    tr_network_close(q);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_release)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
