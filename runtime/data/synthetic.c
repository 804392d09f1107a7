/* Samples made up as they are read, for benchmarks and trials: sample i depends only on the seed,
 * the set (training or evaluation) and i. Normal numbers cost more than a step of a small network,
 * so 65,536 of them (the bank) are drawn once, and a sample is three runs through the bank at
 * offsets drawn by Philox: one fixed by its class, two by its index. x = (class + sqrt(3) * (a + b)
 * / sqrt(2)) / 2           ~ N(0, 1), with a class to be learned Regression: x = (a + b) / sqrt(2),
 * and target t is a fixed random linear function of up to 64 elements of the first input, of unit
 * variance, plus noise of 0.1; for bce its sign.
 *
 * Where each row of a sample has a label, row 0 has the sample's, and each next one the next class.
 *
 * Ids are uniform: half of them fixed by class and place, the others by index; in a regression each
 * id has a value of its own, of which the target is a function. */
#include "runtime/data/internal.h"

#include <math.h>
#include <string.h>

#define BANK  65536u
#define TERMS 64

/* Philox streams */
enum { SAMPLE = 0x100, LABEL = 0x200, CLASS = 0x300, WEIGHT = 0x400, NOISE = 0x500, TABLE = 0x600 };

typedef struct {
    tr_array base;
    tr_synthetic s;
    uint32_t input;
    int64_t ids;       /* of the input; target: of the first input */
    size_t from_count; /* target: elements of the first input */
    size_t shares;     /* probabilities of a row */
    bool planes;
    float bank[BANK];
} made;

static uint32_t label_of(const tr_synthetic *s, uint64_t i)
{
    tr_philox p = tr_philox_at(s->seed, TR_RNG_SYNTHETIC, LABEL + s->set, i, 0);
    return (uint32_t)(((uint64_t)p.v[0] * (uint64_t)s->classes) >> 32);
}

typedef struct {
    uint32_t own, a, b; /* offsets into the bank */
    float signal, noise;
} runs;

static runs runs_of(const tr_synthetic *s, uint32_t input, uint64_t i)
{
    tr_philox p = tr_philox_at(s->seed, TR_RNG_SYNTHETIC, SAMPLE + 2 * input + s->set, i, 0);
    runs r = {.a = p.v[0] % BANK, .b = p.v[1] % BANK, .noise = (float)M_SQRT1_2};
    if (s->classes > 0) {
        r.own =
            tr_philox_at(s->seed, TR_RNG_SYNTHETIC, CLASS + input, label_of(s, i), 0).v[0] % BANK;
        r.signal = 0.5f;
        r.noise = (float)sqrt(0.75 / 2.0);
    }
    return r;
}

static tr_status read_input(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    const made *m = (const made *)a;
    float *out = to;
    for (uint64_t i = first; i < first + n; i++, out += a->count) {
        runs r = runs_of(&m->s, m->input, i);
        for (size_t k = 0; k < a->count;) {
            size_t run = a->count - k; /* until one of the three wraps */
            if (run > BANK - r.own) run = BANK - r.own;
            if (run > BANK - r.a) run = BANK - r.a;
            if (run > BANK - r.b) run = BANK - r.b;
            const float *po = m->bank + r.own, *pa = m->bank + r.a, *pb = m->bank + r.b;
            for (size_t j = 0; j < run; j++)
                out[k + j] = r.signal * po[j] + r.noise * (pa[j] + pb[j]);
            k += run;
            r.own = (r.own + (uint32_t)run) % BANK;
            r.a = (r.a + (uint32_t)run) % BANK;
            r.b = (r.b + (uint32_t)run) % BANK;
        }
    }
    return TR_OK;
}

/* Id k of sample i: with even chances the class's own for this place, or any. */
static uint32_t id_at(const made *m, uint32_t input, int64_t ids, uint64_t i, size_t k)
{
    const tr_synthetic *s = &m->s;
    const tr_philox own = tr_philox_at(s->seed, TR_RNG_SYNTHETIC, SAMPLE + 2 * input + s->set, i,
                                       1 + (uint32_t)(k / 2));
    uint32_t word = own.v[2 * (k % 2)];
    if (s->classes > 0 && own.v[2 * (k % 2) + 1] >> 31)
        word = tr_philox_at(s->seed, TR_RNG_SYNTHETIC, CLASS + input, label_of(s, i),
                            1 + (uint32_t)(k / 4))
                   .v[k % 4];
    return (uint32_t)(((uint64_t)word * (uint64_t)ids) >> 32);
}

static tr_status read_ids(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    const made *m = (const made *)a;
    int32_t *out = to;
    for (uint64_t i = first; i < first + n; i++)
        for (size_t k = 0; k < a->count; k++) *out++ = (int32_t)id_at(m, m->input, m->ids, i, k);
    return TR_OK;
}

static tr_status read_labels(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    const tr_synthetic *s = &((made *)a)->s;
    int32_t *out = to;
    for (uint64_t i = first; i < first + n; i++)
        for (size_t r = 0; r < a->count; r++)
            *out++ = (int32_t)((label_of(s, i) + r) % (uint64_t)s->classes);
    return TR_OK;
}

