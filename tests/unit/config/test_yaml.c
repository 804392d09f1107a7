/* YAML to nodes: positions, anchors, merges; and hostile files, each with the place that is said.
 * The same files start the fuzzer (tests/fuzz/fuzz_config.c). */
#include "runtime/config/internal.h"
#include "tests/unit/config/good.h"

static tr_document parse(const char *text)
{
    tr_document doc;
    if (tr_document_parse("t", text, strlen(text), &doc) != TR_OK)
        fail_msg("%s", tr_last_error()->text);
    return doc;
}

static const char *text_at(const tr_node *n, const char *a, const char *b)
{
    n = tr_node_get(tr_node_get(n, a), b);
    assert_non_null(n);
    return n->text;
}

static void test_positions(void **state)
{
    (void)state;
    tr_document doc = parse("a: 1\nb:\n  - x\n  - {k: \"v\"}\n  -\n");
    const tr_node *b = tr_node_get(doc.root, "b");
    assert_int_equal(doc.root->kind, TR_NODE_MAP);
    assert_int_equal(doc.root->keys[1]->line, 2);
    assert_int_equal(doc.root->keys[1]->column, 1);
    assert_int_equal(b->kind, TR_NODE_LIST);
    assert_int_equal(b->count, 3);
    assert_int_equal(b->values[0]->line, 3);
    assert_int_equal(b->values[0]->column, 5);
    const tr_node *v = tr_node_get(b->values[1], "k");
    assert_int_equal(v->line, 4);
    assert_int_equal(v->column, 9);
    assert_true(v->quoted && !b->values[0]->quoted);
    assert_string_equal(b->values[2]->text, "");
    assert_string_equal(v->source, "t");
    assert_null(tr_node_get(doc.root, "c"));
    assert_null(tr_node_get(b, "k"));
    tr_document_close(&doc);
    /* columns count characters, lines any line end */
    doc = parse("\xef\xbb\xbf\"\xc3\xa9\xc3\xa9\": x\r\nb: y\r\n");
    assert_int_equal(doc.root->values[0]->column, 7);
    assert_int_equal(doc.root->values[1]->line, 2);
    assert_int_equal(doc.root->keys[0]->column, 1);
    tr_document_close(&doc);
}

static void test_anchors(void **state)
{
    (void)state;
    tr_document doc = parse("base: &b {x: 1, y: [1, 2]}\n"
                            "copy: *b\n"
                            "over: {y: 5, <<: *b, z: 3}\n"
                            "many: {<<: [{x: first}, *b, {w: 9}]}\n"
                            "quoted: {\"<<\": plain}\n"
                            "again: &b 7\n"
                            "last: *b\n");
    const tr_node *copy = tr_node_get(doc.root, "copy");
    assert_string_equal(text_at(doc.root, "copy", "x"), "1");
    assert_int_equal(copy->line, 1); /* where its text stands */
    assert_ptr_not_equal(copy, tr_node_get(doc.root, "base"));
    assert_string_equal(text_at(doc.root, "over", "y"), "5");
    assert_string_equal(text_at(doc.root, "over", "x"), "1");
    assert_string_equal(text_at(doc.root, "over", "z"), "3");
    assert_int_equal(tr_node_get(doc.root, "over")->count, 3);
    assert_string_equal(text_at(doc.root, "many", "x"), "first");
    assert_string_equal(text_at(doc.root, "many", "w"), "9");
    assert_int_equal(tr_node_get(tr_node_get(doc.root, "many"), "y")->count, 2);
    assert_string_equal(text_at(doc.root, "quoted", "<<"), "plain");
    assert_string_equal(tr_node_get(doc.root, "last")->text, "7");
    tr_document_close(&doc);
}

static void same(const tr_node *a, const tr_node *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->count, b->count);
    if (a->kind == TR_NODE_SCALAR) {
        assert_string_equal(a->text, b->text);
        assert_int_equal(a->quoted, b->quoted);
    }
    for (size_t i = 0; i < a->count; i++) {
        if (a->keys) assert_string_equal(a->keys[i]->text, b->keys[i]->text);
        same(a->values[i], b->values[i]);
    }
}

static void writes_back(const tr_node *root)
{
    tr_document again;
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    assert_int_equal(tr_node_write(root, to), TR_OK);
    fclose(to);
    if (tr_document_parse("written", text, n, &again) != TR_OK)
        fail_msg("%s\n%s", tr_last_error()->text, text);
    same(root, again.root);
    tr_document_close(&again);
    free(text);
}

typedef struct {
    const char *file, *expected; /* NULL: it is fine YAML */
} hostile;

