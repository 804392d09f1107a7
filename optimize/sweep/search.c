/* Where to look next: samples of the whole space, then moves from the front. */
#include "optimize/sweep/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOCAL = 100, ANYWHERE = 100, LISTED = 1000000 }; /* attempts; points that are counted out */
enum { SAMPLE_EVERY = 4 };
#define APART                                                                                      \
    ((uint64_t)1 << 20) /* a sample that was tried gives way to the one so much further on */

/* ---- Chance ---------------------------------------------------------------------------------- */

typedef struct {
    uint64_t seed, attempt;
    uint32_t trial, count;
} dice;

static uint32_t throw_bits(dice *d)
{
    return tr_philox_at(d->seed, TR_RNG_SEARCH, d->trial, d->attempt, d->count++).v[0];
}

static double throw_unit(dice *d) /* [0, 1) */
{
    return throw_bits(d) / 4294967296.0;
}

static size_t throw_below(dice *d, size_t n)
{
    return (size_t)(throw_unit(d) * (double)n);
}

static double throw_normal(dice *d)
{
    float pair[2];
    const uint32_t a = throw_bits(d), b = throw_bits(d);
    tr_normal2(a, b, pair);
    return pair[0];
}

/* ---- Settings of one axis -------------------------------------------------------------------- */

/* What can be written: an integer, or four digits, within the range. */
static double settle(const tr_sweep_axis *a, double v)
{
    char text[32];
    if (a->integer) return fmin(fmax(round(v), a->from), a->to);
    snprintf(text, sizeof text, "%.4g", v);
    return fmin(fmax(strtod(text, NULL), a->from), a->to);
}

static double from_unit(const tr_sweep_axis *a, double u)
{
    if (a->count) return fmin(floor(u * (double)a->count), (double)(a->count - 1));
    if (a->log) return settle(a, exp(log(a->from) + u * (log(a->to) - log(a->from))));
    return settle(a, a->from + u * (a->to - a->from));
}

static double to_unit(const tr_sweep_axis *a, double v)
{
    if (a->log) return (log(v) - log(a->from)) / (log(a->to) - log(a->from));
    return (v - a->from) / (a->to - a->from);
}

/* Another choice; or a step of a length that is itself drawn, from 0.3 to 0.04 of the range, back
 * from its ends. */
static double move(const tr_sweep_axis *a, double v, dice *d)
{
    if (a->choices) {
        if (a->count == 1) return v;
        const size_t other = throw_below(d, a->count - 1);
        return (double)(other + (other >= (size_t)v));
    }
    const double step = 0.3 * exp2(-3 * throw_unit(d)) * throw_normal(d);
    if (a->count) {
        const double most = (double)(a->count - 1), by = round(fabs(step) * most);
        const double to = v + copysign(fmax(by, 1), step);
        return fmin(fmax(to < 0 ? -to : to > most ? 2 * most - to : to, 0), most);
    }
    const double u = fabs(to_unit(a, v) + step);
    return from_unit(a, u > 1 ? fmax(2 - u, 0) : u);
}

/* ---- Samples --------------------------------------------------------------------------------- */

/* Whether point n is one of the whole space; *index: which of those, from 0. How many points there
 * will be does not count, so that a search can be gone on with. */
static bool is_sample(const tr_sweep_space *s, size_t n, uint64_t *index)
{
    const size_t first = 2 * s->count + 2, behind = n < first ? 0 : n - first + 1;
    *index = n < first ? n : first + behind / SAMPLE_EVERY - 1;
    return n < first || behind % SAMPLE_EVERY == 0;
}

static double radical_inverse(uint64_t n, uint64_t base)
{
    double v = 0, digit = 1;
    for (; n; n /= base) v += (double)(n % base) * (digit /= (double)base);
    return v;
}

static uint64_t next_prime(uint64_t p)
{
    for (;;) {
        bool prime = ++p > 1;
        for (uint64_t k = 2; k * k <= p && prime; k++) prime = p % k != 0;
        if (prime) return p;
    }
}

static void sample(const tr_sweep_space *s, uint64_t seed, uint64_t index, double *point)
{
    uint64_t base = 1;
    dice shift = {.seed = seed, .trial = UINT32_MAX};
    for (size_t k = 0; k < s->count; k++) {
        base = next_prime(base);
        const double u = radical_inverse(index, base) + throw_unit(&shift);
        point[k] = from_unit(&s->axes[k], u - floor(u));
    }
}

/* ---- Moves ----------------------------------------------------------------------------------- */

