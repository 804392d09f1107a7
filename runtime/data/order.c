/* How an epoch is cut into steps, micro-batches and rank shares: pure arithmetic that every rank
 * does for itself. Ten samples, batch 7, two micro-batches, three ranks:
 *
 *     step 0   micro-batch 0: 0 1 2 3   ranks: 0 1 | 2 | 3
 *              micro-batch 1: 4 5 6            4 | 5 | 6
 *     step 1   micro-batch 0: 7 8 9            7 | 8 | 9
 *              micro-batch 1: none */
#include "runtime/data/data.h"

uint64_t tr_steps_per_epoch(uint64_t samples, int64_t batch, bool drop_last)
{
    uint64_t b = (uint64_t)batch;
    return samples / b + (!drop_last && samples % b != 0);
}

/* Part k of n parts of `span`: sizes differ by at most one, larger first. */
static tr_range part(tr_range span, uint64_t n, uint64_t k)
{
    uint64_t count = span.end - span.begin, q = count / n, r = count % n;
    uint64_t begin = span.begin + k * q + (k < r ? k : r);
    return (tr_range){begin, begin + q + (k < r)};
}

/* Groups that a step of `count` samples is dealt to: all, if it is not short. */
static uint64_t groups(uint64_t count, int64_t batch, int micro_batches)
{
    const uint64_t b = (uint64_t)batch, n = (uint64_t)micro_batches, most = b / n + (b % n != 0);
    if (count == b) return n;
    return count > most ? count / most + (count % most != 0) : 1;
}

tr_range tr_share(uint64_t samples, int64_t batch, uint64_t step_in_epoch, int micro_batches,
                  int micro, int rank, int size)
{
    uint64_t b = (uint64_t)batch;
    tr_range step = {samples, samples};
    if (step_in_epoch <= samples / b) {
        step.begin = step_in_epoch * b;
        if (samples - step.begin > b) step.end = step.begin + b;
    }
    const uint64_t n = groups(step.end - step.begin, batch, micro_batches);
    if ((uint64_t)micro >= n) return (tr_range){step.end, step.end};
    return part(part(step, n, (uint64_t)micro), (uint64_t)size, (uint64_t)rank);
}

int tr_share_sizes(uint64_t samples, int64_t batch, int micro_batches, int rank, int size,
                   bool drop_last, int64_t sizes[8])
{
    /* Steps before the last are full, and so like the first. A rank's sizes are
     *   of a full step: at most two, those of its first and its last group, one sample apart;
     *   of a last step that is short: at most two likewise, and 0 where its last groups are empty;
     * five at most. All show in three groups of the first and of the last step: the first one, the
     * last that is not empty, and the last of all. */
    const uint64_t steps = tr_steps_per_epoch(samples, batch, drop_last), b = (uint64_t)batch;
    int n = 0;
    for (int k = 0; k < 6 && steps > 0; k++) {
        const uint64_t step = k / 3 ? steps - 1 : 0, left = samples - step * b;
        const int last = (int)groups(left < b ? left : b, batch, micro_batches) - 1;
        const int micros[] = {0, last, micro_batches - 1};
        tr_range s = tr_share(samples, batch, step, micro_batches, micros[k % 3], rank, size);
        int64_t count = (int64_t)(s.end - s.begin);
        int at = 0;
        while (at < n && sizes[at] > count) at++;
        if (at < n && sizes[at] == count) continue;
        for (int m = n; m > at; m--) sizes[m] = sizes[m - 1];
        sizes[at] = count;
        n++;
    }
    return n;
}