/* Probabilities: nine tenths for the label, the rest for all alike. */
static tr_status read_shares(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    const made *m = (const made *)a;
    const size_t C = m->shares, rows = a->count / C;
    float *out = to;
    for (uint64_t i = first; i < first + n; i++) {
        const size_t label = label_of(&m->s, i);
        for (size_t k = 0; k < a->count; k++) {
            /* of (C, H, W) one plane of a class after the other */
            const size_t row = m->planes ? k % rows : k / C, c = m->planes ? k / rows : k % C;
            *out++ = 0.1f / (float)C + (c == (label + row) % (size_t)m->s.classes ? 0.9f : 0.0f);
        }
    }
    return TR_OK;
}

static tr_status read_values(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    const made *m = (const made *)a;
    float *out = to;
    size_t terms = m->from_count < TERMS ? m->from_count : TERMS;
    for (uint64_t i = first; i < first + n; i++) {
        runs r = runs_of(&m->s, 0, i);
        tr_philox p = tr_philox_at(m->s.seed, TR_RNG_SYNTHETIC, NOISE + m->s.set, i, 0);
        for (size_t t = 0; t < a->count; t++) {
            uint32_t w = tr_philox_at(m->s.seed, TR_RNG_SYNTHETIC, WEIGHT, t, 0).v[0];
            float sum = 0.0f;
            for (size_t j = 0; j < terms; j++) {
                uint32_t k = (uint32_t)((t * TERMS + j) % m->from_count);
                float x = m->bank[(r.a + k) % BANK] + m->bank[(r.b + k) % BANK];
                if (m->ids > 0) /* an id's own value, of variance 2 too */
                    x = (float)M_SQRT2 * m->bank[id_at(m, 0, m->ids, i, k) * 40503u % BANK];
                sum += m->bank[(w + j) % BANK] * r.noise * x;
            }
            float y = sum / sqrtf((float)terms) + 0.1f * m->bank[(p.v[0] + t) % BANK];
            *out++ = m->s.binary ? (float)(y > 0.0f) : y;
        }
    }
    return TR_OK;
}

static void nothing(tr_array *a)
{
    (void)a;
}

static tr_status made_open(const tr_synthetic *s, const char *name, tr_elem elem, int ndim,
                           const int64_t *dims, made **out)
{
    tr_status st = TR_OK;
    uint64_t all[TR_MAX_DIMS + 1] = {s->samples};
    made *m = TR_NEW(TR_MEM_OTHER, made);
    TR_HAVE(m);
    m->base.name = tr_strdup(name);
    TR_HAVE(m->base.name);
    for (int d = 0; d < ndim; d++) all[d + 1] = (uint64_t)dims[d];
    TR_TRY(tr_array_shape(&m->base, elem, ndim + 1, all));
    m->base.computed = true;
    m->base.release = nothing;
    m->s = *s;
    for (uint32_t k = 0; k < BANK; k += 4) {
        tr_philox p = tr_philox_at(s->seed, TR_RNG_SYNTHETIC, TABLE, k / 4, 0);
        tr_normal2(p.v[0], p.v[1], m->bank + k);
        tr_normal2(p.v[2], p.v[3], m->bank + k + 2);
    }
out:
    if (st != TR_OK) {
        if (m) tr_array_close(&m->base);
        return st;
    }
    *out = m;
    return TR_OK;
}

tr_status tr_synthetic_input(const tr_synthetic *s, const tr_model *m, size_t input, tr_array **out)
{
    made *a;
    const tr_input *in = &m->inputs[input];
    tr_status st = made_open(s, "synthetic inputs", in->ids > 0 ? TR_ELEM_I32 : TR_ELEM_F32,
                             in->ndim, in->dims, &a);
    if (st != TR_OK) return st;
    a->input = (uint32_t)input;
    a->ids = in->ids;
    a->base.read = in->ids > 0 ? read_ids : read_input;
    *out = &a->base;
    return TR_OK;
}

tr_status tr_synthetic_target(const tr_synthetic *s, const tr_model *m, tr_array **out)
{
    made *a;
    tr_status st;
    if (s->classes > 0 && m->labels)
        st = made_open(s, "synthetic labels", TR_ELEM_I32, m->ndim_target, m->target_dims, &a);
    else
        st = made_open(s, "synthetic targets", TR_ELEM_F32, m->ndim_target, m->target_dims, &a);
    if (st != TR_OK) return st;
    a->ids = m->inputs[0].ids;
    a->shares = (size_t)m->classes;
    a->planes = m->ndim_target == 3;
    a->from_count = 1;
    for (int d = 0; d < m->inputs[0].ndim; d++) a->from_count *= (size_t)m->inputs[0].dims[d];
    a->base.read = s->classes == 0 ? read_values : m->labels ? read_labels : read_shares;
    *out = &a->base;
    return TR_OK;
}
