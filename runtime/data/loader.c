/* The loader: a ring of slots, each one micro-batch, filled in order by whichever worker comes next
 * and handed out in order. Micro-batch number q (counted from the last seek) always goes to slot q
 * % slots and depends on nothing but q, so the number of workers cannot change what comes out.
 *
 *     taken    the caller holds this one and gives it back with its next call
 *     claimed  the next number a worker takes, while claimed < taken + slots
 *
 * One mutex, held only to claim, to finish and to wait. With no workers the caller prepares. */
#include "runtime/data/mix.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

typedef struct {
    void *inputs[TR_MAX_IN];
    void *targets;
    float *weights;
    uint64_t done; /* q + 1 of the micro-batch it holds; 0: none */
    bool failed;
    tr_error error;
} slot;

/* A worker's own buffers */
typedef struct {
    tr_loader *loader;
    pthread_t thread;
    void *raw;
    float *scratch;
    float *own, *other; /* a sample before it is rounded and what is mixed into it; NULL: none is */
} worker;

struct tr_loader {
    tr_dataset *dataset;
    const tr_backend *backend;
    void *backend_ctx;
    tr_prepare prepare;
    bool train, shuffle, drop_last;
    uint64_t seed, samples, steps;
    int64_t batch;
    int micro_batches, rank, size;
    tr_dtype dtype;      /* of inputs in slots */
    size_t target_count; /* elements of a sample's target in slots */
    size_t held;

    size_t nslots;
    slot *slots;
    int nworkers, running; /* running: threads that were started */
    worker *workers;       /* at least one, for its buffers */

    pthread_mutex_t mutex;
    pthread_cond_t work,
        ready; /* work: something to claim, or stop; ready: a slot or a worker is done */
    /* under the mutex */
    bool started, stop;
    uint64_t start;          /* global step of q = 0 */
    uint64_t claimed, taken; /* see above */
    uint64_t total; /* evaluation: micro-batches from start to the end; training: UINT64_MAX */
    bool handed;    /* the caller holds `taken` */
    int busy;
};

/* Which samples micro-batch q is. */
typedef struct {
    uint64_t step, epoch;
    int micro;
    tr_range places;
} piece;

static piece piece_at(const tr_loader *l, uint64_t start, uint64_t q)
{
    piece p = {.step = start + q / (uint64_t)l->micro_batches,
               .micro = (int)(q % (uint64_t)l->micro_batches)};
    p.epoch = p.step / l->steps;
    p.places = tr_share(l->samples, l->batch, p.step % l->steps, l->micro_batches, p.micro, l->rank,
                        l->size);
    return p;
}

/* What is at a place of an epoch. */
typedef struct {
    uint64_t i, ordinal;
} sample;

