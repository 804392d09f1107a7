/* A trained weight as its int8 file would hold it, before layers read it: quantization-aware
 * training (Jacob et al. 2018). Scales are those of the weight as it is, so that nothing is
 * clipped, and the straight-through gradient (Bengio, Leonard and Courville 2013) is all of it:
 * whoever reads the rounded weight writes the gradient of the row itself. */
#include "runtime/graph/ops/registry.h"

#include <math.h>

enum { STEPS = 127 };

const tr_op_def tr_def_quantize_weight = {
    .name = "quantize_weight", .flops = tr_flops_elements, .statistics = true};

const tr_op_def *tr_op_rounds_weight(void)
{
    return &tr_def_quantize_weight;
}

const tr_quantize_weight_attrs *tr_quantize_weight_of(const tr_param *p)
{
    static const tr_quantize_weight_attrs attrs[] = {{.per_tensor = false}, {.per_tensor = true}};
    return &attrs[p->per_tensor];
}

static float scale_of(const float *w, size_t count)
{
    float most = 0;
    for (size_t i = 0; i < count; i++) most = fmaxf(most, fabsf(w[i]));
    return most > 1e-30f ? most / STEPS : 1;
}

static void quantize_learned(const tr_param *p, float *values, float *scale, const float *learned)
{
    const size_t outputs = (size_t)p->dims[0], each = outputs ? p->count / outputs : 0;
    for (size_t o = 0; o < outputs; o++) {
        const float s = tr_learned_scale(learned[p->per_tensor ? 0 : o]), inverse = 1 / s;
        float *w = values + o * each;
        scale[o] = s;
        for (size_t i = 0; i < each; i++)
            w[i] = (float)(int)rintf(fminf(fmaxf(w[i] * inverse, -STEPS), STEPS)) * s;
    }
}

void tr_param_quantize(const tr_param *p, float *values, float *scale, const float *learned)
{
    const size_t outputs = (size_t)p->dims[0], each = outputs ? p->count / outputs : 0;
    if (learned) {
        quantize_learned(p, values, scale, learned);
        return;
    }
    for (size_t o = 0; o < outputs; o++) {
        float *w = values + o * each;
        if (o == 0 || !p->per_tensor)
            scale[o] = p->per_tensor ? scale_of(values, p->count) : scale_of(w, each);
        else
            scale[o] = scale[0];
        for (size_t i = 0; i < each; i++)
            w[i] = (float)(int)fminf(fmaxf(rintf(w[i] / scale[o]), -STEPS), STEPS) * scale[o];
    }
}

void tr_model_quantize(const tr_model *m, float *params, float *states)
{
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *p = &m->params[i];
        if (p->stored == TR_I8 && !p->frozen)
            tr_param_quantize(p, params + p->offset, states + m->states[p->scale].offset,
                              p->learned_scale >= 0 ? params + m->params[p->learned_scale].offset
                                                    : NULL);
    }
}
