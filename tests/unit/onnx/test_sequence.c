/* links: trireme_cpu trireme_runtime */
/* The dimension `sequence`: which models' files have it, that nothing in them says how many rows
 * the model has, that they are read back as that model; why others have none. */
#include "tests/unit/onnx/back.h"

#include <stdlib.h>

/* ---- A message's fields, by number ----------------------------------------------------------- */

typedef struct {
    const unsigned char *at, *end;
} bytes;

static uint64_t varint(bytes *b)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(b->at < b->end && shift < 64);
        v |= (uint64_t)(*b->at & 127) << shift;
        if (*b->at++ < 128) return v;
    }
}

/* The next field with this number, as bytes, or *v; false: there is no more. */
static bool next(bytes *b, uint64_t number, bytes *of, uint64_t *v)
{
    while (b->at < b->end) {
        const uint64_t key = varint(b);
        *of = (bytes){b->at, b->at};
        *v = 0;
        if ((key & 7) == 0) {
            *v = varint(b);
        } else {
            const uint64_t n = (key & 7) == 2 ? varint(b) : (key & 7) == 1 ? 8 : 4;
            assert_true(n <= (uint64_t)(b->end - b->at));
            *of = (bytes){b->at, b->at + n};
            b->at += n;
        }
        if (key >> 3 == number) return true;
    }
    return false;
}

static bytes field(bytes b, uint64_t number)
{
    bytes of;
    uint64_t v;
    assert_true(next(&b, number, &of, &v));
    return of;
}

static bool is(bytes b, const char *text)
{
    return (size_t)(b.end - b.at) == strlen(text) && memcmp(b.at, text, strlen(text)) == 0;
}

