/* Every op of the registry has a CPU kernel in every precision the CPU has, and is named by the
 * tests that hold it to account: its kernel's own (against a plain reference), the golden cases
 * from PyTorch for layers and losses, and, by the walk at the end of test_gradients.c, finite
 * differences. An op that is added without them fails here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/cpu.h"

#define MAX_TEXT ((size_t)1 << 20)

typedef struct {
    const char *op;
    const char *test;   /* tests/unit/cpu/test_TEST.c */
    const char *named;  /* what names it there; NULL: "OP" in quotes */
    const char *golden; /* what names it in tests/golden/cases.py; NULL: it comes with its layer */
    const char *why;    /* no golden case, because */
} entry;

/* clang-format off */
static const entry table[] = {
    {.op = "linear", .test = "linear", .golden = "(\"linear\""},
    {.op = "linear.grad_input", .test = "linear"},
    {.op = "linear.grad_weight", .test = "linear"},
    {.op = "conv2d", .test = "conv2d", .golden = "(\"conv2d\""},
    {.op = "conv2d.grad_input", .test = "conv2d"},
    {.op = "conv2d.grad_weight", .test = "conv2d"},
    {.op = "batchnorm", .test = "batchnorm", .golden = "(\"batchnorm\""},
    {.op = "batchnorm.stats", .test = "batchnorm", .named = "open_stats("},
    {.op = "batchnorm.merge", .test = "batchnorm_ranks"},
    {.op = "batchnorm.infer", .test = "batchnorm"},
    {.op = "batchnorm.grad_stats", .test = "batchnorm_grad"},
    {.op = "batchnorm.grad_merge", .test = "batchnorm_ranks"},
    {.op = "batchnorm.grad_input", .test = "batchnorm_grad"},
    {.op = "layernorm", .test = "layernorm", .golden = "(\"layernorm\""},
    {.op = "layernorm.grad", .test = "layernorm"},
    {.op = "relu", .test = "activation", .golden = "(\"relu\""},
    {.op = "gelu", .test = "activation", .golden = "(\"gelu\""},
    {.op = "silu", .test = "activation", .golden = "(\"silu\""},
    {.op = "sigmoid", .test = "activation", .golden = "(\"sigmoid\""},
    {.op = "tanh", .test = "activation", .golden = "(\"tanh\""},
    {.op = "relu.grad", .test = "activation"},
    {.op = "gelu.grad", .test = "activation"},
    {.op = "silu.grad", .test = "activation"},
    {.op = "sigmoid.grad", .test = "activation"},
    {.op = "tanh.grad", .test = "activation"},
    {.op = "softmax", .test = "softmax", .golden = "(\"softmax\""},
    {.op = "softmax.grad", .test = "softmax"},
    {.op = "maxpool2d", .test = "pool2d", .golden = "\"maxpool2d\""},
    {.op = "maxpool2d.grad", .test = "pool2d"},
    {.op = "avgpool2d", .test = "pool2d", .golden = "\"avgpool2d\""},
    {.op = "avgpool2d.grad", .test = "pool2d", .named = "%s.grad"},
    {.op = "global_avgpool", .test = "pool2d", .golden = "(\"global_avgpool\""},
    {.op = "global_avgpool.grad", .test = "pool2d", .named = "%s.grad"},
    {.op = "flatten", .test = "flatten", .golden = "(\"flatten\""},
    {.op = "flatten.grad", .test = "flatten"},
    {.op = "dropout", .test = "dropout", .why = "its mask is our own generator's"},
    {.op = "dropout.grad", .test = "dropout"},
    {.op = "embedding", .test = "embedding", .golden = "(\"embedding\""},
    {.op = "embedding.grad", .test = "embedding"},
    {.op = "add", .test = "add", .golden = "(\"add\""},
    {.op = "concat", .test = "concat", .golden = "(\"concat\""},
    {.op = "concat.grad", .test = "concat"},
    {.op = "cross_entropy", .test = "loss", .golden = "(\"cross_entropy\""},
    {.op = "mse", .test = "loss", .golden = "(\"mse\""},
    {.op = "bce", .test = "loss", .golden = "(\"bce\""},
};
/* clang-format on */

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s cannot be opened", path);
    char *text = calloc(MAX_TEXT, 1);
    assert_non_null(text);
    assert_true(fread(text, 1, MAX_TEXT - 1, f) < MAX_TEXT - 1);
    assert_int_equal(fclose(f), 0);
    return text;
}

static void must_contain(const char *path, const char *what, const char *op)
{
    char *text = read_text(path);
    const bool found = strstr(text, what) != NULL;
    free(text);
    if (!found) fail_msg("%s does not test %s: nothing there says %s", path, op, what);
}

static const entry *find(const char *op)
{
    for (size_t i = 0; i < TR_COUNT(table); i++)
        if (strcmp(table[i].op, op) == 0) return &table[i];
    return NULL;
}

/* A backward op belongs to the layer before the dot; so do parts of one. */
static bool is_part(const char *op)
{
    return strchr(op, '.') != NULL;
}

static void test_every_op(void **state)
{
    (void)state;
    for (size_t i = 0; i < tr_op_count(); i++) {
        const char *op = tr_op_def_name(tr_op_at(i));
        const entry *e = find(op);
        char path[512], quoted[128];
        if (!e) fail_msg("%s has no tests: write them, and name them in this file's table", op);
        for (size_t j = 0; j < i; j++)
            if (strcmp(tr_op_def_name(tr_op_at(j)), op) == 0) fail_msg("two ops are called %s", op);
        snprintf(path, sizeof path, "%s/tests/unit/cpu/test_%s.c", TR_SOURCE_DIR, e->test);
        snprintf(quoted, sizeof quoted, "\"%s\"", op);
        must_contain(path, e->named ? e->named : quoted, op);
        if (e->golden)
            must_contain(TR_SOURCE_DIR "/tests/golden/cases.py", e->golden, op);
        else if (!is_part(op) && !e->why)
            fail_msg("%s has neither a golden case nor a reason not to", op);
    }
}

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(TR_COUNT(table), tr_op_count()); /* nothing that was removed stays listed */
}

static void test_kernels(void **state)
{
    (void)state;
    const tr_backend_options o = {0};
    void *ctx = NULL;
    assert_int_equal(tr_cpu_backend.open(&o, &ctx), TR_OK);
    const char *no_bf16 = tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(0), TR_PRECISION_BF16);
    if (no_bf16) print_message("bf16 is skipped: %s\n", no_bf16);
    for (size_t i = 0; i < tr_op_count(); i++)
        for (int p = TR_PRECISION_FP32; p <= (no_bf16 ? TR_PRECISION_FP32 : TR_PRECISION_BF16);
             p++) {
            const char *why =
                tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(i), (tr_precision)p);
            if (why) fail_msg("%s: %s", tr_op_def_name(tr_op_at(i)), why);
        }
    assert_non_null(tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(0), TR_PRECISION_FP16));
    tr_cpu_backend.close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