static const hostile corpus[] = {
    {"small.yaml", NULL},
    {"digits.yaml", NULL},
    {"override.yaml", NULL},
    {"override_list.yaml", NULL},
    {"anchors.yaml", NULL},
    {"crlf.yaml", NULL},
    {"bom.yaml", NULL},
    {"block_text.yaml", NULL},
    {"odd_plain.yaml", NULL},
    {"laughs.yaml", "5:36: aliases expand to more than 100000 nodes"},
    {"merge_laughs.yaml", "7:20: aliases expand to more than 100000 nodes"},
    {"deep_flow.yaml", "1:68: nested more than 64 deep"},
    {"deep_block.yaml", "66:66: nested more than 64 deep"},
    {"self_alias.yaml", "1:11: alias \"x\" stands inside what it refers to"},
    {"unknown_alias.yaml", "1:4: alias \"nothing\" refers to no anchor above it"},
    {"duplicate.yaml", "5:3: key \"c\" stands twice; it is already at 3:3"},
    {"two_documents.yaml", "2:1: a second document: a config is one"},
    {"tab.yaml", "2:1: a tab stands where YAML allows only spaces"},
    {"nul.yaml", "2:5: a NUL byte: this is not a text file"},
    {"nul_escape.yaml", "2:4: a NUL character in a text"},
    {"latin1.yaml", "2:10: byte 0xe9 is not UTF-8 text"},
    {"utf16.yaml", "1:1: byte 0xff is not UTF-8 text"},
    {"overlong.yaml", "1:4: byte 0xc0 is not UTF-8 text"},
    {"surrogate.yaml", "1:4: byte 0xed is not UTF-8 text"},
    {"control.yaml", "1:4: control character 0x1b"},
    {"binary.yaml", "1:1: control character 0x7f"},
    {"tag.yaml", "1:4: tag \"tag:yaml.org,2002:python/object:os.system\": a config has no tags"},
    {"complex_key.yaml", "1:3: a key must be a plain word"},
    {"empty_key.yaml", "1:1: an empty key"},
    {"merge_scalar.yaml", "2:7: << takes a map or a list of maps, found \"3\""},
    {"two_merges.yaml", "4:3: << stands twice: give it a list of maps"},
    {"unclosed.yaml",
     "2:2: not valid YAML: did not find expected ',' or ']' (while parsing a flow sequence "
     "from line 1)"},
    {"unclosed_quote.yaml",
     "3:1: not valid YAML: found unexpected end of stream (while scanning a quoted "
     "scalar from line 1)"},
    {"bad_escape.yaml",
     "1:5: not valid YAML: found unknown escape character (while parsing a quoted scalar "
     "from line 1)"},
    {"long_key.yaml", "1:3: a key of 300 bytes"},
    {"directive.yaml", "1:1: not valid YAML: found incompatible YAML document"},
    {"key_anchor.yaml", "1:1: a key must be a plain word"},
    {"at_sign.yaml",
     "1:4: not valid YAML: found character that cannot start any token (while scanning for "
     "the next token from line 1)"},
};

static void test_corpus(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(corpus); i++) {
        char *path = tr_sprintf("%s/tests/fuzz/corpus/config/%s", TR_SOURCE_DIR, corpus[i].file),
             *text;
        size_t n;
        tr_document doc;
        assert_int_equal(tr_read_text(path, &text, &n), TR_OK);
        size_t held = tr_mem_held(TR_MEM_OTHER);
        tr_status st = tr_document_parse(corpus[i].file, text, n, &doc);
        if (corpus[i].expected) {
            char *expected = tr_sprintf("%s:%s", corpus[i].file, corpus[i].expected);
            assert_int_equal(st, TR_CONFIG);
            assert_string_equal(tr_last_error()->text, expected);
            tr_free(expected);
        } else {
            if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
            writes_back(doc.root);
            tr_document_close(&doc);
        }
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
        tr_free(path);
        tr_free(text);
    }
}

static tr_status parse_repeated(const char *head, const char *unit, size_t times)
{
    size_t unit_size = strlen(unit), n = strlen(head) + times * unit_size;
    char *text = tr_alloc(TR_MEM_OTHER, n + 1, 1);
    assert_non_null(text);
    memcpy(text, head, strlen(head));
    for (size_t i = 0; i < times; i++) memcpy(text + strlen(head) + i * unit_size, unit, unit_size);
    tr_document doc;
    tr_status st = tr_document_parse("t", text, n, &doc);
    if (st == TR_OK) tr_document_close(&doc);
    tr_free(text);
    return st;
}