/* Dimension i of a ValueInfoProto: its dim_param; "": a number. */
static bytes param_of(bytes info, int i)
{
    bytes shape = field(field(field(info, 2), 1), 2), dim, of;
    uint64_t v;
    for (int k = 0; k <= i; k++) assert_true(next(&shape, 1, &dim, &v));
    return next(&dim, 2, &of, &v) ? of : (bytes){NULL, NULL};
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

/* Whether the initializer of that name, whole numbers of 64 bits, has this one. */
static bool has_number(bytes graph, bytes name, int64_t number)
{
    bytes t;
    uint64_t v;
    while (next(&graph, 5, &t, &v)) {
        const bytes of = field(t, 8);
        if (of.end - of.at != name.end - name.at ||
            memcmp(of.at, name.at, (size_t)(of.end - of.at)) != 0)
            continue;
        const bytes raw = field(t, 9);
        for (const unsigned char *p = raw.at; p + 8 <= raw.end; p += 8)
            if (memcmp(p, &number, 8) == 0) return true;
        return false;
    }
    fail_msg("no shape");
    return false;
}

/* Reshapes whose shape is a constant with this number. */
static int fixed_shapes(bytes graph, int64_t rows)
{
    bytes walk = graph, node, operand;
    uint64_t v;
    int n = 0;
    while (next(&walk, 1, &node, &v)) {
        if (!is(field(node, 4), "Reshape")) continue;
        assert_true(next(&node, 1, &operand, &v) && next(&node, 1, &operand, &v));
        n += has_number(graph, operand, rows);
    }
    return n;
}

/* A row in nine sizes of its own, so that a 23 in a file's shapes is the number of rows. */
static const struct {
    const char *name, *model;
    int rows_at; /* dimension of the output that is as long, the batch being the first; 0: none */
} dynamic[] = {
    {"gpt",
     "  input: [23]\n  layers:\n    - embedding: {num: 13, dim: 8, name: e}\n    - positions\n"
     "    - transformer: {layers: 2, heads: 2, causal: true}\n"
     "    - linear: {out: 13, bias: false, weight_of: e}\n  loss: mse\n",
     1},
    {"llama",
     "  input: [23]\n  layers:\n    - embedding: {num: 13, dim: 16, name: e}\n"
     "    - transformer: {layers: 2, heads: 4, kv_heads: 2, causal: true, norm_type: rmsnorm, "
     "activation: swiglu, position: rotary, bias: false}\n"
     "    - linear: {out: 13, bias: false}\n  loss: mse\n",
     1},
    {"bert",
     "  inputs: {x: [23], n: [1]}\n  layers:\n"
     "    - embedding: {num: 13, dim: 8, name: e, from: x}\n"
     "    - positions: {name: p, kind: sinusoidal}\n"
     "    - transformer: {layers: 2, heads: 2, causal: false, from: [p, n]}\n"
     "    - select: {index: 0}\n    - linear: {out: 3}\n  loss: mse\n",
     0},
    {"alibi",
     "  input: [23, 6]\n  layers:\n    - linear: {out: 24}\n"
     "    - attention: {heads: 4, kv_heads: 1, causal: true, window: 3, alibi: true}\n"
     "    - rotary: {heads: 2, dim: 4, style: interleaved}\n    - select: {index: -1}\n  loss: "
     "mse\n",
     0},
    {"lstm",
     "  inputs: {x: [23], n: [1]}\n  layers:\n"
     "    - embedding: {num: 11, dim: 6, name: e, from: x}\n"
     "    - lstm: {hidden: 7, layers: 2, bidirectional: true, from: [e, n]}\n  loss: mse\n",
     1},
    {"gru-last",
     "  inputs: {x: [23], n: [1]}\n  layers:\n"
     "    - embedding: {num: 11, dim: 6, name: e, from: x}\n"
     "    - gru: {hidden: 7, output: last, from: [e, n]}\n  loss: mse\n",
     0},
    {"gpt-last",
     "  inputs: {x: [23], n: [1]}\n  layers:\n"
     "    - embedding: {num: 13, dim: 8, name: e, from: x}\n    - positions\n"
     "    - transformer: {layers: 1, heads: 2, causal: true, name: t}\n"
     "    - select: {index: -1, from: [t, n]}\n    - linear: {out: 3}\n  loss: mse\n",
     0},
    {"bert-mean",
     "  inputs: {x: [23], n: [1]}\n  layers:\n"
     "    - embedding: {num: 13, dim: 8, name: e, from: x}\n    - positions: {name: p}\n"
     "    - transformer: {layers: 1, heads: 2, causal: false, from: [p, n], name: t}\n"
     "    - mean_rows: {from: [t, n]}\n    - linear: {out: 3}\n  loss: mse\n",
     0},
    {"mean",
     "  input: [23]\n  layers:\n    - embedding: {num: 13, dim: 8, name: e}\n"
     "    - transformer: {layers: 1, heads: 2, causal: true}\n    - mean_rows\n"
     "    - linear: {out: 3}\n  loss: mse\n",
     0},
    {"pooled",
     "  input: [23]\n  layers:\n    - embedding: {num: 13, dim: 8, name: e}\n    - positions\n"
     "    - transformer: {layers: 1, heads: 2, causal: false}\n"
     "    - permute: {dims: [2, 1]}\n    - global_avgpool\n    - flatten\n"
     "    - linear: {out: 3}\n  loss: mse\n",
     0},
    {"largest",
     "  input: [23, 6]\n  layers:\n    - linear: {out: 5}\n    - attention: {heads: 1, from: "
     "[linear1, linear1, linear1]}\n    - permute: {dims: [2, 1]}\n    - global_maxpool\n"
     "  loss: mse\n",
     0},
    {"columns",
     "  input: [23, 6]\n  layers:\n    - linear: {out: 5}\n    - attention: {heads: 1, from: "
     "[linear1, linear1, linear1]}\n    - permute: {dims: [2, 1]}\n  loss: mse\n",
     2},
};

static void check_file(const char *what, int rows_at, bool any)
{
    size_t n;
    unsigned char *v = whole(&n);
    const bytes graph = field((bytes){v, v + n}, 7);
    const bytes in = field(graph, 11), out = field(graph, 12);
    print_message("%s\n", what);
    assert_true(is(param_of(in, 0), "batch") && is(param_of(out, 0), "batch"));
    assert_int_equal(is(param_of(in, 1), "sequence"), any);
    if (rows_at > 0) assert_int_equal(is(param_of(out, rows_at), "sequence"), any);
    if (rows_at != 1) assert_false(is(param_of(out, 1), "sequence"));
    if (any)
        assert_int_equal(fixed_shapes(graph, 23), 0);
    else
        assert_true(fixed_shapes(graph, 23) > 0);
    free(v);
}

/* In every opset; as `sequence: fixed` says, the same as numbers. */
static void test_dynamic(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(dynamic); i++) {
        const onnx_case c = {dynamic[i].name, dynamic[i].model};
        tr_network *n = net_of(&c, i);
        for (int opset = TR_ONNX_OPSET_MIN; opset <= TR_ONNX_OPSET_MAX; opset++)
            for (int fixed = 0; fixed < 2; fixed++) {
                const tr_onnx_options o = {.opset = opset,
                                           .fixed_sequence = fixed,
                                           .weights = opset % 2 ? TR_F32 : TR_F16};
                tr_network *back = read_back(&o, n, NULL);
                check_file(c.name, dynamic[i].rows_at, !fixed);
                assert_int_equal(back->model->nlayers, n->model->nlayers);
                same_outputs(c.name, n, back, opset % 2 ? 1e-6 : 2e-2);
                tr_network_close(back);
            }
        tr_network_close(n);
    }
}

