/* The loader: a ring of slots, each one micro-batch, filled in order by whichever worker comes next
 * and handed out in order. Micro-batch number q (counted from the last seek) always goes to slot q
 * % slots and depends on nothing but q, so the number of workers cannot change what comes out.
 *
 *     taken    the caller holds this one and gives it back with its next call
 *     claimed  the next number a worker takes, while claimed < taken + slots
 *
 * One mutex, held only to claim, to finish and to wait. With no workers the caller prepares. */
#include "runtime/data/loader.h"

#include <inttypes.h>
#include <string.h>

/* Which samples micro-batch q is. */
typedef struct {
    uint64_t step, epoch;
    int micro;
    tr_range places;
} piece;

typedef struct {
    uint64_t i, ordinal;
} sample;

/* What is at a place of an epoch. */
static sample sample_at(const tr_loader *l, uint64_t epoch, uint64_t place)
{
    const uint64_t i =
        !l->shuffle    ? place
        : l->buckets.n ? tr_buckets_sample(&l->buckets, l->seed, epoch, (uint64_t)l->batch, place)
                       : tr_permute(l->seed, epoch, l->samples, place);
    return (sample){i, epoch * l->samples + place};
}

uint64_t tr_loader_sample(const tr_loader *l, uint64_t ordinal)
{
    return sample_at(l, ordinal / l->samples, ordinal % l->samples).i;
}

/* Of the longest sample of a step, over all ranks and micro-batches: the same for all of these. */
static size_t bucket_of(const tr_loader *l, uint64_t step, uint64_t epoch)
{
    if (l->buckets.n == 0) return 0;
    const tr_range places = tr_share(l->samples, l->batch, step % l->steps, 1, 0, 0, 1);
    return tr_buckets_longest(&l->buckets, l->seed, epoch, (uint64_t)l->batch, places);
}

static piece piece_at(const tr_loader *l, uint64_t start, uint64_t q)
{
    piece p = {.step = start + q / (uint64_t)l->micro_batches,
               .micro = (int)(q % (uint64_t)l->micro_batches)};
    p.epoch = p.step / l->steps;
    p.places = tr_share(l->samples, l->batch, p.step % l->steps, l->micro_batches, p.micro, l->rank,
                        l->size);
    return p;
}

/* In training as chance has it. */
static tr_status take_input(const tr_loader *l, const worker *w, int k, sample x, void *to)
{
    tr_array *a = l->dataset->inputs[k];
    const void *raw = w->raw;
    tr_status st = l->train && a->draw ? a->draw(a, x.i, l->seed, x.ordinal, w->raw)
                                       : tr_array_at(a, x.i, w->raw, &raw);
    if (st != TR_OK) return st;
    if (l->prepare.in[k].ids > 0) return tr_prepare_ids(&l->prepare, k, a, raw, x.i, to);
    tr_prepare_sample(&l->prepare, k, a->elem, raw, x.ordinal, w->scratch, to);
    return TR_OK;
}

static tr_status take_target(const tr_loader *l, const worker *w, sample x, void *to)
{
    const void *raw;
    const tr_status st = tr_array_at(l->dataset->targets, x.i, w->raw, &raw);
    return st == TR_OK ? tr_targets_prepare(l->dataset, raw, x.i, w->scratch, to) : st;
}

static tr_status take_weight(const tr_loader *l, const worker *w, sample x, float *to)
{
    const tr_dataset *d = l->dataset;
    const void *raw;
    *to = 1;
    if (!d->weights) return TR_OK;
    const tr_status st = tr_array_at(d->weights, x.i, w->raw, &raw);
    return st == TR_OK ? tr_weights_convert(d, raw, x.i, 1, to) : st;
}

/* ---- Mixing ---------------------------------------------------------------------------------- */

