/* links: trireme_cpu trireme_runtime */
/* What is exported, layer by layer, without a peer: every layer has its mapping and a case. */
#include "optimize/onnx/onnx.h"
#include "runtime/graph/ops/op.h"
#include "tests/unit/onnx/cases.h"

/* Marks what the cases of cases.h have: layers as they are written, `- NAME`, and those that they
 * become. */
static void mark_cases(bool *has)
{
    for (size_t k = 0; k < TR_COUNT(onnx_cases); k++) {
        tr_network *n = net_of(&onnx_cases[k], 1);
        for (size_t i = 0; i < tr_op_count(); i++) {
            const char *name = tr_op_at(i)->name, *at = onnx_cases[k].model;
            const size_t length = strlen(name);
            for (; (at = strstr(at, "- ")); at += 2)
                has[i] |= strncmp(at + 2, name, length) == 0 && strchr(":\n", at[2 + length]);
            for (size_t l = 0; l < n->model->nlayers; l++)
                has[i] |= n->model->layers[l].def == tr_op_at(i);
        }
        tr_network_close(n);
    }
}

/* A new layer without a mapping, or without a case that shows it, fails here. */
static void test_registry(void **state)
{
    (void)state;
    bool *has = calloc(tr_op_count(), sizeof *has);
    mark_cases(has);
    for (size_t i = 0; i < tr_op_count(); i++) {
        const tr_op_def *d = tr_op_at(i);
        if (!d->doc) continue;
        const char *why = tr_onnx_missing(d->name);
        if (why) print_message("%s: %s\n", d->name, why);
        assert_true(!why || strcmp(why, "there is no mapping of it") != 0);
        if (!why && !has[i]) fail_msg("%s: no case in cases.h", d->name);
    }
    free(has);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_registry)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
