/* Passes change how a graph computes, never what: every generated model gives the same numbers with
 * and without them (evaluate.h), in memory shared as the graph says. */
#include "tests/unit/chance.h"
#include "tests/unit/graph/evaluate.h"

static void line(generator *r, int indent, const char *text)
{
    fprintf(r->to, "%*s- %s\n", indent, "", text);
}

static void images(generator *r, int indent, int n);

static void residual(generator *r, int indent)
{
    fprintf(r->to, "%*s- residual:\n%*sbody:\n", indent, "", indent + 4, "");
    images(r, indent + 6, 1 + dice(r, 4));
    if (dice(r, 2)) {
        fprintf(r->to, "%*sshortcut:\n", indent + 4, "");
        images(r, indent + 6, 1 + dice(r, 2));
    }
    if (dice(r, 3)) line(r, indent, "relu");
}

static void repeat(generator *r, int indent)
{
    fprintf(r->to, "%*s- repeat:\n%*stimes: %d\n%*slayers:\n", indent, "", indent + 4, "",
            1 + dice(r, 3), indent + 4, "");
    images(r, indent + 6, 1 + dice(r, 4));
}

/* A few names and what joins them again; all of one shape. */
static void joined(generator *r, int indent)
{
    int a = ++r->names, b = ++r->names;
    fprintf(r->to, "%*s- relu: {name: n%d}\n", indent, "", a);
    fprintf(r->to, "%*s- batchnorm: {name: n%d}\n", indent, "", b);
    int how = dice(r, 3);
    if (how != 1 && dice(r, 2)) fprintf(r->to, "%*s- tanh: {from: n%d}\n", indent, "", a);
    if (how == 0) {
        fprintf(r->to, "%*s- sigmoid: {name: m%d}\n", indent, "", b);
        fprintf(r->to, "%*s- add: {from: [n%d, n%d, m%d]}\n", indent, "", a, b, b);
    } else if (how == 1) {
        fprintf(r->to, "%*s- add: {name: m%d, from: [n%d, n%d]}\n", indent, "", b, b, a);
        fprintf(r->to, "%*s- add: {from: [m%d, n%d]}\n", indent, "", b, b);
    } else {
        fprintf(r->to, "%*s- gelu: {name: m%d, approximate: tanh}\n", indent, "", b);
        fprintf(r->to, "%*s- concat: {from: [n%d, m%d, n%d, n%d]}\n", indent, "", b, b, a, a);
        line(r, indent, "conv2d: {out: 4, kernel: 1}");
    }
}

/* Layers that keep (4, 6, 6). */
static void images(generator *r, int indent, int n)
{
    static const char *const plain[] = {
        "conv2d: {out: 4, kernel: 3, padding: 1, bias: false}",
        "conv2d: {out: 4, kernel: 1}",
        "batchnorm",
        "batchnorm",
        "relu",
        "relu",
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "dropout",
        "maxpool2d: {kernel: 3, stride: 1, padding: 1}",
        "avgpool2d: {kernel: 3, stride: 1, padding: 1}",
        "softmax",
    };
    r->depth++;
    for (int i = 0; i < n; i++) {
        int what = dice(r, 10);
        if (what == 0 && r->depth < 4)
            residual(r, indent);
        else if (what == 1 && r->depth < 4)
            residual(r, indent);
        else if (what == 2 && r->depth < 3)
            repeat(r, indent);
        else if (what == 3)
            joined(r, indent);
        else
            line(r, indent, plain[dice(r, (int)TR_COUNT(plain))]);
    }
    r->depth--;
}