static tr_status mix_input(const tr_loader *l, const worker *w, int k, const tr_mix *mix, sample x,
                           sample partner, void *to)
{
    float *own = l->dtype == TR_F32 ? to : w->own;
    tr_status st;
    TR_TRY(take_input(l, w, k, x, own));
    if (mix->kind != TR_MIX_NONE) {
        TR_TRY(take_input(l, w, k, partner, w->other));
        tr_mix_input(mix, &l->prepare, k, own, w->other);
    }
    if (l->dtype != TR_F32) tr_round_to(l->dtype, own, l->prepare.in[k].count, to);
out:
    return st;
}

/* Adds `share` of a sample's probabilities; of a class label it is all its class's. */
static tr_status add_target(const tr_loader *l, const worker *w, sample x, float share, float *to)
{
    int32_t label = 0;
    const tr_status st = take_target(l, w, x, l->dataset->labels ? (void *)&label : w->other);
    if (st != TR_OK) return st;
    if (l->dataset->labels)
        to[label] += share;
    else
        for (size_t k = 0; k < l->target_count; k++) to[k] += share * w->other[k];
    return TR_OK;
}

static tr_status mix_target(const tr_loader *l, const worker *w, const tr_mix *mix, sample x,
                            sample partner, float *to)
{
    tr_status st;
    memset(to, 0, l->target_count * sizeof *to);
    TR_TRY(add_target(l, w, x, mix->share, to));
    if (mix->kind != TR_MIX_NONE) st = add_target(l, w, partner, 1 - mix->share, to);
out:
    return st;
}

/* The place of the epoch whose sample is mixed into that at `place`, of the whole global step. */
static uint64_t partner_of(const tr_loader *l, const piece *p, uint64_t place)
{
    const tr_range step = tr_share(l->samples, l->batch, p->step % l->steps, 1, 0, 0, 1);
    return step.begin + tr_mix_partner(l->seed, p->step, tr_range_count(step), place - step.begin);
}

/* Labels of rows that are cut off must not count. */
static tr_status check_cut(const tr_loader *l, sample x, const void *target, size_t kept)
{
    const int32_t *labels = target;
    char where[512];
    for (size_t k = kept; k < l->target_count; k++) {
        if (labels[k] == l->dataset->ignore_index) continue;
        tr_array_where(l->dataset->targets, x.i, where, sizeof where);
        return TR_FAIL(TR_DATA,
                       "%s: element %zu: label %" PRId32 ", expected %" PRId32
                       " (ignore_index) behind "
                       "the sample's end (data.buckets)",
                       where, k, labels[k], l->dataset->ignore_index);
    }
    return TR_OK;
}

static tr_status fill(tr_loader *l, worker *w, slot *s, const piece *p)
{
    const bool mixes = l->prepare.mixing.on;
    const tr_mix mix = tr_mix_draw(&l->prepare.mixing, l->seed, p->step);
    const size_t bucket = bucket_of(l, p->step, p->epoch);
    const kept_of *kept = &l->kept[bucket];
    tr_status st = TR_OK;
    s->rows = bucket + 1 < l->buckets.n ? l->buckets.rows[bucket] : 0;
    for (uint64_t place = p->places.begin; place < p->places.end; place++) {
        const size_t at = (size_t)(place - p->places.begin);
        const sample x = sample_at(l, p->epoch, place);
        const sample other = mixes ? sample_at(l, p->epoch, partner_of(l, p, place)) : x;
        for (int k = 0; k < l->prepare.ninputs; k++) {
            /* what a bucket cuts off is written over by the next sample */
            void *to = (char *)s->inputs[k] + at * kept->inputs[k] * l->prepare.in[k].size;
            TR_TRY(mixes ? mix_input(l, w, k, &mix, x, other, to) : take_input(l, w, k, x, to));
        }
        if (!l->dataset->targets) continue;
        float *target = (float *)s->targets + at * kept->target;
        TR_TRY(mixes ? mix_target(l, w, &mix, x, other, target) : take_target(l, w, x, target));
        if (kept->target < l->target_count) TR_TRY(check_cut(l, x, target, kept->target));
        if (s->weights) TR_TRY(take_weight(l, w, x, &s->weights[at]));
    }
out:
    return st;
}

