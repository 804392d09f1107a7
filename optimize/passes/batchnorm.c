/* Batchnorm with its running statistics is y = scale * x + shift by channel, which goes into the
 * products before it, or behind it. */
#include "optimize/passes/rewrite.h"

static tr_status fold(tr_rewrite *rw, bool behind, size_t *count)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < rw->m->nlayers; i++) {
        const tr_layer *l = &rw->m->layers[i];
        tr_affine a;
        bool done = false;
        if (!rw->edits[i].stays || !tr_layer_is_affine(l)) continue;
        const int value = tr_rewrite_input(rw, l, 0);
        st = tr_affine_of(rw, l, &a);
        if (st == TR_OK)
            st = behind ? tr_affine_into_readers(rw, tr_rewrite_output(rw, l), &a, &done)
                        : tr_affine_into_makers(rw, value, &a, &done);
        tr_affine_close(&a);
        if (st != TR_OK) goto out;
        if (!done) continue;
        tr_rewrite_replace(rw, l, value);
        ++*count;
    }
out:
    return st;
}

static tr_status run(tr_rewrite *rw, size_t *count)
{
    return fold(rw, false, count);
}

static tr_status run_before(tr_rewrite *rw, size_t *count)
{
    return fold(rw, true, count);
}

const tr_pass tr_pass_batchnorm = {
    .name = "batchnorm",
    .doc =
        "A batchnorm goes into what comes before it: conv2d, depthwise and grouped too, linear, "
        "another batchnorm; also through a concat, each piece its part, a sum, pooling, flatten.",
    .run = run};

const tr_pass tr_pass_batchnorm_before = {
    .name = "batchnorm_before",
    .doc = "A batchnorm goes into the conv2d and linear layers that read it, also through flatten, "
           "concat and pooling; not into a convolution with zero padding where it adds something.",
    .run = run_before};
