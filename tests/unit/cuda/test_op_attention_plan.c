/* links: trireme_cpu trireme_plan
 * Attention by plans of cuDNN's against plain C in double: heads of several sizes, rows that fill
 * no tile, causal or not, packed or apart, more keys than queries and fewer, heads that share keys;
 * and what no plan takes. */
#include "tests/unit/cuda/mirror.h"
#include "tests/unit/cpu/attention_reference.h"

#include "kernels/cuda/dnn/dnn.h"

static const shape shapes[] = {
    {"whole tiles", 2, 3, 3, 128, 128, 64, 0, true, false, true, false, 0, 0, true},
    {"causal, odd", 2, 2, 2, 201, 201, 64, 0, true, false, true, false, 0, 0, true},
    {"causal, apart", 1, 2, 2, 150, 150, 64, 0, true, false, false, false, 0, 0, true},
    {"all, 32 wide", 2, 2, 2, 127, 127, 32, 0, false, false, true, false, 0, 0, true},
    {"all, 128 wide", 1, 2, 2, 130, 130, 128, 0, false, false, true, false, 0, 0, true},
    {"causal, 128 wide", 1, 2, 2, 67, 67, 128, 0, true, false, true, false, 0, 0, true},
    {"causal, 40 wide", 1, 2, 2, 100, 100, 40, 0, true, false, true, false, 0, 0, true},
    {"across, more keys", 2, 2, 2, 65, 263, 64, 0, false, false, false, false, 0, 0, true},
    {"across, fewer keys, scale", 1, 2, 2, 190, 64, 64, 0, false, false, false, false, 0, 0.3,
     true},
    {"causal, more keys", 1, 2, 2, 70, 140, 64, 0, true, false, false, false, 0, 0, true},
    {"causal, fewer keys", 1, 2, 2, 140, 70, 64, 0, true, false, false, false, 0, 0, true},
    {"grouped", 2, 6, 2, 130, 130, 64, 0, true, false, true, false, 0, 0, true},
    {"one of keys, apart", 1, 4, 1, 96, 100, 64, 0, false, false, false, false, 0, 0, true},
};

static tr_cuda *context(const trial *t)
{
    return ((const mirror_kernel *)t->h.kernel)->ctx;
}

static bool by_plan(const trial *t)
{
    return strncmp(t->h.kernel->impl, "cuDNN engine", 12) == 0;
}

static void expect_plan(const trial *t, const char *pass, tr_precision p)
{
    if (by_plan(t)) return;
    fail_msg("%s, %s, precision %d: %s: cuDNN says %s; last error: %s", t->s->what, pass, (int)p,
             t->h.kernel->impl, tr_dnn_refusal(context(t)->dnn), tr_last_error()->text);
}

static void check(const shape *s, tr_precision p)
{
    trial forward, backward;
    run_forward(&forward, s, p, 0, 1, false);
    run_backward(&backward, &forward, p, 0, 1, false);
    print_message("%s, precision %d: %s, %s\n", s->what, (int)p, forward.h.kernel->impl,
                  backward.h.kernel->impl);
    expect_plan(&forward, "forward", p);
    expect_plan(&backward, "backward", p);
    reference(&backward);
    compare_both(&forward, &backward, p);
    close_trial(&forward);
    close_trial(&backward);
}

static void by_plans(void **state)
{
    (void)state;
    mirror_options.deterministic = false;
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (tr_precision p = TR_PRECISION_BF16; p <= TR_PRECISION_FP16; p++) check(&shapes[i], p);
}

/* In evaluation no lse is wanted: y is the same. */
static void without_lse(void **state)
{
    (void)state;
    trial with, without = {.s = &shapes[1]};
    mirror_options.deterministic = false;
    run_forward(&with, &shapes[1], TR_PRECISION_BF16, 0, 1, false);
    without.h = h_open("attention", TR_PRECISION_BF16, false);
    open_inputs(&without);
    without.y = h_out(&without.h, TR_BF16, 3, with.h.tensors[with.y].dims);
    h_absent_out(&without.h);
    h_prepare(&without.h, &without.a, TR_ACT_NONE);
    h_run(&without.h, false);
    expect_plan(&without, "evaluation", TR_PRECISION_BF16);
    reference(&with);
    compare(&without, &with, Y, "y", TR_PRECISION_BF16);
    close_trial(&with);
    close_trial(&without);
}

