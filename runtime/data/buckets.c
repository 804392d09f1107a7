/* Buckets of samples by length. The epoch's order: all buckets one behind the other in a circle,
 * each in an order of its own; the first step begins at a place of the circle that is drawn, the
 * next ones follow; then whole steps are dealt out in another order. So but for a few steps at the
 * borders each has samples of one bucket. */
#include "runtime/data/buckets.h"

#include <inttypes.h>
#include <string.h>

/* Of the keyed permutations of an epoch: beside tr_permute(seed, epoch, ...), which orders samples
 * without buckets. */
enum { STEPS = 1, START, BUCKET };
static uint64_t key_of(uint64_t seed, uint32_t what)
{
    return tr_philox_key(seed, TR_RNG_SHUFFLE, what);
}

/* Of a sample, over all inputs: what their sources know, and the model's inputs of lengths say. */
static tr_status longest(const tr_dataset *d, const tr_model *m, uint64_t i, double *out)
{
    char scratch[8]; /* an element */
    const void *raw;
    tr_status st = TR_OK;
    *out = 0;
    for (size_t k = 0; k < m->ninputs; k++) {
        tr_array *a = d->inputs[k];
        double n = 0;
        if (a->rows) {
            n = (double)a->rows(a, i);
        } else if (m->inputs[k].lengths) {
            TR_TRY(tr_array_at(a, i, scratch, &raw));
            n = tr_elem_value(a->elem, raw, 0);
        }
        if (!(n <= *out)) *out = n; /* what is no length fails where batches are made */
    }
out:
    return st;
}

static tr_status check_count(const tr_config *c, const tr_dataset *d)
{
    if (d->samples <= UINT32_MAX) return TR_OK;
    return tr_config_fail(c, "data.buckets",
                          "%s has %" PRIu64 " samples, expected at most %" PRIu32
                          ": leave data.buckets out, or set data.shuffle: false",
                          tr_dataset_name(d), d->samples, UINT32_MAX);
}

static tr_status check_known(const tr_config *c, const tr_dataset *d, const tr_model *m)
{
    for (size_t k = 0; k < m->ninputs; k++)
        if (d->inputs[k]->rows || m->inputs[k].lengths) return TR_OK;
    return tr_config_fail(
        c, "data.buckets",
        "%s does not say how long its samples are: expected `documents` of a text or of tokens, or "
        "an input of the model that is its layers' lengths",
        tr_dataset_name(d));
}

static tr_status sort(tr_buckets *b, size_t *held)
{
    tr_status st = TR_OK;
    uint64_t at[TR_LIST_MAX + 2] = {0};
    TR_HAVE(b->list = tr_alloc(TR_MEM_IO, (size_t)b->samples, sizeof *b->list));
    *held += (size_t)b->samples * sizeof *b->list;
    for (uint64_t i = 0; i < b->samples; i++) b->begin[b->of[i] + 1]++;
    for (size_t k = 0; k < b->n; k++) b->begin[k + 1] += b->begin[k];
    memcpy(at, b->begin, sizeof at);
    for (uint64_t i = 0; i < b->samples; i++) b->list[at[b->of[i]]++] = (uint32_t)i;
out:
    return st;
}

tr_status tr_buckets_open(const tr_config *c, tr_dataset *d, const tr_model *m, bool shuffles,
                          tr_buckets *out, size_t *held)
{
    tr_status st = TR_OK;
    tr_buckets b = {.n = m->nshorter + 1, .samples = d->samples};
    size_t shortest = m->nshorter;
    TR_TRY(check_known(c, d, m));
    if (shuffles) TR_TRY(check_count(c, d));
    for (size_t k = 0; k < m->nshorter; k++) b.rows[k] = m->shorter[k]->inputs[0].dims[0];
    b.rows[m->nshorter] = m->inputs[0].dims[0];
    TR_HAVE(b.of = tr_alloc(TR_MEM_IO, (size_t)b.samples, sizeof *b.of));
    *held += (size_t)b.samples * sizeof *b.of;
    for (uint64_t i = 0; i < b.samples; i++) {
        double length;
        TR_TRY(longest(d, m, i, &length));
        size_t k = 0;
        while (k + 1 < b.n && !(length <= (double)b.rows[k])) k++;
        b.of[i] = (uint8_t)k;
        if (k < shortest) shortest = k;
    }
    b.idle = b.n > 1 && shortest + 1 == b.n;
    if (shuffles) TR_TRY(sort(&b, held));
out:
    if (st != TR_OK) {
        tr_buckets_close(&b);
        return st;
    }
    *out = b;
    return TR_OK;
}

void tr_buckets_close(tr_buckets *b)
{
    tr_free(b->of);
    tr_free(b->list);
    *b = (tr_buckets){0};
}

/* The place of the circle; those of a step lie one behind the other. */
static uint64_t circle_at(const tr_buckets *b, uint64_t seed, uint64_t epoch, uint64_t batch,
                          uint64_t place)
{
    const uint64_t whole = b->samples / batch, step = place / batch;
    const uint64_t start = tr_permute(key_of(seed, START), epoch, b->samples, 0);
    const uint64_t dealt =
        step < whole ? tr_permute(key_of(seed, STEPS), epoch, whole, step) : step;
    return (start + dealt * batch + place % batch) % b->samples;
}

static size_t bucket_at(const tr_buckets *b, uint64_t at)
{
    size_t k = 0;
    while (at >= b->begin[k + 1]) k++;
    return k;
}

uint64_t tr_buckets_sample(const tr_buckets *b, uint64_t seed, uint64_t epoch, uint64_t batch,
                           uint64_t place)
{
    const uint64_t at = circle_at(b, seed, epoch, batch, place);
    const size_t k = bucket_at(b, at);
    const uint64_t n = b->begin[k + 1] - b->begin[k];
    return b->list[b->begin[k] +
                   tr_permute(key_of(seed, BUCKET + (uint32_t)k), epoch, n, at - b->begin[k])];
}

size_t tr_buckets_longest(const tr_buckets *b, uint64_t seed, uint64_t epoch, uint64_t batch,
                          tr_range step)
{
    size_t most = 0;
    const uint64_t at = b->list ? circle_at(b, seed, epoch, batch, step.begin) : step.begin;
    for (uint64_t i = 0; i < tr_range_count(step) && most + 1 < b->n; i++) {
        const size_t of = b->list ? bucket_at(b, (at + i) % b->samples) : b->of[at + i];
        if (of > most) most = of;
    }
    return most;
}
