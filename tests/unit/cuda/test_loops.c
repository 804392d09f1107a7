/* What the op tests do not reach in elementwise kernels and copies: pointers that are not aligned,
 * sizes that leave a tail, operands that share their bytes, no elements at all. Against plain C in
 * float64. */
#include "loops_harness.h"

#include "kernels/cuda/loops/arrange.h"
#include "kernels/cuda/loops/elementwise.h"
#include "tests/unit/activate.h"

static const size_t lengths[] = {0, 1, 3, 8, 511, 4096, 4099, 20001};

static void test_activations(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (tr_act act = TR_ACT_RELU; act <= TR_ACT_TANH; act++)
            for (size_t k = 0; k < TR_COUNT(lengths); k++)
                for (size_t skew = 0; skew < 2; skew++) {
                    const size_t n = lengths[k];
                    const bool from_y =
                        act == TR_ACT_RELU || act == TR_ACT_SIGMOID || act == TR_ACT_TANH;
                    array x = array_of(cuda, types[t], n, skew, 1, -7, 7), y = array_like(&x);
                    array dy = array_of(cuda, types[t], n, skew, 2, -1, 1);
                    double *want = malloc((n + 1) * sizeof *want);
                    for (size_t i = 0; i < n; i++) want[i] = activate(act, x.v[i]);
                    assert_ok(tr_cuda_act_run(types[t], act, x.at, y.at, n, cuda->stream));
                    close_to(&y, want, 1e-6, "activation", 1);
                    for (size_t i = 0; i < n; i++) {
                        const double v = x.v[i], h = 1e-5, s = y.v[i];
                        want[i] = dy.v[i] * (activate(act, v + h) - activate(act, v - h)) / (2 * h);
                        if (act == TR_ACT_RELU) want[i] = s > 0 ? dy.v[i] : 0;
                        if (act == TR_ACT_SIGMOID) want[i] = dy.v[i] * s * (1 - s);
                        if (act == TR_ACT_TANH) want[i] = dy.v[i] * (1 - s * s);
                    }
                    assert_ok(tr_cuda_act_grad_run(types[t], act, dy.at, from_y ? y.at : x.at,
                                                   dy.at, n, cuda->stream));
                    close_to(&dy, want, 2e-6, "activation.grad in place", 1);
                    assert_ok(tr_cuda_act_run(types[t], act, x.at, x.at, n, cuda->stream));
                    receive(&x);
                    assert_memory_equal(x.v, y.v, n * sizeof *x.v);
                    free(want);
                    drop(&x);
                    drop(&y);
                    drop(&dy);
                }
    b->close(cuda);
}

static void test_add(void **state)
{
    (void)state;
    tr_cuda *cuda = open_with(false);
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (int count = 1; count <= TR_MAX_IN; count++)
            for (size_t k = 0; k < TR_COUNT(lengths); k++) {
                const size_t n = lengths[k];
                const int odd = (int)(k % 3) - 1; /* which operand is not aligned; -1: none */
                const tr_act act = count % 2 ? TR_ACT_SILU : TR_ACT_RELU;
                array in[TR_MAX_IN];
                void *at[TR_MAX_IN];
                double *want = calloc(n + 1, sizeof *want);
                for (int j = 0; j < count; j++) {
                    in[j] = array_of(cuda, types[t], n, j == odd, (uint32_t)j, -2, 2);
                    at[j] = in[j].at;
                    for (size_t i = 0; i < n; i++) want[i] += in[j].v[i];
                }
                for (size_t i = 0; i < n; i++) want[i] = activate(act, want[i]);
                const int over = count / 2; /* in place of one of them */
                assert_ok(tr_cuda_add_run(types[t], act, count, at, at[over], n, cuda->stream));
                close_to(&in[over], want, 2e-6, "add", 1);
                for (int j = 0; j < count; j++) drop(&in[j]);
                free(want);
            }
    b->close(cuda);
}