static void test_limits(void **state)
{
    (void)state;
    assert_int_equal(parse_repeated("", "# long comment\n", 60000), TR_OK);
    assert_int_equal(parse_repeated("", "# long comment\n", 80000), TR_CONFIG);
    assert_string_equal(tr_last_error()->text,
                        "t:1:1: 1200000 bytes are too many for a config: at most 1048576");
    assert_int_equal(parse_repeated("", "- x\n", 100000), TR_OK);
    assert_int_equal(parse_repeated("a: ", "[", 500000), TR_CONFIG);
    assert_int_equal(parse_repeated("a: ", "{", 500000), TR_CONFIG);
    assert_int_equal(parse_repeated("", "- ", 400000), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, "t:1:131: nested more than 64 deep");

    char *text = NULL;
    size_t n = 0;
    tr_document doc;
    FILE *to = open_memstream(&text, &n);
    for (int i = 0; i < 1025; i++) fprintf(to, "k%d: 0\n", i);
    fclose(to);
    assert_int_equal(tr_document_parse("t", text, n, &doc), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, "t:1025:1: more than 1024 keys in one map");
    free(text);
    to = open_memstream(&text, &n);
    for (int i = 0; i < 1025; i++) fprintf(to, "- &a%d x\n", i);
    fclose(to);
    assert_int_equal(tr_document_parse("t", text, n, &doc), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, "t:1025:3: more than 1024 anchors");
    free(text);
}

static void test_paths(void **state)
{
    (void)state;
    tr_document doc = parse("train: {optimizer: {adamw: {lr: 0.1, eps: 2}}, batch: 8}\n"
                            "pipeline: [train, {prune: {amount: 0.5}}, fold, {prune: {amount: 1}}, "
                            "{x: 3, fold: 4}]\nempty:\n");
    static const struct {
        const char *path, *text, *nearest; /* text NULL: nothing is there; "{": a map */
    } cases[] = {
        {"train.batch", "8", NULL},
        {"train.optimizer.adamw.lr", "0.1", NULL},
        {"train.optimizer.lr", "0.1", NULL}, /* the only key is left out */
        {"pipeline.0", "train", NULL},
        {"pipeline.train", "train", NULL},
        {"pipeline.1", "{", NULL},
        {"pipeline.1.prune.amount", "0.5", NULL},
        {"pipeline.1.amount", "0.5", NULL},
        {"pipeline.prune.amount", "0.5", NULL}, /* the first */
        {"pipeline.3.prune.amount", "1", NULL},
        {"pipeline.fold", "fold", NULL},
        {"pipeline.x", "3", NULL}, /* any key of an item */
        {"empty", "", NULL},
        {"train.optimizer.sgd.lr", NULL, "train.optimizer"},
        {"train.batch.x", NULL, "train.batch"},
        {"train.adamw.lr", NULL, "train"}, /* one of two */
        {"pipeline.5.x", NULL, "pipeline"},
        {"pipeline.99999999999999999999999", NULL, "pipeline"},
        {"pipeline.-1", NULL, "pipeline"},
        {"pipeline.0x1", NULL, "pipeline"},
        {"pipeline.train.lr", NULL, "pipeline.0"},
        {"batch", NULL, ""},
        {"train..batch", NULL, "train"},
        {".", NULL, ""},
    };
    const tr_node *at, *nearest;
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        at = tr_node_at(doc.root, cases[i].path, &nearest);
        if (!cases[i].text) {
            assert_null(at);
            assert_ptr_equal(nearest, tr_node_at(doc.root, cases[i].nearest, NULL));
            continue;
        }
        assert_non_null(at);
        assert_ptr_equal(nearest, at);
        if (*cases[i].text == '{')
            assert_int_equal(at->kind, TR_NODE_MAP);
        else
            assert_string_equal(at->text, cases[i].text);
    }
    assert_ptr_equal(tr_node_at(doc.root, "", &nearest), doc.root);
    char word[TR_YAML_KEY + 8];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = 0;
    assert_null(tr_node_at(doc.root, word, &nearest)); /* no key is so long */
    assert_ptr_equal(nearest, doc.root);
    assert_null(tr_node_at(NULL, "a.b", &nearest));
    assert_null(nearest);
    tr_document_close(&doc);
    doc = parse("a: {b: 1}\n"); /* the root's only key stays */
    assert_null(tr_node_at(doc.root, "b", NULL));
    assert_string_equal(tr_node_at(doc.root, "a.b", NULL)->text, "1");
    tr_document_close(&doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions), cmocka_unit_test(test_anchors),
        cmocka_unit_test(test_corpus),    cmocka_unit_test(test_limits),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