/* Prepares q in its slot. */
static void produce(tr_loader *l, worker *w, uint64_t start, uint64_t q)
{
    slot *s = &l->slots[q % l->nslots];
    piece p = piece_at(l, start, q);
    s->failed = fill(l, w, s, &p) != TR_OK;
    if (s->failed) s->error = *tr_last_error();
}

void *tr_loader_work(void *arg)
{
    worker *w = arg;
    tr_loader *l = w->loader;
    pthread_mutex_lock(&l->mutex);
    for (;;) {
        while (!l->stop &&
               !(l->started && l->claimed < l->total && l->claimed - l->taken < l->nslots))
            pthread_cond_wait(&l->work, &l->mutex);
        if (l->stop) break;
        uint64_t q = l->claimed++, start = l->start;
        l->busy++;
        pthread_mutex_unlock(&l->mutex);
        produce(l, w, start, q);
        pthread_mutex_lock(&l->mutex);
        l->slots[q % l->nslots].done = q + 1;
        l->busy--;
        pthread_cond_broadcast(&l->ready);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

/* ---- Running -------------------------------------------------------------------------------- */

/* Under the mutex. */
static void restart(tr_loader *l, uint64_t step)
{
    l->started = false; /* nothing new is claimed while the busy finish what seek makes useless */
    while (l->busy > 0) pthread_cond_wait(&l->ready, &l->mutex);
    for (size_t i = 0; i < l->nslots; i++) l->slots[i].done = 0;
    l->start = step;
    l->claimed = l->taken = 0;
    l->handed = false;
    l->total = l->train
                   ? UINT64_MAX
                   : (l->steps - (step < l->steps ? step : l->steps)) * (uint64_t)l->micro_batches;
    l->started = true;
    pthread_cond_broadcast(&l->work);
}

tr_status tr_loader_seek(tr_loader *l, uint64_t step)
{
    if (!l->train && step > l->steps)
        return TR_FAIL(TR_INTERNAL, "evaluation step %" PRIu64 " of %" PRIu64, step, l->steps);
    pthread_mutex_lock(&l->mutex);
    restart(l, step);
    pthread_mutex_unlock(&l->mutex);
    return TR_OK;
}

tr_status tr_loader_next(tr_loader *l, tr_batch *out)
{
    double began = tr_now();
    *out = (tr_batch){0};
    pthread_mutex_lock(&l->mutex);
    if (!l->started) restart(l, 0);
    slot *s = &l->slots[l->taken % l->nslots];
    if (l->handed && !s->failed) {
        l->handed = false;
        l->taken++;
        pthread_cond_broadcast(&l->work);
        s = &l->slots[l->taken % l->nslots];
    }
    uint64_t q = l->taken;
    if (q >= l->total) {
        pthread_mutex_unlock(&l->mutex);
        out->step = l->steps;
        return TR_OK;
    }
    if (l->nworkers == 0 && s->done != q + 1) {
        l->claimed = q + 1;
        produce(l, &l->workers[0], l->start, q);
        s->done = q + 1;
    }
    while (s->done != q + 1) pthread_cond_wait(&l->ready, &l->mutex);
    l->handed = true;
    uint64_t start = l->start;
    pthread_mutex_unlock(&l->mutex);
    out->waited = tr_now() - began;
    if (s->failed) {
        tr_set_error(&s->error);
        return s->error.status;
    }

    piece p = piece_at(l, start, q);
    out->step = p.step;
    out->epoch = p.epoch;
    out->micro = p.micro;
    out->ordinal = p.epoch * l->samples + p.places.begin;
    out->count = (int64_t)(p.places.end - p.places.begin);
    out->rows = s->rows;
    for (int k = 0; k < l->prepare.ninputs; k++) out->inputs[k] = s->inputs[k];
    out->targets = s->targets;
    out->weights = s->weights;
    return TR_OK;
}

uint64_t tr_loader_steps_per_epoch(const tr_loader *l)
{
    return l->steps;
}

size_t tr_loader_held(const tr_loader *l)
{
    return l->held;
}