static const struct {
    const char *model, *type, *why; /* type NULL: no input is a sequence */
} fixed[] = {
    {WORDS("    - tanh\n    - flatten\n    - linear: {out: 3}\n"), "flatten", "one length"},
    {WORDS("    - class_token\n    - linear: {out: 4}\n"), "class_token", "one length"},
    {WORDS("    - select: {index: 2}\n"), "select", "first or last"},
    {WORDS("    - rmsnorm: {normalized_shape: [5, 6]}\n"), "rmsnorm", "all rows together"},
    {WORDS("    - tanh\n    - concat: {from: [embedding1, tanh1], axis: 1}\n"), "concat",
     "behind each other"},
    {SEQUENCE("    - conv1d: {out: 6, kernel: 3}\n"), "conv1d", "one length"},
    {WORDS("    - permute: {dims: [2, 1]}\n    - conv1d: {out: 2, kernel: 3}\n"), "conv1d",
     "one length"},
    {WORDS("    - permute: {dims: [2, 1]}\n    - linear: {out: 4}\n"), "linear", "one length"},
    {WORDS("    - permute: {dims: [2, 1], name: p}\n    - tanh: {name: t}\n"
           "    - add: {from: [p, t]}\n"),
     "tanh", "one length"},
    {WORDS("    - permute: {dims: [2, 1], name: p}\n    - add: {from: [p, p]}\n"), "add",
     "one length"},
    {WORDS("    - global_avgpool\n"), "global_avgpool", "one length"},
    {IMAGE("    - relu\n"), NULL, NULL},
    {FEATURES("    - relu\n"), NULL, NULL},
    {"  input: [3, 8, 12]\n  layers:\n    - patch_embedding: {size: [4, 3], dim: 6}\n"
     "    - class_token\n    - attention: {heads: 1}\n  loss: mse\n",
     NULL, NULL},
};

/* What needs one length is named, and its file has only the batch. */
static void test_fixed(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(fixed); i++) {
        const onnx_case c = {"", fixed[i].model};
        tr_network *n = net_of(&c, i);
        tr_onnx_sequence s;
        ok(tr_onnx_find_sequence(n->model, &s));
        assert_int_equal(s.rows > 0, fixed[i].type != NULL);
        assert_int_equal(s.layer != NULL, fixed[i].type != NULL);
        if (s.layer) {
            assert_string_equal(tr_op_def_name(s.layer->def), fixed[i].type);
            assert_non_null(strstr(s.why, fixed[i].why));
        }
        ok(tr_onnx_write(path, n, &(tr_onnx_options){.opset = 17}));
        size_t size;
        unsigned char *v = whole(&size);
        const bytes graph = field((bytes){v, v + size}, 7);
        assert_false(is(param_of(field(graph, 11), 1), "sequence"));
        free(v);
        tr_network_close(n);
    }
}

