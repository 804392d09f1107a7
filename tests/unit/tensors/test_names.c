/* Maps of names in both directions: what an export by a map writes is what init_from by the same
 * map takes, and what has no one inverse is refused. */
#include "optimize/tensors/names.h"
#include "tensors.h"

static const onnx_case pair = {
    "p", FEATURES("    - linear: {out: 4, name: a.up}\n    - linear: {out: 3, name: a.down}\n")};

static const char *in_file(const char *const *rules, const char *row, char out[TR_ARRAY_NAME])
{
    tr_rename all[8];
    const tr_renames names = names_of(rules, all);
    ok(tr_name_in_file(&names, row, out));
    return out;
}

static void refused(const char *const *rules, const char *row, const char *said)
{
    char out[TR_ARRAY_NAME];
    tr_rename all[8];
    const tr_renames names = names_of(rules, all);
    assert_int_equal(tr_name_in_file(&names, row, out), TR_CONFIG);
    if (!strstr(tr_last_error()->text, said)) fail_msg("%s", tr_last_error()->text);
}

static void test_inverse(void **state)
{
    (void)state;
    static const struct {
        const char *rules[7], *row, *name;
    } good[] = {
        {{NULL}, "a.weight", "a.weight"},
        {{"backbone.*", "*", "fc.*", "", NULL}, "a.weight", "backbone.a.weight"},
        {{"h.*.ln_*.*", "h.*.norm*.*", NULL}, "h.11.norm2.bias", "h.11.ln_2.bias"},
        {{"h.*.ln_*.*", "h.*.norm*.*", NULL}, "head.bias", "head.bias"},
        {{"lstm.*_l0", "lstm.l0.*", NULL}, "lstm.l0.weight_ih", "lstm.weight_ih_l0"},
        {{"cls_token", "cls.weight", NULL}, "cls.weight", "cls_token"},
        /* BERT: the second rule would take what the first does, too */
        {{"*.attention.dense.*", "*.proj.*", "*.dense.*", "*.down.*", NULL},
         "l.0.down.weight",
         "l.0.dense.weight"},
        {{"a.*", "b.*", "b.*", "a.*", NULL}, "a.weight", "b.weight"},
        {{"w.*", "w.*", NULL}, "w.weight", "w.weight"},
        {{"net.*", "*", "net.bn.*", "b.*", "net.*.*", "*.*", NULL}, "w.bias", "net.w.bias"},
        {{"net.bn.*", "b.*", "net.*", "*", NULL}, "b.bias", "net.bn.bias"},
    };
    static const struct {
        const char *rules[7], *row, *said;
    } bad[] = {
        {{"x.self_attn.*_proj.*", "x.*.*", "x.mlp.*_proj.*", "x.*.*", NULL},
         "x.q.weight",
         "k.map: x.q.weight may be x.self_attn.q_proj.weight or x.mlp.q_proj.weight"},
        {{"layer*.block.*", "l*.*", NULL},
         "l1.0.weight",
         "l1.0.weight may be layer1.block.0.weight or layer1.0.block.weight"},
        {{"*.gamma.*", "*.weight", NULL}, "n.weight", "does not say what n.weight was called"},
        {{"a.*", "b.*", NULL},
         "a.weight",
         "no name becomes a.weight: a.weight is read as b.weight"},
        {{"a.*", "", NULL}, "a.weight", "no name becomes a.weight: a.weight is left out"},
        {{"*.x.*", "*.y.*", "p.x.*", "p.z.*", NULL},
         "p.z.bias",
         "no name becomes p.z.bias: p.x.bias is read as p.y.bias"},
        {{"m n.*", "n.*", NULL}, "n.bias", "expected a name without spaces"},
        {{"\"*", "*", NULL}, "n.bias", "expected a name without spaces"},
        {{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
          "aaaa"
          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.*",
          "n.*", NULL},
         "n.bias",
         "makes a name of more than 127 bytes of n.bias"},
    };
    char out[TR_ARRAY_NAME];
    for (size_t i = 0; i < TR_COUNT(good); i++)
        assert_string_equal(in_file(good[i].rules, good[i].row, out), good[i].name);
    for (size_t i = 0; i < TR_COUNT(bad); i++) refused(bad[i].rules, bad[i].row, bad[i].said);
}

