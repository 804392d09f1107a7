/* Which id comes next. Probabilities are softmax(logits / temperature); top_k and top_p leave some out, and the others are
 * drawn from in proportion. Without them, in the order of ids; with them, in that of probabilities, equal ones by id.
 * Sorted are only those that can be in: top_k's are found by a heap, and of an id with less than (1 - top_p) / n all that
 * are no more probable together have less than 1 - top_p. */
#include "optimize/sample/sample.h"

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

/* The last one of all stands first: a heap of k, below which place i does not come before any of its children. */
static void sink(tr_candidate *heap, size_t k, size_t i)
{
    const tr_candidate moved = heap[i];
    for (size_t child = 2 * i + 1; child < k; i = child, child = 2 * i + 1) {
        if (child + 1 < k && before(&heap[child], &heap[child + 1])) child++;
        if (!before(&moved, &heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* The k that come first of n, in no order, to the beginning. */
static void keep_first(tr_candidate *c, size_t n, size_t k)
{
    for (size_t i = k / 2; i-- > 0;) sink(c, k, i);
    for (size_t i = k; i < n; i++) {
        if (!before(&c[i], &c[0])) continue;
        c[0] = c[i];
        sink(c, k, 0);
    }
}

static double sum_of(const tr_candidate *c, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)c[i].weight;
    return sum;
}

/* Sorts those that can be in the nucleus; returns how many are. */
static size_t nucleus(tr_candidate *c, size_t n, double top_p)
{
    const double all = sum_of(c, n), least = (1 - top_p) / (double)n * all * (1 - 1e-9);
    size_t some = 0, in = 0;
    for (size_t i = 0; i < n; i++)
        if ((double)c[i].weight >= least) c[some++] = c[i];
    qsort(c, some, sizeof *c, by_weight);
    for (double sum = 0; in < some && sum < top_p * all; in++) sum += (double)c[in].weight;
    return in > 0 ? in : 1;
}

int32_t tr_choose(const tr_choice *c, const float *logits, size_t n, double uniform,
                  tr_candidate *room)
{
    const int32_t best = largest(logits, n);
    size_t left = n;
    if (best < 0 || c->temperature == 0) return best;
    for (size_t i = 0; i < n; i++) {
        const double less = (double)logits[i] - (double)logits[best];
        room[i] = (tr_candidate){(float)exp(less / c->temperature), (int32_t)i};
    }
    if (c->top_k > 0 && (uint64_t)c->top_k < left) {
        left = (size_t)c->top_k;
        keep_first(room, n, left);
        qsort(room, left, sizeof *room, by_weight);
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