/* What a file says its model's rows are is a number; without it the dimension is anything. */
static void test_said(void **state)
{
    (void)state;
    static const char said[] = "\x0a\x10trireme.sequence\x12\x02";
    for (int i = 0; i < 3; i++) {
        static const char *const other[] = {"23", "x3", "-1"};
        write_case(dynamic[0].model, &(tr_onnx_options){.opset = 17});
        size_t n, found = 0;
        unsigned char *v = whole(&n);
        for (size_t k = 0; k + sizeof said + 1 <= n; k++)
            if (memcmp(v + k, said, sizeof said - 1) == 0)
                memcpy(v + k + sizeof said - 1, other[i], 2), found++;
        assert_int_equal(found, 1);
        put(v, n);
        free(v);
        assert_int_equal(try_read(), i ? TR_DATA : TR_OK);
        if (i) assert_non_null(strstr(tr_last_error()->text, "trireme.sequence is"));
    }
    write_case(dynamic[0].model, &(tr_onnx_options){.opset = 17});
    size_t n;
    unsigned char *v = whole(&n);
    for (size_t k = 0; k + 16 <= n; k++)
        if (memcmp(v + k, "trireme.sequence", 16) == 0) v[k] = 'T';
    put(v, n);
    free(v);
    assert_int_equal(try_read(), TR_UNSUPPORTED);
    assert_non_null(strstr(tr_last_error()->text, "is not a number"));
}

/* Of an encoder and a decoder, whose lengths meet as queries and keys alone: each has its own; they
 * are one where rows are added, and where one is the keys of the other's values. */
static const struct {
    const char *last, *of_y, *out;
} pairs[] = {
    {"    - attention: {heads: 2, from: [q, k, k]}\n", "sequence_y", "sequence_y"},
    {"    - attention: {heads: 2, causal: true, window: 4, alibi: true, from: [q, k, k]}\n",
     "sequence_y", "sequence_y"},
    {"    - attention: {heads: 2, from: [k, q, q]}\n", "sequence_y", "sequence"},
    {"    - attention: {heads: 2, from: [q, k, k], name: a}\n    - add: {from: [q, a]}\n",
     "sequence_y", "sequence_y"},
    {"    - attention: {heads: 2, from: [q, k, q]}\n", "sequence", "sequence"},
    {"    - attention: {heads: 2, from: [q, k, k], name: a}\n    - add: {from: [k, a]}\n",
     "sequence", "sequence"},
};

static void test_pairs(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(pairs); i++) {
        char *text =
            tr_sprintf("  inputs: {x: [23], y: [23], z: [9, 8]}\n  layers:\n"
                       "    - embedding: {num: 11, dim: 8, name: e, from: x}\n"
                       "    - positions: {name: k}\n"
                       "    - embedding: {num: 13, dim: 8, name: f, from: y}\n"
                       "    - positions: {kind: sinusoidal, name: p}\n"
                       "    - rotary: {heads: 2, name: q}\n%s"
                       "    - attention: {heads: 2, name: to_z, from: [%s, z, z]}\n"
                       "    - lstm: {hidden: 5}\n  loss: mse\n",
                       pairs[i].last, strstr(pairs[i].last, "add") ? "add1" : "attention1");
        const onnx_case c = {"pair", text};
        tr_network *n = net_of(&c, i);
        tr_network *back = read_back(&(tr_onnx_options){.opset = 17}, n, NULL);
        same_outputs(pairs[i].last, n, back, 1e-6);
        size_t size;
        unsigned char *v = whole(&size);
        bytes graph = field((bytes){v, v + size}, 7), walk = graph, in;
        uint64_t number;
        while (next(&walk, 11, &in, &number)) {
            const bytes name = field(in, 1), symbol = param_of(in, 1);
            if (is(name, "x")) assert_true(is(symbol, "sequence"));
            if (is(name, "y")) assert_true(is(symbol, pairs[i].of_y));
            if (is(name, "z")) assert_false(symbol.at);
        }
        assert_true(is(param_of(field(graph, 12), 1), pairs[i].out));
        assert_int_equal(fixed_shapes(graph, 23), 0);
        free(v);
        tr_network_close(back);
        tr_network_close(n);
        tr_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dynamic), cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_fixed), cmocka_unit_test(test_said)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
