/* Initial values. Element e of parameter row r is a function of (seed, r, e) alone, so any range
 * can be made by itself, on any rank. */
#include "runtime/graph/graph.h"

#include <math.h>
#include <string.h>

static void fill_uniform(uint64_t seed, size_t row, double bound, float *to, size_t begin,
                         size_t end)
{
    tr_philox w = {0};
    for (size_t e = begin; e < end; e++) {
        if (e == begin || e % 4 == 0) w = tr_philox_at(seed, TR_RNG_INIT, (uint32_t)row, e / 4, 0);
        to[e - begin] = (float)(bound * (2.0 * (double)tr_uniform(w.v[e % 4]) - 1.0));
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
        to[e - begin] = (float)std * z[e % 4];
    }
}

/* Elements [begin, end) of row `row`, as `p` says. */
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
        fill_normal(seed, row, p->gain * p->init_std, to, begin, end);
        break;
    case TR_INIT_HE: /* He et al. 2015, section 2.2 */
        fill_normal(seed, row, p->gain * sqrt(2.0 / p->fan_in), to, begin, end);
        break;
    case TR_INIT_ZEROS:
    case TR_INIT_ONES:
    case TR_INIT_CONSTANT:
        for (size_t e = begin; e < end; e++)
            to[e - begin] = (float)(p->init == TR_INIT_CONSTANT ? p->gain * p->init_std
                                    : p->init == TR_INIT_ONES   ? p->gain
                                                                : 0);
        break;
    }
}

/* ---- Sketches of such a matrix -----------------------------------------------------------------
 * Sums go over the matrix in one order, whatever range of them is asked for. The matrix is made
 * piece by piece and never there as a whole. */

enum { COLUMNS = 1024, ROWS = 16 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements [begin, end) of U1 W: `rows` sketches of the rows of W. */
static void sketch_rows(const tr_param *p, uint64_t seed, float *to, size_t begin, size_t end)
{
    const tr_sketch signs = {.side = TR_SKETCH_UP, .seed = p->sketch.seed};
    const float unit = (float)(1 / sqrt((double)p->sketch.rank));
    const size_t outs = (size_t)p->of[0], in = (size_t)p->of[1], rows = p->count / in;
    float w[COLUMNS], u[TR_SIGNS_BLOCK];
    for (size_t j = 0; j < in; j += COLUMNS)
        for (size_t o = 0; o < outs; o++) {
            const size_t n = least(COLUMNS, in - j);
            fill(p, seed, (size_t)p->drawn, w, o * in + j, o * in + j + n);
            for (size_t k = begin / in; k < rows && k * in < end; k++) {
                const size_t first = k * in + j;
                const size_t from = begin > first ? begin - first : 0;
                const size_t till = end > first ? least(n, end - first) : 0;
                if (k == begin / in || k % TR_SIGNS_BLOCK == 0) {
                    const size_t block = k / TR_SIGNS_BLOCK * TR_SIGNS_BLOCK;
                    tr_sketch_signs(&signs, (int64_t)o, block, TR_SIGNS_BLOCK, unit, u);
                }
                const float s = u[k % TR_SIGNS_BLOCK];
                for (size_t c = from; c < till; c++) to[first + c - begin] += s * w[c];
            }
        }
}

/* Elements [begin, end) of W U2^T: each row of W in `columns` sketches; ROWS rows at a time. */
static void sketch_columns(const tr_param *p, uint64_t seed, float *to, size_t begin, size_t end)
{
    const tr_sketch signs = {.side = TR_SKETCH_DOWN, .seed = p->sketch.seed};
    const float unit = (float)(1 / sqrt((double)p->sketch.rank));
    const size_t outs = (size_t)p->of[0], in = (size_t)p->of[1], columns = p->count / outs;
    float w[TR_SIGNS_BLOCK][ROWS], row[TR_SIGNS_BLOCK], u[TR_SIGNS_BLOCK];
    for (size_t o = begin / columns; o * columns < end; o += ROWS)
        for (size_t j = 0; j < in; j += TR_SIGNS_BLOCK) {
            const size_t n = least(TR_SIGNS_BLOCK, in - j), nrows = least(ROWS, outs - o);
            memset(w, 0, sizeof w);
            for (size_t r = 0; r < nrows; r++) {
                fill(p, seed, (size_t)p->drawn, row, (o + r) * in + j, (o + r) * in + j + n);
                for (size_t c = 0; c < n; c++) w[c][r] = row[c];
            }
            for (size_t k = 0; k < columns; k++) {
                float sum[ROWS] = {0};
                tr_sketch_signs(&signs, (int64_t)k, j, n, unit, u);
                for (size_t c = 0; c < n; c++)
                    for (size_t r = 0; r < ROWS; r++) sum[r] += u[c] * w[c][r];
                for (size_t r = 0; r < nrows; r++) {
                    const size_t e = (o + r) * columns + k;
                    if (e >= begin && e < end) to[e - begin] += sum[r];
                }
            }
        }
}

/* `to` is zero. */
static void fill_sketch(const tr_param *p, uint64_t seed, float *to, size_t begin, size_t end)
{
    if (p->sketch.side == TR_SKETCH_UP)
        sketch_columns(p, seed, to, begin, end);
    else
        sketch_rows(p, seed, to, begin, end);
}

void tr_model_init_params(const tr_model *m, uint64_t seed, float *flat, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) flat[i] = 0.0f;
    for (size_t row = 0; row < m->nparams; row++) {
        const tr_param *p = &m->params[row];
        size_t from = p->offset > begin ? p->offset : begin;
        size_t to = p->offset + p->count < end ? p->offset + p->count : end;
        if (from >= to) continue;
        if (p->sketch.side != TR_SKETCH_NONE)
            fill_sketch(p, seed, flat + from, from - p->offset, to - p->offset);
        else
            fill(p, seed, row, flat + from, from - p->offset, to - p->offset);
    }
}

void tr_model_init_states(const tr_model *m, float *states)
{
    for (size_t i = 0; i < m->state_count; i++) states[i] = 0.0f;
    for (size_t row = 0; row < m->nstates; row++)
        for (size_t e = 0; e < m->states[row].count; e++)
            states[m->states[row].offset + e] = m->states[row].initial;
}