/* With `deterministic`: the same bits again, forward by a plan, backward by our own kernels. */
static void deterministic(void **state)
{
    (void)state;
    trial forward, one, two;
    mirror_options.deterministic = true;
    for (size_t i = 0; i < TR_COUNT(shapes); i++) {
        run_forward(&forward, &shapes[i], TR_PRECISION_BF16, 0, 1, false);
        run_backward(&one, &forward, TR_PRECISION_BF16, 0, 1, false);
        run_backward(&two, &forward, TR_PRECISION_BF16, 0, 1, false);
        print_message("%s, deterministic: %s, %s\n", shapes[i].what, forward.h.kernel->impl,
                      one.h.kernel->impl);
        assert_true(by_plan(&forward) && !by_plan(&one));
        reference(&one);
        compare_gradients(&one, TR_PRECISION_BF16);
        for (int o = 0; o < one.h.op.nout; o++)
            assert_memory_equal(one.h.data[one.h.op.out[o]], two.h.data[two.h.op.out[o]],
                                one.h.tensors[one.h.op.out[o]].nbytes);
        close_trial(&forward);
        close_trial(&one);
        close_trial(&two);
    }
}

/* Forward by a plan, backward by our own kernels, and the other way round. */
static void either_way_there_and_back(void **state)
{
    (void)state;
    const shape *s = &shapes[1];
    const size_t room = mirror_options.workspace;
    mirror_options.deterministic = false;
    for (int own = 0; own < 2; own++) {
        trial forward, backward;
        mirror_options.workspace = own ? 0 : room;
        run_forward(&forward, s, TR_PRECISION_BF16, 0, 1, false);
        mirror_options.workspace = own ? room : 0;
        run_backward(&backward, &forward, TR_PRECISION_BF16, 0, 1, false);
        assert_int_equal(by_plan(&forward), !own);
        assert_int_equal(by_plan(&backward), own);
        reference(&backward);
        compare_gradients(&backward, TR_PRECISION_BF16);
        close_trial(&forward);
        close_trial(&backward);
    }
    mirror_options.workspace = room;
}

static void what_no_plan_takes(void **state)
{
    (void)state;
    static const shape others[] = {
        {"few rows", 1, 2, 2, 20, 20, 64, 0, true, false, true, false, 0, 0, true},
        {"lengths", 2, 2, 2, 70, 70, 64, 0, true, false, true, true, 0, 0, true},
        {"window", 1, 2, 2, 70, 70, 64, 9, true, false, true, false, 0, 0, true},
        {"alibi", 1, 2, 2, 70, 70, 64, 0, true, true, true, false, 0, 0, true},
        {"dropout", 1, 2, 2, 70, 70, 64, 0, true, false, true, false, 0.1, 0, true},
        {"33 wide", 1, 2, 2, 70, 70, 33, 0, true, false, true, false, 0, 0, true},
        {"136 wide", 1, 2, 2, 70, 70, 136, 0, true, false, true, false, 0, 0, true}};
    for (size_t i = 0; i < TR_COUNT(others); i++)
        for (int backward = 0; backward < 2; backward++) {
            trial t;
            (backward ? prepare_backward : prepare_forward)(&t, &others[i], TR_PRECISION_BF16, 0, 1,
                                                            false);
            assert_false(by_plan(&t));
            close_trial(&t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_plans), cmocka_unit_test(without_lse),
                                       cmocka_unit_test(either_way_there_and_back),
                                       cmocka_unit_test(deterministic),
                                       cmocka_unit_test(what_no_plan_takes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
