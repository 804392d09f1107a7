/* Which id comes next. Probabilities are softmax(logits / temperature); top_k and top_p leave some
 * out, and the others are drawn from in proportion. Without them, in the order of ids; with them,
 * in that of probabilities, equal ones by id. Nothing is sorted but what is kept. top_k: a heap of
 * k logits finds the k-th; the exponential is taken only of logits that can be among the k largest.
 * top_p keeps the shortest list of most probable ids whose probabilities add up to at least top_p:
 * a heap hands them out one by one until they do. Ids of a probability below (1 - top_p) / n do not
 * enter the heap: all n of such a size would add up to less than 1 - top_p, so that the others have
 * reached top_p before. */
#include "optimize/sample/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static int32_t largest(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 0; i < n; i++) {
        if (isnan(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return logits[best] == -INFINITY ? -1 : (int32_t)best;
}

/* a comes before b: it weighs more, or is the first of equal ones. */
static bool before(const tr_candidate *a, const tr_candidate *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->id < b->id);
}

static int by_weight(const void *a, const void *b)
{
    return before(a, b) ? -1 : 1;
}

static bool behind(const tr_candidate *a, const tr_candidate *b)
{
    return before(b, a);
}

/* A heap of k: no child is `above` its parent. That at place i moves down to where it belongs. */
static inline void sink(tr_candidate *heap, size_t k, size_t i,
                        bool (*above)(const tr_candidate *, const tr_candidate *))
{
    const tr_candidate moved = heap[i];
    for (size_t child = 2 * i + 1; child < k; i = child, child = 2 * i + 1) {
        if (child + 1 < k && above(&heap[child + 1], &heap[child])) child++;
        if (!above(&heap[child], &moved)) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* The k that come first of n, to the beginning: the last of them stands first. */
static void keep_first(tr_candidate *c, size_t n, size_t k)
{
    for (size_t i = k / 2; i-- > 0;) sink(c, k, i, behind);
    for (size_t i = k; i < n; i++) {
        if (!before(&c[i], &c[0])) continue;
        c[0] = c[i];
        sink(c, k, 0, behind);
    }
}

static double sum_of(const tr_candidate *c, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)c[i].weight;
    return sum;
}

/* top_p: moves the ids that it keeps to the beginning, the most probable first, and returns how
 * many they are. */
static size_t nucleus(tr_candidate *c, size_t n, double top_p)
{
    const double all = sum_of(c, n), least = (1 - top_p) / (double)n * all * (1 - 1e-9);
    size_t some = 0, left;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if ((double)c[i].weight >= least) c[some++] = c[i];
    if (some == 0) return 1; /* weights that are no numbers: beside an infinite logit */
    for (size_t i = some / 2; i-- > 0;) sink(c, some, i, before);
    left = some;
    do { /* the first of those that are left goes behind them */
        const tr_candidate first = c[0];
        c[0] = c[--left];
        c[left] = first;
        sink(c, left, 0, before);
        sum += (double)first.weight;
    } while (left > 0 && sum < top_p * all);
    for (size_t i = 0, k = some - 1; i < k; i++, k--) {
        const tr_candidate swapped = c[i];
        c[i] = c[k];
        c[k] = swapped;
    }
    return some - left;
}

static float weight_of(const tr_choice *c, float logit, float best)
{
    return (float)exp(((double)logit - (double)best) / c->temperature);
}

/* Weights of those that can be among the k most probable ones, in the order of ids; returns how
 * many they are. Different logits may round to the same weight, where ids decide: none less than
 * 2^-20 below the k-th is left out. */
static size_t weigh_first(const tr_choice *c, const float *logits, size_t n, float best, size_t k,
                          tr_candidate *room)
{
    size_t some = 0;
    for (size_t i = 0; i < n; i++) room[i] = (tr_candidate){logits[i], (int32_t)i};
    keep_first(room, n, k);
    double least = (double)room[0].weight - c->temperature * 0x1p-20;
    if (weight_of(c, room[0].weight, best) < 4 * FLT_MIN) least = -INFINITY; /* less precise */
    for (size_t i = 0; i < n; i++)
        if ((double)logits[i] >= least)
            room[some++] = (tr_candidate){weight_of(c, logits[i], best), (int32_t)i};
    return some;
}

int32_t tr_choose(const tr_choice *c, const float *logits, size_t n, double uniform,
                  tr_candidate *room)
{
    const int32_t best = largest(logits, n);
    size_t left = n;
    if (best < 0 || c->temperature == 0) return best;
    if (c->top_k > 0 && (uint64_t)c->top_k < left) {
        left = (size_t)c->top_k;
        keep_first(room, weigh_first(c, logits, n, logits[best], left, room), left);
        qsort(room, left, sizeof *room, by_weight);
    } else {
        for (size_t i = 0; i < n; i++)
            room[i] = (tr_candidate){weight_of(c, logits[i], logits[best]), (int32_t)i};
    }
    if (c->top_p < 1) left = nucleus(room, left, c->top_p);
    double at = uniform * sum_of(room, left);
    for (size_t i = 0; i < left; i++) {
        at -= (double)room[i].weight;
        if (at < 0) return room[i].id;
    }
    for (size_t i = left; i-- > 0;) /* rounding: the last one that can be */
        if (room[i].weight > 0) return room[i].id;
    return best;
}