static char *generate(uint64_t seed)
{
    char *text = NULL;
    size_t n;
    generator r = {.state = seed * 77 + 5};
    r.to = open_memstream(&text, &n);
    fprintf(r.to, "  input: [4, 6, 6]\n  layers:\n");
    if (dice(&r, 3)) line(&r, 4, "conv2d: {out: 4, kernel: 3, padding: 1}");
    images(&r, 4, 2 + dice(&r, 8));
    if (dice(&r, 2)) line(&r, 4, "global_avgpool");
    line(&r, 4, "flatten");
    static const char *const rows[] = {"linear: {out: 8}", "layernorm", "batchnorm", "relu", "gelu",
                                       "dropout",          "tanh",      "flatten"};
    for (int i = dice(&r, 6); i > 0; i--) line(&r, 4, rows[dice(&r, (int)TR_COUNT(rows))]);
    line(&r, 4, "linear: {out: 3}");
    if (dice(&r, 4) == 0) line(&r, 4, "relu");
    fprintf(r.to, "  loss: cross_entropy\n");
    fclose(r.to);
    return text;
}

/* A mark says that all gradients of all buckets up to it were written, and the last says all. */
static void check_marks(const tr_graph *g)
{
    const tr_model *m = g->model;
    bool *done = calloc(m->nparams, sizeof *done);
    int last = -1;
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        for (int k = 0; k < op->nout; k++)
            if (op->out[k] >= 0 && g->tensors[op->out[k]].role == TR_ROLE_GRAD)
                done[g->tensors[op->out[k]].index] = true;
        if (op->bucket_ready < 0) continue;
        assert_true(op->bucket_ready > last);
        last = op->bucket_ready;
        for (size_t p = 0; p < m->nparams; p++)
            if (m->params[p].offset < m->buckets[last].end) assert_true(done[p]);
    }
    assert_int_equal(last, (int)m->nbuckets - 1);
    free(done);
}

/* A sum made again takes its operands in the order of the first time: it is the same to the bit. */
static void check_order(const tr_graph *g, const tr_op *again)
{
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        if (op->phase != TR_PHASE_FORWARD || strcmp(op->layer, again->layer) != 0 ||
            strcmp(tr_op_name(op), "add") != 0)
            continue;
        for (int k = 0; k < op->nin; k++) {
            const char *name = g->tensors[op->in[k]].name;
            assert_int_equal(strncmp(g->tensors[again->in[k]].name, name, strlen(name)), 0);
        }
    }
}

static size_t count_again(const tr_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->nops; i++) {
        if (!g->ops[i].recomputed) continue;
        n++;
        if (strcmp(tr_op_name(&g->ops[i]), "add") == 0) check_order(g, &g->ops[i]);
        assert_int_equal(g->ops[i].phase, TR_PHASE_BACKWARD);
        assert_null(strstr(tr_op_name(&g->ops[i]), ".stats"));
        assert_null(strstr(tr_op_name(&g->ops[i]), ".merge"));
    }
    return n;
}

static void check_model(const tr_model *m, size_t *again, size_t *aliases)
{
    tr_graph_options o = {.batch = 2, .mode = TR_MODE_TRAIN, .sync_batchnorm = true, .ranks = 2};
    tr_graph *plain = test_graph(m, &o);
    check_marks(plain);
    for (int recompute = 0; recompute < 6; recompute++)
        for (int fuse = 0; fuse < 2; fuse++) {
            o.passes = fuse ? TR_PASSES_ALL : 0;
            o.recompute = recompute < 2 ? recompute : TR_RECOMPUTE_EVERY;
            o.recompute_every = recompute - 1;
            tr_graph *g = test_graph(m, &o);
            test_same(plain, g);
            check_marks(g);
            *again += count_again(g);
            for (size_t t = 0; t < g->ntensors; t++) *aliases += g->tensors[t].alias >= 0;
            tr_graph_close(g);
        }
    tr_graph_close(plain);
    tr_graph_options e = {.batch = 2};
    plain = test_graph(m, &e);
    e.passes = TR_PASSES_ALL;
    tr_graph *g = test_graph(m, &e);
    test_same(plain, g);
    tr_graph_close(plain);
    tr_graph_close(g);
}

