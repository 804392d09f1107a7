/* Weights on their way to ranks that do not own them.
 *
 * In mixed precision kernels read the weights of convolutions and linear layers as copies of 16
 * bits, rounded from the float32 master. A rank that does not own a range needs no more than these
 * values: its owner rounds, the others widen, and rounding what was widened gives the same copy
 * again. The master stays with its owner, from where checkpoints have it (collect.c).
 *
 * Rounding is to nearest even, as in the kernels. Values below 2^-126, which some processors take
 * for zero when they make a bfloat16, are the one place where two roundings could differ: by less
 * than that. */
#include "collectives/reducer/reducer.h"

#include <string.h>

/* The first rounded range that ends behind `at`. */
static size_t find(const tr_params_options *p, size_t at)
{
    size_t lo = 0, hi = p->nrounded;
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (p->rounded[mid].end > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

void tr_wire_runs(const tr_params_options *p, tr_range range, tr_wire_run *f, void *ctx)
{
    size_t at = range.begin;
    for (size_t i = find(p, at); i < p->nrounded && p->rounded[i].begin < range.end; i++) {
        const tr_range run = tr_range_common(p->rounded[i], range);
        if (at < run.begin) f(ctx, (tr_range){at, run.begin}, false);
        f(ctx, run, true);
        at = run.end;
    }
    if (at < range.end) f(ctx, (tr_range){at, range.end}, false);
}

static size_t bytes_of(tr_range run, bool rounded)
{
    return tr_range_count(run) * (rounded ? sizeof(tr_bf16) : sizeof(float));
}

static void add_bytes(void *ctx, tr_range run, bool rounded)
{
    *(size_t *)ctx += bytes_of(run, rounded);
}

size_t tr_wire_nbytes(const tr_params_options *p, tr_range range)
{
    size_t nbytes = 0;
    tr_wire_runs(p, range, add_bytes, &nbytes);
    return nbytes;
}

typedef struct {
    tr_dtype type;
    const float *from;
    float *to;
    char *wire; /* the next run's */
} way;

static void pack(void *ctx, tr_range run, bool rounded)
{
    way *w = ctx;
    const size_t n = tr_range_count(run);
    const float *from = w->from + run.begin;
    if (!rounded)
        memcpy(w->wire, from, n * sizeof(float));
    else if (w->type == TR_BF16)
        tr_sum_to_bf16((tr_bf16 *)(void *)w->wire, from, n);
    else
        for (size_t i = 0; i < n; i++) ((tr_f16 *)(void *)w->wire)[i] = tr_f32_to_f16(from[i]);
    w->wire += bytes_of(run, rounded);
}

static void unpack(void *ctx, tr_range run, bool rounded)
{
    way *w = ctx;
    const size_t n = tr_range_count(run);
    float *to = w->to + run.begin;
    if (!rounded)
        memcpy(to, w->wire, n * sizeof(float));
    else if (w->type == TR_BF16)
        tr_sum_from_bf16(to, (const tr_bf16 *)(const void *)w->wire, n);
    else
        for (size_t i = 0; i < n; i++)
            to[i] = tr_f16_to_f32(((const tr_f16 *)(const void *)w->wire)[i]);
    w->wire += bytes_of(run, rounded);
}

void tr_wire_pack(const tr_params_options *p, const float *weights, tr_range range, void *to)
{
    way w = {.type = p->type, .from = weights, .wire = to};
    tr_wire_runs(p, range, pack, &w);
}

void tr_wire_unpack(const tr_params_options *p, float *weights, tr_range range, const void *from)
{
    way w = {.type = p->type, .to = weights, .wire = (char *)from};
    tr_wire_runs(p, range, unpack, &w);
}
