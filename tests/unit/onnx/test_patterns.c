/* links: trireme_cpu trireme_runtime */
/* What is read back by patterns: what looks alike is no layer, values are found again as closely as
 * they are written. */
#include "runtime/graph/ops.h"
#include "tests/unit/onnx/back.h"

#include <stdlib.h>

/* A query that sees the keys that are not before it is none of ours, as many keys as there are. */
static void test_anti_causal(void **state)
{
    (void)state;
    static const char keys[] = "attention1/columns", queries[] = "attention1/column";
    unsigned char from[64], to[64];
    const size_t a = strlen(keys), b = strlen(queries), size = a + b + 4;
    size_t n, found = 0;
    write_case(WORDS("    - linear: {out: 24}\n    - attention: {heads: 2, causal: true}\n"),
               &(tr_onnx_options){.opset = 17});
    ok(try_read());
    unsigned char *v = whole(&n);
    snprintf((char *)from, sizeof from, "\n%c%s\n%c%s", (int)a, keys, (int)b, queries);
    snprintf((char *)to, sizeof to, "\n%c%s\n%c%s", (int)b, queries, (int)a, keys);
    for (size_t i = 0; i + size <= n; i++)
        if (memcmp(v + i, from, size) == 0) memcpy(v + i, to, size), found++;
    assert_int_equal(found, 1);
    put(v, n);
    assert_int_equal(try_read(), TR_UNSUPPORTED);
    free(v);
}

/* A large base comes back as close as a table says it: an integer where that makes the table. */
static void test_bases(void **state)
{
    (void)state;
    static const char *const bases[] = {"82684.36", "82684", "10000.04", "1.5", "500000"};
    for (size_t i = 0; i < TR_COUNT(bases); i++) {
        char model[256], want[32];
        snprintf(model, sizeof model,
                 "  input: [600, 6]\n  layers:\n    - linear: {out: 16}\n"
                 "    - rotary: {heads: 1, base: %s}\n  loss: mse\n",
                 bases[i]);
        const onnx_case c = {"", model};
        tr_network *n = net_of(&c, 1), *back = read_back(&(tr_onnx_options){.opset = 17}, n, NULL);
        same_outputs(bases[i], n, back, 1e-4);
        const tr_rotary_attrs *a = back->model->layers[back->model->nlayers - 1].attrs;
        snprintf(want, sizeof want, "%s", bases[i]);
        assert_true(fabs(a->base - atof(want)) <= 1e-6 * a->base);
        assert_true(strchr(want, '.') || a->base == atof(want));
        tr_network_close(back);
        tr_network_close(n);
    }
}

static size_t size_written(const tr_network *n, const tr_onnx_options *o)
{
    size_t size;
    ok(tr_onnx_write(path, n, o));
    free(whole(&size));
    return size;
}

/* The matrices of sketched layers are weights as any others: half as large in float16, and
 * close. */
static void test_sketched_float16(void **state)
{
    (void)state;
    static const char *const models[] = {
        FEATURES("    - sklinear: {out: 99, terms: 2, rank: 20}\n"),
        IMAGE("    - skconv2d: {out: 90, kernel: 3, terms: 2, rank: 30}\n")};
    for (size_t i = 0; i < TR_COUNT(models); i++) {
        const onnx_case c = {"", models[i]};
        const tr_onnx_options whole_ones = {.opset = 17}, halves = {.opset = 17, .weights = TR_F16};
        tr_network *n = net_of(&c, 1);
        const size_t before = size_written(n, &whole_ones), after = size_written(n, &halves);
        if ((double)after >= 0.6 * (double)before) print_message("%zu, was %zu\n", after, before);
        assert_true((double)after < 0.6 * (double)before);
        tr_network *back = read_back(&halves, n, NULL);
        same_outputs(models[i], n, back, 1e-2);
        tr_network_close(back);
        tr_network_close(n);
    }
}

static size_t counted(const tr_onnx_found *f, const char *layer)
{
    for (size_t i = 0; i < f->ntogether; i++)
        if (strcmp(f->together[i].layer, layer) == 0) return f->together[i].count;
    return 0;
}

/* Layers of several nodes are counted by type; an operator of its own is none of them. */
static void test_counted(void **state)
{
    (void)state;
    static const onnx_case c = {
        "", WORDS("    - linear: {out: 16, name: h}\n    - layernorm\n    - linear: {out: 48}\n"
                  "    - attention: {heads: 2, causal: true}\n    - add: {from: [h, attention1]}\n"
                  "    - layernorm\n    - linear: {out: 32}\n    - gelu\n    - rotary: {heads: 2}\n"
                  "    - gelu\n    - silu\n    - linear: {out: 3, bias: false}\n")};
    static const struct {
        const char *layer;
        size_t at_13, at_20;
    } want[] = {{"linear", 3, 3}, {"layernorm", 2, 0}, {"attention", 1, 1}, {"gelu", 2, 0},
                {"rotary", 1, 1}, {"silu", 1, 1},      {"add", 0, 0},       {"reshape", 0, 0}};
    tr_network *n = net_of(&c, 1);
    for (int64_t opset = 13; opset <= 20; opset += 7) {
        tr_onnx_found found = {0};
        size_t all = 0, met = 0;
        tr_network_close(read_back(&(tr_onnx_options){.opset = opset}, n, &found));
        for (size_t i = 0; i < TR_COUNT(want); i++) {
            const size_t count = opset == 13 ? want[i].at_13 : want[i].at_20;
            if (counted(&found, want[i].layer) != count)
                fail_msg("%s at opset %d: %zu", want[i].layer, (int)opset,
                         counted(&found, want[i].layer));
            all += count;
        }
        for (size_t i = 0; i < found.ntogether; i++) met += found.together[i].count;
        assert_int_equal(met, all);
        assert_true(found.nodes > 30 && found.constants < found.nodes);
        tr_onnx_found_free(&found);
    }
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_anti_causal),
                                       cmocka_unit_test(test_bases), cmocka_unit_test(test_counted),
                                       cmocka_unit_test(test_sketched_float16)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
