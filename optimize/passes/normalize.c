/* (x - mean) / std of the data goes into the layers that read the input. All inputs or none: a
 * config either normalizes or does not. */
#include "optimize/passes/rewrite.h"

#include <string.h>

static const tr_normalize_config *stats_of(const tr_rewrite *rw, const tr_input *in)
{
    for (size_t i = 0; i < rw->nnormalize; i++) {
        const tr_normalize_config *n = &rw->normalize[i];
        if (n->input ? strcmp(n->input, in->name) == 0 : in->ids == 0) return n;
    }
    return NULL;
}

static double stat(const tr_reals *r, int64_t c, double none)
{
    return r->count ? (double)(float)r->v[r->count > 1 ? c : 0] : none;
}

static tr_status fold_input(tr_rewrite *rw, size_t i, bool *done, size_t *count)
{
    const tr_input *in = &rw->m->inputs[i];
    const tr_normalize_config *n = stats_of(rw, in);
    tr_shape shape = {.ndim = in->ndim, .layout = in->layout};
    tr_affine a;
    tr_status st = TR_OK;
    if (!n || in->ids > 0) return TR_OK;
    memcpy(shape.dims, in->dims, sizeof shape.dims);
    TR_TRY(tr_affine_open(tr_shape_channels(&shape), &a));
    for (int64_t c = 0; c < a.count; c++) {
        a.scale[c] = 1 / stat(&n->std, c, 1);
        a.shift[c] = -stat(&n->mean, c, 0) * a.scale[c];
    }
    st = tr_affine_into_readers(rw, (int)i, &a, done);
    tr_affine_close(&a);
    ++*count;
out:
    return st;
}

static tr_status run(tr_rewrite *rw, size_t *count)
{
    tr_status st = TR_OK;
    bool done = true;
    size_t n = 0;
    for (size_t i = 0; i < rw->m->ninputs && done && !rw->raw; i++)
        TR_TRY(fold_input(rw, i, &done, &n));
    if (!done || n == 0) goto out;
    rw->raw = true;
    *count = n;
out:
    return st;
}

const tr_pass tr_pass_normalize = {
    .name = "normalize",
    .doc =
        "data.normalize goes into the first layers, which then take the data as it is in the file; "
        "with zero padding only where the mean is 0.",
    .run = run};
