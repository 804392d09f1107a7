/* links: trireme_cpu trireme_runtime */
/* What we write is read back as it was: a model for each layer in every opset, random models. What others
 * write that is damaged or no model of ours is told. */
#include "optimize/onnx/onnx.h"
#include "tests/unit/onnx/cases.h"

#include <unistd.h>

static char folder[64], path[96];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/dev/shm/trireme-onnx-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.onnx", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    char *data = tr_sprintf("%s.data", path);
    unlink(path);
    unlink(data);
    tr_free(data);
    return rmdir(folder);
}

static tr_network *read_back(const tr_onnx_options *o, const tr_network *n, tr_onnx_found *found)
{
    tr_network *back = NULL;
    const tr_onnx_import in = {.loss = TR_ONNX_LOSS_AUTO};
    ok(tr_onnx_write(path, n, o));
    ok(tr_onnx_read(path, &in, &back, found));
    return back;
}

/* Every row that computes something is there again with its bits. */
static void same_rows(const tr_network *a, const tr_network *b)
{
    for (size_t i = 0; i < a->model->nparams; i++) {
        const tr_param *p = &a->model->params[i], *q = tr_network_row(b, p->layer, p->name);
        if (!q) fail_msg("no %s.%s", p->layer, p->name);
        assert_int_equal(p->uses, q->uses);
        assert_int_equal(p->count, q->count);
        assert_memory_equal(a->params + p->offset, b->params + q->offset, p->count * sizeof(float));
    }
    assert_int_equal(a->model->nparams, b->model->nparams);
    for (size_t i = 0; i < a->model->nstates; i++) {
        const tr_state *p = &a->model->states[i], *q = tr_network_state_row(b, p->layer, p->name);
        if (strcmp(p->name, TR_SCALE_STATE) == 0) continue;
        if (!q) fail_msg("no %s.%s", p->layer, p->name);
        assert_memory_equal(a->states + p->offset, b->states + q->offset, p->count * sizeof(float));
    }
}

/* Outputs within `bound` of the largest. */
static void same_outputs(const char *what, const tr_network *a, const tr_network *b, double bound)
{
    const int64_t batch = 3;
    const tr_layer *last = &a->model->layers[a->model->nlayers - 1];
    const size_t n = (size_t)batch * net_count(last->output.ndim, last->output.dims);
    float *x = net_inputs(a->model, batch, 5), *ya = net_run(a, batch, x),
          *yb = net_run(b, batch, x);
    double worst = 0, most = 1;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)ya[i] - (double)yb[i]));
        most = fmax(most, fabs((double)ya[i]));
    }
    if (!(worst <= bound * most)) print_message("%s: differs by %g of %g\n", what, worst, most);
    assert_true(worst <= bound * most);
    tr_free(x);
    tr_free(ya);
    tr_free(yb);
}

static void test_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(onnx_cases); i++) {
        tr_network *n = net_of(&onnx_cases[i], i);
        for (int opset = TR_ONNX_OPSET_MIN; opset <= TR_ONNX_OPSET_MAX; opset += 4) {
            const tr_onnx_options o = {.opset = opset};
            tr_network *back = read_back(&o, n, NULL);
            same_rows(n, back);
            same_outputs(onnx_cases[i].name, n, back, 1e-6);
            tr_network_close(back);
        }
        tr_network_close(n);
    }
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        char what[32];
        tr_network *n = net_random(random_model(seed, 0), seed);
        const tr_onnx_options o = {.opset = 13 + (int64_t)(seed % 9)};
        tr_network *back = read_back(&o, n, NULL);
        snprintf(what, sizeof what, "seed %d", (int)seed);
        same_rows(n, back);
        /* without dropout, and without flatten of what is flat */
        assert_true(back->model->nlayers <= n->model->nlayers);
        if (seed < 100) same_outputs(what, n, back, 1e-6);
        tr_network_close(back);
        tr_network_close(n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers),
                                       cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
