/* Lifetimes: aliases live as one, inputs from before the run, logits past its end. */
#include <stdarg.h>
#include <stddef.h>
#include "fake.h"

static void lifetimes_of_a_training_graph(void **state)
{
    (void)state;
    fake_model m;
    fake_graph f;
    fake_model_init(&m);
    fake_mlp(&f, &m, 4, true);
    tr_live live[FAKE_TENSORS];
    assert_int_equal(tr_liveness(&f.g, live), TR_OK);
    const struct {
        int id, first, last;
    } want[] = {
        {0, -1, 8}, /* x: through its view, the last op reads it */
        {1, -1, 4}, /* target */
        {5, 1, 7},  /* h: with the relu that overwrote it */
        {7, 3, 9},  /* logits: past the last op (nops = 9) */
        {8, 4, 6},  /* dy */
        {10, 6, 8}, /* dr, in place dh */
    };
    for (size_t i = 0; i < TR_COUNT(want); i++) {
        const tr_live *l = &live[want[i].id];
        assert_true(l->arena);
        assert_int_equal(l->first, want[i].first);
        assert_int_equal(l->last, want[i].last);
    }
    for (size_t t = 0; t < f.g.ntensors; t++) {
        const tr_role role = f.tensors[t].role;
        if (f.tensors[t].alias >= 0 || role == TR_ROLE_PARAM || role == TR_ROLE_GRAD)
            assert_false(live[t].arena);
    }
    assert_int_equal(live[5].nbytes, tr_align_up(4 * HIDDEN * sizeof(float), TR_ARENA_ALIGN));
}

static void a_group_is_as_large_as_its_largest_member(void **state)
{
    (void)state;
    fake_model m;
    fake_graph f;
    fake_model_init(&m);
    fake_start(&f, &m.m, 4, false);
    const int x = fake_tensor(&f, TR_ROLE_INPUT, 0, 4, 8, -1);
    const int y = fake_tensor(&f, TR_ROLE_ACTIVATION, 0, 4, 100, x);
    fake_op(&f, "relu", x, NONE, y);
    tr_live live[FAKE_TENSORS];
    assert_int_equal(tr_liveness(&f.g, live), TR_OK);
    assert_int_equal(live[x].nbytes, tr_align_up(1600, TR_ARENA_ALIGN));
}

static void reading_the_unwritten_is_a_bug(void **state)
{
    (void)state;
    fake_model m;
    fake_graph f;
    fake_model_init(&m);
    fake_start(&f, &m.m, 4, true);
    const int a = fake_tensor(&f, TR_ROLE_ACTIVATION, 0, 4, 8, -1);
    const int b = fake_tensor(&f, TR_ROLE_ACTIVATION, 0, 4, 8, -1);
    fake_op(&f, "relu", a, NONE, b);
    tr_live live[FAKE_TENSORS];
    assert_int_equal(tr_liveness(&f.g, live), TR_INTERNAL);
    assert_non_null(strstr(tr_last_error()->text, "\"t0\""));

    f.g.batch = 0; /* an empty share has nothing there to be read */
    assert_int_equal(tr_liveness(&f.g, live), TR_INTERNAL);
    for (int t = 0; t < 2; t++) f.tensors[t].count = f.tensors[t].nbytes = 0;
    assert_int_equal(tr_liveness(&f.g, live), TR_OK);
    assert_false(live[a].arena || live[b].arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lifetimes_of_a_training_graph),
        cmocka_unit_test(a_group_is_as_large_as_its_largest_member),
        cmocka_unit_test(reading_the_unwritten_is_a_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