/* All kinds of files, written and taken by one map, with a matrix as (in, out) and a row of (1, 1,
 * n). */
static void test_round_trip(void **state)
{
    (void)state;
    tr_rename rules[] = {{"m.fc_*.weight", "a.*.weight"}, {"m.*.b", "a.*.bias"}},
              transposed[] = {{"*.fc_up.weight", NULL}}, ranks[] = {{"m.down.b", "3"}},
              square[] = {{"*.fc_*", NULL}}, nothing[] = {{"a.*", NULL}};
    tr_init_from o = {.strict = true,
                      .names = {.key = "k",
                                .nrules = 2,
                                .rules = rules,
                                .ntransposed = 1,
                                .transposed = transposed,
                                .nranks = 1,
                                .ranks = ranks}};
    tr_network *n = net_of(&pair, 3), *got = net_of(&pair, 4);
    tr_arrays *a = NULL;
    ok(tr_safetensors_write(path, n, &o.names, TR_F32, NULL));
    ok(tr_npz_write(zip, n, &o.names));
    ok(tr_hdf5_write(hdf5, n, &o.names));
    const char *const files[] = {path, zip, hdf5};
    for (size_t i = 0; i < TR_COUNT(files); i++) {
        memset(got->params, 0, got->model->flat_count * sizeof *got->params);
        o.file = (char *)files[i];
        ok(tr_arrays_open(files[i], NULL, &a));
        assert_string_equal(tr_arrays_at(a, 0)->name, "m.down.b");
        assert_int_equal(tr_arrays_at(a, 0)->ndim, 3);
        assert_int_equal(tr_arrays_at(a, 0)->dims[0] * tr_arrays_at(a, 0)->dims[1], 1);
        assert_string_equal(tr_arrays_at(a, 2)->name, "m.fc_up.weight");
        assert_int_equal(tr_arrays_at(a, 2)->dims[0], 6);
        assert_int_equal(tr_arrays_at(a, 2)->dims[1], 4);
        ok(tr_arrays_take(a, &o, got, NULL));
        same_values(n, got);
        tr_arrays_close(a);
    }
    o.names.transposed = nothing;
    assert_int_equal(tr_safetensors_write(path, n, &o.names, TR_F32, NULL), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "k.transpose: \"a.*\": no matrix of the model"));
    o.names.transposed = square;
    o.names.ranks = nothing;
    assert_int_equal(tr_npz_write(zip, n, &o.names), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "k.ndim: \"a.*\": no array of the model"));
    rules[1].from = "m/*.b";
    o.names.nranks = 0;
    ok(tr_npz_write(zip, n, &o.names));
    assert_int_equal(tr_hdf5_write(hdf5, n, &o.names), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "a name with a slash would be a group"));
    tr_network_close(got);
    tr_network_close(n);
}

/* A map that stands elsewhere than the other patterns is told under its own key, these under
 * theirs. */
static void test_keys(void **state)
{
    (void)state;
    tr_rename rules[] = {{"a.*", "b.*"}}, nothing[] = {{"x.*", NULL}};
    tr_renames names = {
        .key = "model.init_from", .map_key = "pipeline.1.export", .nrules = 1, .rules = rules};
    char out[TR_ARRAY_NAME];
    assert_int_equal(tr_name_in_file(&names, "a.weight", out), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, "pipeline.1.export.map: no name becomes a.weight: "
                                               "a.weight is read as b.weight");
    tr_network *n = net_of(&pair, 5);
    names.nrules = 0;
    names.ntransposed = 1;
    names.transposed = nothing;
    assert_int_equal(tr_tensors_check(n->model, &names, TR_TENSORS_NPZ), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text,
                           "model.init_from.transpose: \"x.*\": no matrix of the model"));
    names.ntransposed = 0;
    names.nranks = 1;
    names.ranks = nothing;
    assert_int_equal(tr_tensors_check(n->model, &names, TR_TENSORS_NPZ), TR_CONFIG);
    assert_non_null(
        strstr(tr_last_error()->text, "model.init_from.ndim: \"x.*\": no array of the model"));
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_inverse),
                                       cmocka_unit_test(test_round_trip),
                                       cmocka_unit_test(test_keys)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
