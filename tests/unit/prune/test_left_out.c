/* links: trireme_cpu trireme_plan */
/* What masks are not of: counts, and in words. */
#include "optimize/prune/prune.h"
#include "tests/unit/networks.h"

#define ROW(layers) "  input: [12]\n  layers: [" layers "]\n  loss: mse\n"

static void check_reach(const tr_network *n, const tr_mask_options *o, size_t taken, size_t all,
                        const char *left)
{
    char text[200];
    const tr_mask_reach reach = tr_mask_reaches(n->model, o, text, sizeof text);
    assert_string_equal(text, left);
    assert_int_equal(reach.taken, taken);
    assert_int_equal(reach.all, all);
}

/* How many weights masks are of, and which layers have others: embeddings and what is tied to them,
 * recurrent ones, sketches, those that `keep` names. Biases and norms are no weights. */
static void test_left_out(void **state)
{
    (void)state;
    static const char *const keep[] = {"fc"};
    const tr_mask_options all = {.amount = 0.5}, but = {.amount = 0.5, .keep = keep, .nkeep = 1};
    tr_network *n = network_of(
                   ROW("{linear: {out: 32}}, relu, {linear: {out: 32}}, relu, {linear: {out: 4}}"),
                   3),
               *a;
    check_reach(n, &all, 12 * 32 + 32 * 32 + 32 * 4, 12 * 32 + 32 * 32 + 32 * 4, "");
    tr_network_close(n);
    n = network_of("  input: [5]\n  layers: [{embedding: {num: 9, dim: 8, name: token}}, {lstm: "
                   "{hidden: 8, layers: 6, name: r}}, layernorm, {linear: {out: 8, name: fc}}, "
                   "{linear: {out: 9, weight_of: token, name: head}}]\n  loss: mse\n",
                   3);
    const size_t lstm = 6 * 2 * 32 * 8;
    static const char left[] =
        "embedding (token, tied to head), lstm_layer (r.l0, r.l1, r.l2, r.l3 and 2 more)";
    check_reach(n, &all, 64, 64 + 72 + lstm, left);
    char text[sizeof left];
    tr_mask_reaches(n->model, &all, text, sizeof text - 1); /* no room for the second */
    assert_string_equal(text, "embedding (token, tied to head)");
    check_reach(n, &but, 0, 64 + 72 + lstm,
                "embedding (token, tied to head), lstm_layer (r.l0, r.l1, r.l2, r.l3 and 2 more), "
                "`keep` (fc)");
    ok(tr_mask(n, &all, &a));
    const tr_param *fc = tr_network_row(a, "fc", "weight");
    size_t zeros = 0;
    for (size_t i = 0; i < fc->count; i++) zeros += a->params[fc->offset + i] == 0;
    assert_int_equal(zeros, 32);
    for (size_t r = 0; r < a->model->nparams; r++)
        assert_int_equal(a->model->params[r].masked, strcmp(a->model->params[r].layer, "fc") == 0 &&
                                                         a->model->params[r].ndim > 1);
    tr_network_close(a);
    tr_network_close(n);
    n = network_of(
        ROW("{sklinear: {out: 9, terms: 1, rank: 2, name: s}}, {linear: {out: 5, name: fc}}"), 3);
    check_reach(n, &all, 45, 45 + 2 * (12 + 9), "sklinear (s)");
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_out),
    };
    return cmocka_run_group_tests(tests, cpu_open, cpu_close);
}