static void test_dropout(void **state)
{
    (void)state;
    static const struct {
        size_t samples, elements;
    } sizes[] = {{0, 8}, {1, 1}, {3, 5}, {7, 8}, {5, 4}, {2, 1000}, {3, 1003}, {300, 24}};
    tr_cuda *cuda = open_with(false);
    const tr_control control = {.in = {.ordinal = UINT64_C(0x123456789a)}};
    tr_control *device = b->memory->alloc(cuda, TR_MEM_OTHER, sizeof control);
    const uint64_t key = tr_philox_key(77, TR_RNG_DROPOUT, 5);
    assert_ok(b->memory->upload(cuda, device, &control, sizeof control));
    for (size_t t = 0; t < TR_COUNT(types); t++)
        for (size_t k = 0; k < TR_COUNT(sizes); k++)
            for (int how = 0; how < 4; how++) {
                const size_t n = sizes[k].samples * sizes[k].elements;
                const float p = how & 1 ? 0.25f : 0.7f;
                array x = array_of(cuda, types[t], n, how & 2 ? 1 : 0, 1, 1, 2), y = array_like(&x);
                double *want = malloc((n + 1) * sizeof *want);
                for (size_t i = 0; i < n; i++) {
                    const size_t s = i / sizes[k].elements, e = i % sizes[k].elements;
                    const tr_philox r =
                        tr_philox_block(key, control.in.ordinal + s, (uint32_t)(e / 4));
                    const float v = (float)x.v[i] * (1 / (1 - p));
                    want[i] = rounded(types[t], tr_uniform(r.v[e % 4]) >= p ? v : 0);
                }
                const tr_cuda_dropout_args a = {.x = x.at,
                                                .y = y.at,
                                                .samples = sizes[k].samples,
                                                .elements = sizes[k].elements,
                                                .key = key,
                                                .control = device,
                                                .p = p,
                                                .scale = 1 / (1 - p)};
                assert_ok(tr_cuda_dropout_run(types[t], &a, cuda->stream));
                receive(&y);
                for (size_t i = 0; i < n; i++) assert_true(y.v[i] == want[i]);
                free(want);
                drop(&x);
                drop(&y);
            }
    b->memory->free(cuda, device);
    b->close(cuda);
}

/* ---- Moves ----------------------------------------------------------------------------------- */

static void test_transpose(void **state)
{
    (void)state;
    static const size_t sizes[][3] = {{0, 4, 4},   {3, 1, 9},   {3, 9, 1},
                                      {2, 3, 50},  {2, 50, 3},  {2, 16, 16},
                                      {3, 49, 65}, {1, 64, 64}, {2, 33, 130}};
    tr_cuda *cuda = open_with(false);
    for (size_t t = 0; t < 2; t++)
        for (size_t k = 0; k < TR_COUNT(sizes); k++) {
            const size_t S = sizes[k][0], R = sizes[k][1], C = sizes[k][2], n = S * R * C;
            array x = array_of(cuda, types[t], n, k % 2, 1, -1, 1), y = array_like(&x);
            assert_ok(
                tr_cuda_transpose_run(tr_dtype_size(types[t]), x.at, y.at, S, R, C, cuda->stream));
            receive(&y);
            for (size_t s = 0; s < S; s++)
                for (size_t r = 0; r < R; r++)
                    for (size_t c = 0; c < C; c++)
                        assert_true(y.v[(s * C + c) * R + r] == x.v[(s * R + r) * C + c]);
            drop(&x);
            drop(&y);
        }
    b->close(cuda);
}

static void test_concat(void **state)
{
    (void)state;
    static const struct {
        size_t rows, skew;
        int count;
        size_t width[TR_MAX_IN];
    } cases[] = {{0, 0, 2, {8, 8}},    {5, 0, 2, {8, 16}},  {7, 0, 3, {4, 8, 12}},
                 {9, 0, 3, {1, 5, 2}}, {300, 1, 2, {8, 8}}, {3, 0, 8, {8, 1, 2, 3, 4, 5, 6, 7}},
                 {11, 0, 2, {2, 6}},   {1, 0, 1, {5}}};
    tr_cuda *cuda = open_with(false);
    for (size_t t = 0; t < 2; t++)
        for (size_t k = 0; k < TR_COUNT(cases); k++) {
            const size_t rows = cases[k].rows, size = tr_dtype_size(types[t]);
            const int count = cases[k].count;
            array part[TR_MAX_IN], back[TR_MAX_IN];
            void *at[TR_MAX_IN], *to[TR_MAX_IN];
            size_t nbytes[TR_MAX_IN], width = 0, begin = 0;
            for (int j = 0; j < count; j++) {
                part[j] = array_of(cuda, types[t], rows * cases[k].width[j], cases[k].skew,
                                   (uint32_t)j, -1, 1);
                back[j] = array_like(&part[j]);
                at[j] = part[j].at;
                to[j] = j == 1 ? NULL : back[j].at; /* a gradient that nobody wants */
                nbytes[j] = cases[k].width[j] * size;
                width += cases[k].width[j];
            }
            array whole = array_of(cuda, types[t], rows * width, cases[k].skew, 9, 5, 6);
            assert_ok(tr_cuda_concat_run(false, whole.at, at, nbytes, count, rows, cuda->stream));
            assert_ok(tr_cuda_concat_run(true, whole.at, to, nbytes, count, rows, cuda->stream));
            receive(&whole);
            for (int j = 0; j < count; j++) {
                const size_t n = cases[k].width[j];
                for (size_t i = 0; i < rows * n; i++)
                    assert_true(whole.v[i / n * width + begin + i % n] == part[j].v[i]);
                begin += n;
                if (to[j]) receive(&back[j]);
                if (to[j]) assert_memory_equal(back[j].v, part[j].v, rows * n * sizeof *part[j].v);
                drop(&part[j]);
                drop(&back[j]);
            }
            drop(&whole);
        }
    b->close(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations), cmocka_unit_test(test_add),
        cmocka_unit_test(test_dropout),     cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_concat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
