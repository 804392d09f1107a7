/* What another value of a key does to a training that goes on. */
#include "tests/unit/config/good.h"

/* A map's holds for what is below it and says nothing else. */
static void test_changes(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        tr_change change;
    } of[] = {{"name", TR_CHANGE_NOTHING},
              {"seed", TR_CHANGE_NUMBERS},
              {"train.checkpoint.keep", TR_CHANGE_NOTHING},
              {"train.optimizer.adamw.lr", TR_CHANGE_NUMBERS},
              {"data.eval.path", TR_CHANGE_EVALUATIONS},
              {"data.train.path", TR_CHANGE_NUMBERS},
              {"run.wire", TR_CHANGE_MACHINE},
              {"run.threads", TR_CHANGE_THREADS},
              {"run.profile.active", TR_CHANGE_NOTHING},
              {"model.init", TR_CHANGE_NOTHING},
              {"model.init_from.file", TR_CHANGE_START},
              {"model.layers.0.linear.out", TR_CHANGE_NUMBERS},
              {"pipeline.1.prune.amount", TR_CHANGE_NOTHING},
              {"nothing.there", TR_CHANGE_NUMBERS}};
    for (size_t i = 0; i < TR_COUNT(of); i++)
        if (tr_config_change(of[i].path) != of[i].change) fail_msg("%s", of[i].path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
