/* Linear layers in bfloat16 by products of float32 (ops/linear_wide.c), of several blocks of rows
 * and tiles of the weight. */
#include "tests/unit/cpu/ways.h"

typedef struct {
    int64_t rows, in, out;
} shape;

/* A small integer of element i of what is called `which`. */
static double whole(uint32_t which, size_t i)
{
    return (double)(tr_philox_at(which, TR_RNG_TEST, 1, i, 0).v[0] % 5) - 2;
}

/* t[r][c] = u(r) v(c), a little more than bfloat16 has. */
static void put_outer(harness *h, int id, uint32_t u, uint32_t v)
{
    const tr_tensor *t = &h->tensors[id];
    const size_t width = (size_t)t->dims[1];
    const double more = t->dtype == TR_F32 ? 1 + 0x1p-12 : 1;
    for (size_t r = 0; r < (size_t)t->dims[0]; r++)
        for (size_t c = 0; c < width; c++)
            h_put(h, id, r * width + c, whole(u, r) * whole(v, c) * more);
}

static double dot_of(uint32_t u, uint32_t v, int64_t count)
{
    double sum = 0;
    for (size_t i = 0; i < (size_t)count; i++) sum += whole(u, i) * whole(v, i);
    return sum;
}

/* t[r][c] = factor * u(r) v(c), exactly but for the type's rounding. */
static void check_outer(const harness *h, int id, double factor, uint32_t u, uint32_t v)
{
    const tr_tensor *t = &h->tensors[id];
    const size_t width = (size_t)t->dims[1];
    for (size_t r = 0; r < (size_t)t->dims[0]; r++)
        for (size_t c = 0; c < width; c++) {
            const float exact = (float)(factor * whole(u, r) * whole(v, c));
            const double want = t->dtype == TR_BF16 ? tr_bf16_to_f32(tr_f32_to_bf16(exact)) : exact;
            const double got = h_get(h, id, r * width + c);
            if (got != want)
                fail_msg("row %zu, column %zu of %s: %.9g, expected %.9g", r, c, h->kernel->impl,
                         got, want);
        }
}

/* Products of matrices that are outer products are ones, whatever is multiplied when: a block, tile
 * or copy of either factor that is left from before shows. Weights change from run to run. */
static void check_blocks(shape s, int threads)
{
    enum { C = 1, B, A, E, OTHER }; /* of rows, inputs, outputs, outputs */
    const int64_t xd[] = {s.rows, s.in}, yd[] = {s.rows, s.out}, wd[] = {s.out, s.in};
    const tr_linear_attrs attrs = {.out = s.out};
    const uint32_t changed[] = {A, OTHER};

    harness h = open_way("linear", TR_PRECISION_BF16, true, threads);
    const int x = h_in(&h, TR_BF16, 2, xd), w = h_param(&h, 2, wd);
    h_absent_in(&h);
    const int y = h_out(&h, TR_BF16, 2, yd);
    put_outer(&h, x, C, E);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    for (size_t i = 0; i < TR_COUNT(changed); i++) {
        put_outer(&h, w, changed[i], B);
        h_run(&h, false);
        check_outer(&h, y, dot_of(E, B, s.in), C, changed[i]);
    }
    h_close(&h);

    h = open_way("linear.grad_input", TR_PRECISION_BF16, true, threads);
    const int dy = h_in(&h, TR_BF16, 2, yd), v = h_param(&h, 2, wd), dx = h_out(&h, TR_BF16, 2, xd);
    put_outer(&h, dy, C, E);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    for (size_t i = 0; i < TR_COUNT(changed); i++) {
        put_outer(&h, v, changed[i], B);
        h_run(&h, false);
        check_outer(&h, dx, dot_of(E, changed[i], s.out), C, B);
    }
    h_close(&h);

    h = open_way("linear.grad_weight", TR_PRECISION_BF16, true, threads);
    const int z = h_in(&h, TR_BF16, 2, xd), dz = h_in(&h, TR_BF16, 2, yd), dw = h_grad(&h, 2, wd);
    h_absent_out(&h);
    put_outer(&h, z, E, B);
    put_outer(&h, dz, C, A);
    h_prepare(&h, &attrs, TR_ACT_NONE);
    for (int i = 0; i < 2; i++) {
        h_run(&h, i > 0);
        check_outer(&h, dw, (i + 1) * dot_of(E, C, s.rows), A, B);
    }
    h_close(&h);
}

static void test_blocks(void **state)
{
    (void)state;
    harness h = h_open("linear", TR_PRECISION_BF16, true);
    const bool has = ((tr_cpu *)h.team)->bf16;
    h_close(&h);
    if (!has) {
        print_message("[  SKIPPED ] bf16: this CPU has no kernels for it\n");
        return;
    }
    own_products = false;
    check_blocks((shape){1040, 8200, 520}, 1);
    check_blocks((shape){1100, 7680, 700}, 2); /* with copies */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
