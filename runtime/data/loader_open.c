/* The loader's buffers and threads. */
#include "runtime/data/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "runtime/base/numbers.h"

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

static size_t elements(int ndim, const int64_t *dims)
{
    size_t n = 1;
    for (int d = 0; d < ndim; d++) n *= (size_t)dims[d];
    return n;
}

/* Once for a dataset, which planning opens a loader of, too. Of evaluations on the file that is
 * trained on it is the training's to tell. */
static bool is_told(const tr_loader *l, const tr_loader_options *o)
{
    const char *name = tr_dataset_name(l->dataset), *train = o->config->data.train.path;
    char *path = !o->train && train ? tr_config_path(o->config, train) : NULL;
    const size_t n = path ? strlen(path) : 0;
    const bool is = n > 0 && strncmp(name, path, n) == 0 && (!name[n] || name[n] == ':');
    tr_free(path);
    return is || l->dataset->idle_told;
}

/* What comes of samples at each number of rows: the first elements. */
static tr_status open_buckets(tr_loader *l, const tr_loader_options *o)
{
    tr_status st = TR_OK;
    const tr_model *m = o->model;
    const size_t n = o->cut ? m->nshorter : 0;
    for (size_t b = 0; b <= n; b++) {
        const tr_model *s = b < n ? m->shorter[b] : NULL;
        for (int k = 0; k < l->prepare.ninputs; k++)
            l->kept[b].inputs[k] =
                s ? elements(s->inputs[k].ndim, s->inputs[k].dims) : l->prepare.in[k].count;
        l->kept[b].target =
            s && s->labels && s->ndim_target == 1 ? elements(1, s->target_dims) : l->target_count;
    }
    if (n) st = tr_buckets_open(o->config, l->dataset, m, l->shuffle, &l->buckets, &l->held);
    if (st == TR_OK && l->buckets.idle && !is_told(l, o)) {
        l->dataset->idle_told = true;
        tr_log(TR_LOG_WARN,
               "data.buckets: %s has no sample of %" PRId64 " rows or fewer: nothing is saved",
               tr_dataset_name(l->dataset), l->buckets.rows[n - 1]);
    }
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
        err = pthread_create(&w->thread, NULL, tr_loader_work, w);
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
    if (o->samples > 0 && o->samples < l->samples) l->samples = o->samples;
    l->batch = o->batch;
    l->micro_batches = o->micro_batches;
    l->rank = o->rank;
    l->size = o->size;
    l->dtype = o->dtype;
    l->steps = tr_steps_per_epoch(l->samples, l->batch, l->drop_last);
    TR_NEED(l->steps > 0, TR_DATA,
            "%s: has %" PRIu64 " sample%s, fewer than a batch of %" PRId64
            ", and data.drop_last leaves out the only one",
            tr_dataset_name(o->dataset), l->samples, tr_plural(l->samples), l->batch);
    TR_TRY(tr_prepare_init(c, o->model, o->train, o->dtype, &l->prepare));
    l->nworkers = o->workers > 0 ? o->workers : 0;
    l->nslots = l->nworkers > 0 ? (size_t)(o->prefetch > 1 ? o->prefetch : 1) + 1 : 1;
    TR_TRY(open_buffers(l));
    TR_TRY(open_buckets(l, o));
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
    tr_buckets_close(&l->buckets);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->ready);
    pthread_mutex_destroy(&l->mutex);
    tr_free(l);
}