static void test_generated(void **state)
{
    (void)state;
    size_t again = 0, aliases = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        char *text = generate(seed);
        test_model t;
        tr_status st = test_model_try(&t, text, 512);
        if (st != TR_OK) print_message("seed %d: %s\n%s", (int)seed, tr_last_error()->text, text);
        assert_int_equal(st, TR_OK);
        check_model(t.model, &again, &aliases);
        test_model_close(&t);
        free(text);
    }
    /* The generator does reach what is tested. */
    assert_true(again > 10000);
    assert_true(aliases > 10000);
}

static void test_resnet(void **state)
{
    (void)state;
    size_t again = 0, aliases = 0;
    test_model t = test_model_open(TEST_RESNET20);
    check_model(t.model, &again, &aliases);
    assert_true(again > 0);
    test_model_close(&t);
}

/* The meetings of ranks, in order. */
static char *meetings(const tr_graph *g)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    for (size_t i = 0; i < g->nops; i++)
        if (strstr(tr_op_name(&g->ops[i]), "merge"))
            fprintf(f, "%s %s\n", tr_op_name(&g->ops[i]), g->ops[i].layer);
    fclose(f);
    return text;
}

static void test_empty_share(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        char *text = generate(seed);
        test_model t = test_model_open(text);
        for (int recompute = 0; recompute < 2; recompute++) {
            tr_graph_options o = {.batch = 3,
                                  .mode = TR_MODE_TRAIN,
                                  .sync_batchnorm = true,
                                  .ranks = 4,
                                  .passes = TR_PASSES_ALL,
                                  .recompute = recompute};
            tr_graph *full = test_graph(t.model, &o);
            o.batch = 0;
            tr_graph *empty = test_graph(t.model, &o);
            char *a = meetings(full), *b = meetings(empty);
            assert_string_equal(a, b);
            for (size_t i = 0; i < empty->nops; i++) {
                assert_int_equal(strncmp(tr_op_name(&empty->ops[i]), "batchnorm", 9), 0);
                assert_string_not_equal(tr_op_name(&empty->ops[i]), "batchnorm.grad_input");
                assert_false(empty->ops[i].recomputed);
            }
            free(a);
            free(b);
            tr_graph_close(full);
            tr_graph_close(empty);
            /* Without meetings there is nothing to do. */
            o.sync_batchnorm = false;
            empty = test_graph(t.model, &o);
            assert_int_equal(empty->nops, 0);
            tr_graph_close(empty);
        }
        test_model_close(&t);
        free(text);
    }
}

/* An allocation that fails anywhere fails the call and leaves nothing behind. */
static void test_memory(void **state)
{
    (void)state;
    test_model t = test_model_open(TEST_RESNET20);
    tr_graph_options o = {.batch = 2,
                          .mode = TR_MODE_TRAIN,
                          .passes = TR_PASSES_ALL,
                          .recompute = TR_RECOMPUTE_BLOCKS,
                          .ranks = 1};
    size_t before = tr_mem_held(TR_MEM_OTHER);
    int failed = 0;
    for (uint64_t n = 1;; n++) {
        tr_graph *g = NULL;
        tr_mem_fail_at(n);
        tr_status st = tr_graph_open(t.model, &o, &g);
        tr_mem_fail_at(0);
        if (st == TR_OK) {
            tr_graph_close(g);
            break;
        }
        failed++;
        assert_int_equal(st, TR_MEMORY);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
    }
    assert_true(failed > 10);
    for (uint64_t n = 1;; n++) {
        tr_model *m = NULL;
        tr_mem_fail_at(n);
        tr_status st = tr_model_open(t.config, 0, &m);
        tr_mem_fail_at(0);
        if (st == TR_OK) {
            tr_model_close(m);
            break;
        }
        assert_int_equal(st, TR_MEMORY);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
    }
    test_model_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),
        cmocka_unit_test(test_resnet),
        cmocka_unit_test(test_empty_share),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