/* NSGA-II's: the size of the box that the neighbors on the front leave, infinite at its ends. */
static double crowding(size_t i, size_t n, const tr_search_result *r, const bool *front)
{
    double sum = 0;
    for (size_t k = 0; k < TR_SEARCH_OBJECTIVES; k++) {
        const double own = r[i].objectives[k];
        double below = -INFINITY, above = INFINITY, low = INFINITY, high = -INFINITY;
        for (size_t j = 0; j < n; j++) {
            const double v = r[j].objectives[k];
            if (!front[j]) continue;
            low = fmin(low, v);
            high = fmax(high, v);
            if (j != i && v <= own) below = fmax(below, v);
            if (j != i && v >= own) above = fmin(above, v);
        }
        if (high > low) sum += (above - below) / (high - low);
    }
    return sum;
}

/* Which points may be moved from: the front of those that keep to the bounds; where none does, who
 * violates them least. */
static tr_status find_parents(size_t n, const tr_search_result *r, bool *parents, size_t *count)
{
    tr_status st;
    double least = INFINITY;
    double *v = tr_alloc(TR_MEM_OTHER, n * TR_SEARCH_OBJECTIVES, sizeof *v);
    bool *in = tr_alloc(TR_MEM_OTHER, n, sizeof *in);
    TR_HAVE(v && in);
    for (size_t i = 0; i < n; i++)
        if (!r[i].failed) least = fmin(least, r[i].violation);
    for (size_t i = 0; i < n; i++) {
        in[i] = !r[i].failed && r[i].violation <= least;
        memcpy(v + i * TR_SEARCH_OBJECTIVES, r[i].objectives, sizeof r[i].objectives);
    }
    TR_TRY(tr_pareto_front(n, TR_SEARCH_OBJECTIVES, v, in, parents));
    *count = 0;
    for (size_t i = 0; i < n; i++) *count += parents[i];
out:
    tr_free(v);
    tr_free(in);
    return st;
}

static size_t parent_number(const bool *parents, size_t number)
{
    size_t i = 0;
    while (!parents[i] || number-- > 0) i++;
    return i;
}

static size_t choose_parent(size_t n, const tr_search_result *r, const bool *parents, size_t count,
                            dice *d)
{
    const size_t a = parent_number(parents, throw_below(d, count));
    const size_t b = parent_number(parents, throw_below(d, count));
    if (n % 2) return crowding(a, n, r, parents) >= crowding(b, n, r, parents) ? a : b;
    size_t best = a;
    for (size_t i = 0; i < n; i++)
        if (parents[i] && r[i].minimize < r[best].minimize) best = i;
    return best;
}

/* Each axis moves with one chance in as many as there are, one of them in any case. */
static void move_from(const tr_sweep_space *s, const double *from, dice *d, double *next)
{
    const size_t forced = throw_below(d, s->count);
    for (size_t k = 0; k < s->count; k++) {
        const bool moves = throw_below(d, s->count) == 0 || k == forced;
        next[k] = moves ? move(&s->axes[k], from[k], d) : from[k];
    }
}

/* ---- The search ------------------------------------------------------------------------------ */

static bool is_new(const tr_sweep_space *s, size_t n, const double *points, const double *next)
{
    for (size_t i = 0; i < n; i++) {
        bool same = true;
        for (size_t k = 0; k < s->count; k++) same &= points[i * s->count + k] == next[k];
        if (same) return false;
    }
    return true;
}

/* The first point of a space that can be counted which was not tried. */
static bool first_new(const tr_sweep_space *s, size_t n, const double *points, double *next)
{
    const size_t size = tr_sweep_space_size(s);
    for (size_t i = 0; size <= LISTED && i < size; i++) {
        tr_sweep_space_at(s, i, next);
        if (is_new(s, n, points, next)) return true;
    }
    return false;
}

tr_status tr_search_next(const tr_sweep_space *s, uint64_t seed, size_t n, const double *points,
                         const tr_search_result *results, double *next, bool *found)
{
    tr_status st = TR_OK;
    size_t count = 0;
    bool *parents = NULL;
    uint64_t index;
    const bool samples = is_sample(s, n, &index);
    *found = true;
    for (uint64_t k = 0; samples && k < ANYWHERE; k++) {
        sample(s, seed, 1 + index + k * APART, next);
        if (is_new(s, n, points, next)) goto out;
    }
    if (!samples) {
        parents = tr_alloc(TR_MEM_OTHER, n, sizeof *parents);
        TR_HAVE(parents);
        TR_TRY(find_parents(n, results, parents, &count));
    }
    for (uint64_t k = 0; k < LOCAL + ANYWHERE; k++) {
        dice d = {.seed = seed, .trial = (uint32_t)n, .attempt = k};
        if (count > 0 && k < LOCAL)
            move_from(s, points + choose_parent(n, results, parents, count, &d) * s->count, &d,
                      next);
        else
            for (size_t i = 0; i < s->count; i++) next[i] = from_unit(&s->axes[i], throw_unit(&d));
        if (is_new(s, n, points, next)) goto out;
    }
    *found = first_new(s, n, points, next);
out:
    tr_free(parents);
    return st;
}
