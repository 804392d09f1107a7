/* The pass `row`: of what computes rows apart only the row is left that is read; what mixes rows,
 * or is read otherwise, stays. */
#include "tests/unit/graph/models.h"

#define TOKEN "  input: [3, 4]\n  layers:\n    - class_token: {name: t}\n"
#define ROW(at)                                                                                    \
    "    - select: {index: " #at ", name: s}\n    - linear: {out: 3, name: z}\n  loss: mse\n"

static const tr_graph_options evaluate = {.batch = 2, .passes = TR_PASS_IS(TR_PASS_ROW)};

/* Both branches of a residual, down to what both read. */
static void test_residual(void **state)
{
    (void)state;
    test_graph_is(TOKEN "    - layernorm: {name: n}\n    - linear: {out: 8, name: up}\n"
                        "    - gelu: {name: g}\n    - linear: {out: 4, name: down}\n"
                        "    - add: {from: [down, t], name: a}\n" ROW(1),
                  &evaluate,
                  "class_token input t.weight -> t(2,4,4)\n"
                  "select t - -> t.row(2,4)\n"
                  "layernorm t.row n.weight n.bias -> n.row(2,4) n.stats.row(2,2)\n"
                  "linear n.row up.weight up.bias -> up.row(2,8)\n"
                  "gelu up.row -> g.row(2,8)\n"
                  "linear g.row down.weight down.bias -> down.row(2,4)\n"
                  "add down.row t.row -> s(2,4)\n"
                  "linear s z.weight z.bias -> z(2,3)\n"
                  "mse z target -> -\n");
}

/* Gradients are of that row; what is given has it, too. */
static void test_gradient(void **state)
{
    (void)state;
    tr_graph_options o = evaluate;
    o.mode = TR_MODE_TRAIN;
    test_graph_is("  input: [3, 4]\n  layers:\n    - linear: {out: 4, name: l}\n" ROW(-1), &o,
                  "select input - -> input.row(2,4)!\n"
                  "linear input.row l.weight l.bias -> s(2,4)!\n"
                  "linear s z.weight z.bias -> z(2,3)\n"
                  "mse z target -> d.z.1(2,3)\n"
                  "linear.grad_weight s d.z.1 -> d.z.weight(3,4) d.z.bias(3)\n"
                  "linear.grad_input d.z.1 z.weight -> d.s.1(2,4)\n"
                  "linear.grad_weight input.row d.s.1 -> d.l.weight(4,4) d.l.bias(4) bucket 0\n");
}

/* Each sample has a row of its own; a row's place counts; another reader wants all rows; other rows
 * are wanted. */
static void test_stays(void **state)
{
    (void)state;
    test_graph_is("  inputs: {x: [3, 4], n: [1]}\n  layers:\n"
                  "    - linear: {out: 4, from: x, name: l}\n"
                  "    - select: {index: -1, from: [l, n], name: s}\n"
                  "    - linear: {out: 3, name: z}\n  loss: mse\n",
                  &evaluate,
                  "linear x l.weight l.bias -> l(2,3,4)\n"
                  "select l n -> s(2,4)\n"
                  "linear s z.weight z.bias -> z(2,3)\n"
                  "mse z target -> -\n");
    test_graph_is(TOKEN "    - positions: {name: p}\n" ROW(0), &evaluate,
                  "class_token input t.weight -> t(2,4,4)\n"
                  "positions t p.weight -> p(2,4,4)\n"
                  "select p - -> s(2,4)\n"
                  "linear s z.weight z.bias -> z(2,3)\n"
                  "mse z target -> -\n");
    test_graph_is(TOKEN "    - linear: {out: 4, name: l}\n    - select: {index: 0, name: s}\n"
                        "    - flatten: {from: l, name: f}\n    - concat: {from: [s, f], name: c}\n"
                        "    - linear: {out: 3, name: z}\n  loss: mse\n",
                  &evaluate,
                  "class_token input t.weight -> t(2,4,4)\n"
                  "linear t l.weight l.bias -> l(2,4,4)\n"
                  "select l - -> s(2,4)\n"
                  "flatten l -> f(2,16)\n"
                  "concat s f -> c(2,20)\n"
                  "linear c z.weight z.bias -> z(2,3)\n"
                  "mse z target -> -\n");
    test_graph_is(TOKEN "    - linear: {out: 4, name: l}\n    - select: {index: 0, name: s}\n"
                        "    - select: {index: 1, from: l, name: u}\n"
                        "    - select: {index: 0, from: l, name: v}\n"
                        "    - concat: {from: [s, u, v], name: c}\n"
                        "    - linear: {out: 3, name: z}\n  loss: mse\n",
                  &evaluate,
                  "class_token input t.weight -> t(2,4,4)\n"
                  "linear t l.weight l.bias -> l(2,4,4)\n"
                  "select l - -> s(2,4)\n"
                  "select l - -> u(2,4)\n"
                  "select l - -> v(2,4)\n"
                  "concat s u v -> c(2,12)\n"
                  "linear c z.weight z.bias -> z(2,3)\n"
                  "mse z target -> -\n");
}

/* What the caller asks for is there, whole. */
static void test_wanted(void **state)
{
    (void)state;
    const char *const wanted[] = {"l", "z"};
    tr_graph_options o = evaluate;
    o.mode = TR_MODE_INFER;
    o.outputs = wanted;
    o.noutputs = 2;
    test_graph_is(TOKEN "    - linear: {out: 4, name: l}\n    - relu: {name: r}\n" ROW(2), &o,
                  "class_token input t.weight -> t(2,4,4)\n"
                  "linear t l.weight l.bias -> l(2,4,4)\n"
                  "select l - -> l.row(2,4)\n"
                  "relu l.row -> s(2,4)\n"
                  "linear s z.weight z.bias -> z(2,3)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residual),
        cmocka_unit_test(test_gradient),
        cmocka_unit_test(test_stays),
        cmocka_unit_test(test_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
