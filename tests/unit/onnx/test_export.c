/* links: trireme_cpu trireme_runtime */
/* What is exported, layer by layer, without a peer: every layer has its mapping. */
#include "optimize/onnx/onnx.h"
#include "runtime/graph/ops/op.h"
#include "tests/unit/onnx/cases.h"

/* A new layer without a mapping fails here. */
static void test_registry(void **state)
{
    (void)state;
    for (size_t i = 0; i < tr_op_count(); i++) {
        const tr_op_def *d = tr_op_at(i);
        if (!d->doc) continue;
        const char *why = tr_onnx_missing(d->name);
        if (why) print_message("%s: %s\n", d->name, why);
        assert_true(!why || strcmp(why, "there is no mapping of it") != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_registry)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
