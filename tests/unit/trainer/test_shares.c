/* How a global batch is cut: micro-batches a step, and the plans a rank needs for them. */
#include "given.h"

#include "runtime/data/data.h"
#include "trainer/plan/shares.h"

static int micro_of(const char *train, int size)
{
    tr_config *c = given(GIVEN_MLP, train);
    int micro = tr_micro_batches(c, size);
    tr_config_close(c);
    return micro;
}

static void test_micro(void **state)
{
    (void)state; /* batch: 32 */
    static const struct {
        const char *train;
        int size, want;
    } table[] = {
        {"micro_batch: 32", 1, 1}, {"micro_batch: 8", 1, 4},  {"micro_batch: 8", 2, 2},
        {"micro_batch: 8", 3, 2}, /* the largest share is 11 */
        {"micro_batch: 8", 4, 1},  {"micro_batch: 1", 4, 8},  {"micro_batch: 30", 3, 1},
        {"micro_batch: 5", 1, 7},  {"micro_batch: 3", 40, 1}, /* more ranks than samples */
        {"log_every: 1", 1, 1},    {"log_every: 1", 4, 1},    /* auto: the whole share */
        {"accumulate: 5", 1, 5},   {"accumulate: 5", 4, 5},   {"accumulate: 5", 40, 5},
    };
    for (size_t i = 0; i < TR_COUNT(table); i++)
        assert_int_equal(micro_of(table[i].train, table[i].size), table[i].want);
}

/* linear 64 -> 65536, gelu, linear -> 3: at least the two wide activations of each sample,
 * float32 */
static void test_activation_bound(void **state)
{
    (void)state;
    tr_config *c = NULL;
    tr_model *m = NULL;
    size_t one = 0, many = 0;
    static const char text[] =
        "name: test\ndata: {train: {format: synthetic, samples: 100}}\n"
        "model:\n  input: [64]\n  layers:\n    - linear: {out: 65536}\n    - gelu\n"
        "    - linear: {out: 3}\n  loss: cross_entropy\n"
        "train: {batch: 2147483647, steps: 1}\n";
    assert_int_equal(tr_config_open("test.yaml", text, strlen(text), NULL, 0, NULL, &c), TR_OK);
    assert_int_equal(tr_model_open(c, 0, &m), TR_OK);
    assert_int_equal(tr_activation_bound(c, m, 1, &one), TR_OK);
    assert_true(one >= 2 * 65536 * 4 && one <= 5 * 65536 * 4);
    assert_int_equal(tr_activation_bound(c, m, 2147483647, &many), TR_OK);
    assert_true(many / 2147483647 >= 2 * 65536 * 4);
    tr_model_close(m);
    tr_config_close(c);
}

static bool has(const tr_plan_key *keys, size_t n, bool train, int64_t batch)
{
    for (size_t i = 0; i < n; i++)
        if ((keys[i].mode == TR_MODE_TRAIN) == train && keys[i].batch == batch) return true;
    return false;
}

static const tr_model whole; /* none shorter */

/* Whatever shares the loader deals out over an epoch, there is a plan for; and no plan twice. */
static void test_keys(void **state)
{
    (void)state;
    tr_config *c = given(GIVEN_MLP, "eval: {batch: 24}");
    for (int size = 1; size <= 40; size += size < 8 ? 1 : 8)
        for (int micro = 1; micro <= 5; micro += 2)
            for (int rank = 0; rank < size; rank++) {
                tr_plan_key keys[TR_PLAN_KEYS];
                size_t n = tr_plan_keys(c, &whole, 100, 50, micro, rank, size, keys);
                assert_true(n > 0 && n <= TR_PLAN_KEYS);
                for (uint64_t s = 0; s < tr_steps_per_epoch(100, 32, false); s++)
                    for (int j = 0; j < micro; j++) {
                        tr_range p = tr_share(100, 32, s, micro, j, rank, size);
                        assert_true(has(keys, n, true, (int64_t)(p.end - p.begin)));
                    }
                for (uint64_t s = 0; s < tr_steps_per_epoch(50, 24, false); s++) {
                    tr_range p = tr_share(50, 24, s, 1, 0, rank, size);
                    if (p.end > p.begin) /* an empty evaluation share runs nothing */
                        assert_true(has(keys, n, false, (int64_t)(p.end - p.begin)));
                }
                for (size_t i = 0; i < n; i++) {
                    assert_true(keys[i].mode == TR_MODE_TRAIN || keys[i].batch > 0);
                    assert_false(has(keys, i, keys[i].mode == TR_MODE_TRAIN, keys[i].batch));
                }
                n = tr_plan_keys(c, &whole, 100, 0, micro, rank, size, keys);
                for (size_t i = 0; i < n; i++) assert_int_equal(keys[i].mode, TR_MODE_TRAIN);
            }
    tr_config_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro),
        cmocka_unit_test(test_activation_bound),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