static sample sample_at(const tr_loader *l, uint64_t epoch, uint64_t place)
{
    return (sample){l->shuffle ? tr_permute(l->seed, epoch, l->samples, place) : place,
                    epoch * l->samples + place};
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

static tr_status fill(tr_loader *l, worker *w, slot *s, const piece *p)
{
    const bool mixes = l->prepare.mixing.on;
    const tr_mix mix = tr_mix_draw(&l->prepare.mixing, l->seed, p->step);
    tr_status st = TR_OK;
    for (uint64_t place = p->places.begin; place < p->places.end; place++) {
        const size_t at = (size_t)(place - p->places.begin);
        const sample x = sample_at(l, p->epoch, place);
        const sample other = mixes ? sample_at(l, p->epoch, partner_of(l, p, place)) : x;
        for (int k = 0; k < l->prepare.ninputs; k++) {
            void *to = (char *)s->inputs[k] + at * l->prepare.in[k].count * l->prepare.in[k].size;
            TR_TRY(mixes ? mix_input(l, w, k, &mix, x, other, to) : take_input(l, w, k, x, to));
        }
        if (!l->dataset->targets) continue;
        float *target = (float *)s->targets + at * l->target_count;
        TR_TRY(mixes ? mix_target(l, w, &mix, x, other, target) : take_target(l, w, x, target));
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

static void *work_loop(void *arg)
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

/* ---- Opening and closing --------------------------------------------------------------------- */

/* What the steps read: a device copies it from there. */
static void *take_batch(tr_loader *l, size_t count, size_t size)
{
    size_t nbytes;
    void *p = NULL;
    if (!tr_mul_size(count, size, &nbytes))
        (void)TR_FAIL(TR_MEMORY, "a micro-batch does not fit in memory");
    else
        p = l->backend ? l->backend->memory->host_alloc(l->backend_ctx, TR_MEM_IO, nbytes)
                       : tr_alloc(TR_MEM_IO, nbytes, 1);
    if (p) l->held += nbytes;
    return p;
}

static void give_batch(tr_loader *l, void *p)
{
    if (l->backend)
        l->backend->memory->host_free(l->backend_ctx, p);
    else
        tr_free(p);
}

static void *take(tr_loader *l, tr_mem_kind kind, size_t count, size_t size)
{
    void *p = tr_alloc(kind, count, size);
    if (p) l->held += count * size;
    return p;
}

static tr_status open_mixing(tr_loader *l, worker *w)
{
    tr_status st = TR_OK;
    const size_t most = l->prepare.scratch_count, n = l->target_count; /* most: of any input */
    TR_HAVE(w->other = take(l, TR_MEM_IO, most > n ? most : n, sizeof(float)));
    if (l->dtype != TR_F32) TR_HAVE(w->own = take(l, TR_MEM_IO, most, sizeof(float)));
out:
    return st;
}

static tr_status open_buffers(tr_loader *l)
{
    const tr_dataset *d = l->dataset;
    tr_status st = TR_OK;
    int64_t sizes[8] = {0};
    (void)tr_share_sizes(l->samples, l->batch, l->micro_batches, 0, l->size, l->drop_last, sizes);
    const size_t most = (size_t)sizes[0]; /* of rank 0, which has the largest shares */
    size_t raw = !d->targets || d->targets->held ? 1 : d->targets->nbytes, n;
    if (d->weights && raw < d->weights->nbytes) raw = d->weights->nbytes;
    size_t scratch = 2 * l->prepare.scratch_count;
    if (scratch < d->target_count) scratch = d->target_count;
    l->target_count = l->prepare.mixing.on && d->labels ? (size_t)d->classes : d->target_count;
    l->slots = tr_alloc(TR_MEM_OTHER, l->nslots, sizeof *l->slots);
    l->workers =
        tr_alloc(TR_MEM_OTHER, (size_t)(l->nworkers > 0 ? l->nworkers : 1), sizeof *l->workers);
    TR_HAVE(l->slots && l->workers);
    for (size_t i = 0; i < l->nslots; i++) {
        for (int k = 0; k < l->prepare.ninputs; k++) {
            TR_NEED(tr_mul_size(most, l->prepare.in[k].count, &n), TR_MEMORY,
                    "a micro-batch does not fit in memory");
            TR_HAVE(l->slots[i].inputs[k] = take_batch(l, n, l->prepare.in[k].size));
        }
        if (!d->targets) continue;
        TR_NEED(tr_mul_size(most, l->target_count, &n), TR_MEMORY,
                "a micro-batch does not fit in memory");
        TR_HAVE(l->slots[i].targets = take_batch(l, n, 4));
        if (d->weighted) TR_HAVE(l->slots[i].weights = take_batch(l, most, sizeof(float)));
    }
    for (size_t k = 0; k < d->ninputs; k++)
        if (!d->inputs[k]->held && d->inputs[k]->nbytes > raw) raw = d->inputs[k]->nbytes;
    for (int i = 0; i < (l->nworkers > 0 ? l->nworkers : 1); i++) {
        l->workers[i].loader = l;
        TR_HAVE(l->workers[i].raw = take(l, TR_MEM_IO, raw, 1));
        TR_HAVE(l->workers[i].scratch = take(l, TR_MEM_IO, scratch, sizeof(float)));
        if (l->prepare.mixing.on) TR_TRY(open_mixing(l, &l->workers[i]));
    }
out:
    return st;
}

/* A loader that cannot bind its threads works all the same. */
static void bind(pthread_t thread, const int *cpus, size_t ncpus)
{
    int highest = 0, err = EINVAL;
    for (size_t i = 0; i < ncpus; i++) highest = cpus[i] > highest ? cpus[i] : highest;
    cpu_set_t *set = CPU_ALLOC(highest + 1);
    size_t size = CPU_ALLOC_SIZE(highest + 1);
    if (set) {
        CPU_ZERO_S(size, set);
        for (size_t i = 0; i < ncpus; i++)
            if (cpus[i] >= 0) CPU_SET_S(cpus[i], size, set);
        err = pthread_setaffinity_np(thread, size, set);
        CPU_FREE(set);
    }
    if (err) tr_log(TR_LOG_WARN, "loader threads could not be bound to cores: %s", strerror(err));
}

static tr_status start_threads(tr_loader *l, const tr_loader_options *o)
{
    /* signals are for the main thread, which agrees on what they mean */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = 0;
    while (l->running < l->nworkers && err == 0) {
        worker *w = &l->workers[l->running];
        err = pthread_create(&w->thread, NULL, work_loop, w);
        if (err) break;
        l->running++;
        if (o->cpus && o->ncpus) bind(w->thread, o->cpus, o->ncpus);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err ? TR_FAIL(TR_IO, "a loader thread could not be started: %s", strerror(err)) : TR_OK;
}

tr_status tr_loader_open(const tr_loader_options *o, tr_loader **out)
{
    tr_status st = TR_OK;
    const tr_config *c = o->config;
    if (o->batch < 1 || o->micro_batches < 1 || o->size < 1 || o->rank < 0 || o->rank >= o->size)
        return TR_FAIL(TR_INTERNAL,
                       "a loader for batch %" PRId64 ", %d micro-batches, rank %d of %d", o->batch,
                       o->micro_batches, o->rank, o->size);
    tr_loader *l = TR_NEW(TR_MEM_OTHER, tr_loader);
    if (!l) return tr_last_status();
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->ready, NULL);
    l->dataset = o->dataset;
    l->backend = o->backend;
    l->backend_ctx = o->backend_ctx;
    l->train = o->train;
    l->shuffle = o->train && c->data.shuffle;
    l->drop_last = o->train && c->data.drop_last;
    l->seed = (uint64_t)c->seed;
    l->samples = o->dataset->samples;
    l->batch = o->batch;
    l->micro_batches = o->micro_batches;
    l->rank = o->rank;
    l->size = o->size;
    l->dtype = o->dtype;
    l->steps = tr_steps_per_epoch(l->samples, l->batch, l->drop_last);
    TR_NEED(l->steps > 0, TR_DATA,
            "%s: has %" PRIu64 " samples, fewer than a batch of %" PRId64
            ", and data.drop_last leaves out the only one",
            tr_dataset_name(o->dataset), l->samples, l->batch);
    TR_TRY(tr_prepare_init(c, o->model, o->train, o->dtype, &l->prepare));
    l->nworkers = o->workers > 0 ? o->workers : 0;
    l->nslots = l->nworkers > 0 ? (size_t)(o->prefetch > 1 ? o->prefetch : 1) + 1 : 1;
    TR_TRY(open_buffers(l));
    TR_TRY(start_threads(l, o));

out:
    if (st != TR_OK) {
        tr_loader_close(l);
        return st;
    }
    *out = l;
    return TR_OK;
}

void tr_loader_close(tr_loader *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->mutex);
    for (int i = 0; i < l->running; i++) pthread_join(l->workers[i].thread, NULL);
    for (int i = 0; l->workers && i < (l->nworkers > 0 ? l->nworkers : 1); i++) {
        tr_free(l->workers[i].raw);
        tr_free(l->workers[i].scratch);
        tr_free(l->workers[i].own);
        tr_free(l->workers[i].other);
    }
    for (size_t i = 0; l->slots && i < l->nslots; i++) {
        for (int k = 0; k < TR_MAX_IN; k++) give_batch(l, l->slots[i].inputs[k]);
        give_batch(l, l->slots[i].targets);
        give_batch(l, l->slots[i].weights);
    }
    tr_free(l->workers);
    tr_free(l->slots);
    tr_prepare_fini(&l->prepare);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->ready);
    pthread_mutex_destroy(&l->mutex);
    tr_free(l);
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
