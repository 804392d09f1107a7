/* Networks written and read back, files whole and with other bytes. */
#ifndef TR_TESTS_ONNX_BACK_H
#define TR_TESTS_ONNX_BACK_H

#include "optimize/onnx/onnx.h"
#include "tests/unit/onnx/cases.h"

#include <unistd.h>

static char folder[64], path[96];

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/dev/shm/trireme-onnx-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.onnx", folder);
    return 0;
}

static inline int remove_folder(void **state)
{
    (void)state;
    char *data = tr_sprintf("%s.data", path);
    unlink(path);
    unlink(data);
    tr_free(data);
    return rmdir(folder);
}

static inline tr_network *read_back(const tr_onnx_options *o, const tr_network *n,
                                    tr_onnx_found *found)
{
    tr_network *back = NULL;
    const tr_onnx_import in = {.loss = NULL};
    ok(tr_onnx_write(path, n, o));
    ok(tr_onnx_read(path, &in, &back, found));
    return back;
}

/* Outputs within `bound` of the largest. */
static inline void same_outputs(const char *what, const tr_network *a, const tr_network *b,
                                double bound)
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

static inline unsigned char *whole(size_t *n)
{
    FILE *f = fopen(path, "rb");
    unsigned char *v = calloc(1, 1 << 18);
    assert_non_null(f);
    *n = fread(v, 1, 1 << 18, f);
    fclose(f);
    return v;
}

static inline void put(const void *v, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(v, 1, n, f) == n && fclose(f) == 0);
}

static inline tr_status try_read(void)
{
    const tr_onnx_import in = {.loss = NULL};
    tr_network *n = NULL;
    const tr_status st = tr_onnx_read(path, &in, &n, NULL);
    tr_network_close(n);
    return st;
}

static inline void write_case(const char *model, const tr_onnx_options *o)
{
    const onnx_case c = {"", model};
    tr_network *n = net_of(&c, 1);
    ok(tr_onnx_write(path, n, o));
    tr_network_close(n);
}

#endif
