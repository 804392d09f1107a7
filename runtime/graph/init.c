/* Initial values. Element e of parameter row r is a function of (seed, r, e) alone, so any range
 * can be made by itself, on any rank. */
#include "runtime/graph/graph.h"

#include <math.h>

static void fill_uniform(uint64_t seed, size_t row, double bound, float *to, size_t begin,
                         size_t end)
{
    tr_philox w = {0};
    for (size_t e = begin; e < end; e++) {
        if (e == begin || e % 4 == 0) w = tr_philox_at(seed, TR_RNG_INIT, (uint32_t)row, e / 4, 0);
        to[e] = (float)(bound * (2.0 * (double)tr_uniform(w.v[e % 4]) - 1.0));
    }
}

static void fill_normal(uint64_t seed, size_t row, double std, float *to, size_t begin, size_t end)
{
    float z[4] = {0};
    for (size_t e = begin; e < end; e++) {
        if (e == begin || e % 4 == 0) {
            tr_philox w = tr_philox_at(seed, TR_RNG_INIT, (uint32_t)row, e / 4, 0);
            tr_normal2(w.v[0], w.v[1], z);
            tr_normal2(w.v[2], w.v[3], z + 2);
        }
        to[e] = (float)std * z[e % 4];
    }
}

/* Elements [begin, end) of one parameter, which starts at `to`. */
static void fill(const tr_param *p, uint64_t seed, size_t row, float *to, size_t begin, size_t end)
{
    switch (p->init) {
    case TR_INIT_KAIMING: /* PyTorch's kaiming_uniform_: gain * sqrt(3 / fan_in) */
        fill_uniform(seed, row, p->gain * sqrt(3.0 / p->fan_in), to, begin, end);
        break;
    case TR_INIT_XAVIER: /* Glorot and Bengio 2010 */
        fill_uniform(seed, row, p->gain * sqrt(6.0 / (p->fan_in + p->fan_out)), to, begin, end);
        break;
    case TR_INIT_NORMAL:
        fill_normal(seed, row, p->init_std, to, begin, end);
        break;
    case TR_INIT_HE: /* He et al. 2015, section 2.2 */
        fill_normal(seed, row, sqrt(2.0 / p->fan_in), to, begin, end);
        break;
    case TR_INIT_ZEROS:
    case TR_INIT_ONES:
    case TR_INIT_CONSTANT:
        for (size_t e = begin; e < end; e++)
            to[e] = p->init == TR_INIT_CONSTANT ? (float)p->init_std : p->init == TR_INIT_ONES;
        break;
    }
}

void tr_model_init_params(const tr_model *m, uint64_t seed, float *flat, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) flat[i] = 0.0f;
    for (size_t row = 0; row < m->nparams; row++) {
        const tr_param *p = &m->params[row];
        size_t from = p->offset > begin ? p->offset : begin;
        size_t to = p->offset + p->count < end ? p->offset + p->count : end;
        if (from < to) fill(p, seed, row, flat + p->offset, from - p->offset, to - p->offset);
    }
}

void tr_model_init_states(const tr_model *m, float *states)
{
    for (size_t i = 0; i < m->state_count; i++) states[i] = 0.0f;
    for (size_t row = 0; row < m->nstates; row++)
        for (size_t e = 0; e < m->states[row].count; e++)
            states[m->states[row].offset + e] = m->states[row].initial;
}
