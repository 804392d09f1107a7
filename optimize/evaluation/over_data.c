/* A network run over data by all threads of all ranks. Batch b is the work of one thread alone,
 * which runs it with a session of its own, on one thread: which kernels that takes, and the order
 * of every sum, depend on nothing but the batch. Rank r's thread t takes batches t * ranks + r,
 * then every (ranks * threads)-th. A device has one session a rank. */
#include "optimize/evaluation/internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

typedef struct tr_over work;

typedef struct {
    work *w;
    uint64_t first; /* batch */
    pthread_t thread;
    bool started;
    tr_status st;
    tr_error why;
    tr_session *session; /* NULL until its first batch */
    tr_loader *loader;
    double *tally; /* [TR_TALLY] in the backend's memory */
} worker;

/* What the threads of a rank share. */
struct tr_over {
    tr_evaluator *e;
    const tr_network *n;
    const tr_config *config;
    tr_over_data what;
    tr_dataset *data;
    tr_params *params;
    int nthreads;
    worker *workers; /* [nthreads] */
    int64_t batch;
    uint64_t samples, batches;   /* of all */
    uint64_t begin, end, stride; /* of this run; from one of a thread's batches to the next */
    size_t words;                /* of a batch's result, 8 bytes each */
    int64_t *results;            /* [(end - begin) * words] */
    atomic_bool failed;
};

static tr_status open_params(work *w)
{
    tr_status st = TR_OK;
    const tr_model *m = w->n->model;
    const tr_evaluator *e = w->e;
    const tr_params_options p = {.model = m,
                                 .count = m->flat_count,
                                 .state_count = m->state_count,
                                 .backend = e->backend,
                                 .backend_ctx = e->backend_ctx};
    const tr_params_memory memory = {.weights = w->n->params};
    TR_TRY(tr_params_open(&p, NULL, 0, e->backend->host ? &memory : NULL, &w->params));
    if (!e->backend->host)
        TR_TRY(e->backend->memory->upload(e->backend_ctx, w->params->weights, w->n->params,
                                          m->flat_count * sizeof(float)));
    TR_TRY(e->backend->memory->upload(e->backend_ctx, w->params->states, w->n->states,
                                      m->state_count * sizeof(float)));
out:
    return st;
}

static tr_mode mode_of(const work *w)
{
    return w->what.infer ? TR_MODE_INFER : TR_MODE_EVALUATE;
}

static tr_status open_session(worker *k)
{
    const work *w = k->w;
    const tr_evaluator *e = w->e;
    const uint64_t rest = w->samples % (uint64_t)w->batch;
    /* this thread has no whole batch: they ascend */
    const bool short_alone = rest > 0 && k->first == w->batches - 1;
    const tr_mode mode = mode_of(w);
    const tr_plan_key keys[] = {{.mode = mode, .batch = (int64_t)rest},
                                {.mode = mode, .batch = w->batch}};
    const tr_session_options s = {.model = w->n->model,
                                  .backend = e->backend,
                                  .backend_ctx = e->backend_ctx,
                                  .params = w->params,
                                  .threads = 1,
                                  .precision = e->precision,
                                  .ranks = 1,
                                  .skip_passes = tr_graph_skip(e->o.config) | w->what.skip_passes,
                                  .keys = keys + (rest == 0),
                                  .nkeys = rest == 0 || short_alone ? 1 : 2,
                                  .outputs = w->what.outputs,
                                  .noutputs = w->what.noutputs};
    return tr_session_open(&s, &k->session);
}

static tr_status open_loader(worker *k)
{
    const work *w = k->w;
    const tr_evaluator *e = w->e;
    const tr_loader_options l = {
        .config = w->config,
        .model = w->n->model,
        .dataset = w->data,
        .samples = w->samples,
        .batch = w->batch,
        .micro_batches = 1,
        .size = 1,
        .dtype = tr_precision_dtype(e->precision),
        .backend = e->backend,
        .backend_ctx = e->backend_ctx,
    };
    return tr_loader_open(&l, &k->loader);
}

static tr_status run_batch(worker *k, uint64_t at, bool first)
{
    tr_status st = TR_OK;
    const work *w = k->w;
    const tr_backend *b = w->e->backend;
    void *ctx = w->e->backend_ctx;
    double tally[TR_TALLY];
    tr_batch batch;
    TR_TRY(tr_loader_seek(k->loader, at));
    TR_TRY(tr_loader_next(k->loader, &batch));
    tr_plan *p = tr_session_plan(k->session, mode_of(w), batch.count);
    TR_NEED(p, TR_INTERNAL, "no plan for a batch of %lld", (long long)batch.count);
    TR_TRY(tr_session_stage(k->session));
    for (size_t i = 0; i < w->n->model->ninputs; i++)
        TR_TRY(tr_plan_set_input(p, i, batch.inputs[i]));
    if (!w->what.infer) {
        TR_TRY(tr_plan_set_target(p, batch.targets));
        TR_TRY(tr_plan_set_weights(p, batch.weights));
    }
    TR_TRY(b->memory->zero(ctx, k->tally, sizeof tally));
    const tr_run run = {.loss_scale = 1, .last = true, .params_changed = first, .tally = k->tally};
    TR_TRY(tr_plan_run(p, &run));
    TR_TRY(b->memory->download(ctx, tally, k->tally, sizeof tally)); /* waits for the run */
    st = w->what.take(w->what.ctx, p, &batch, tally, w->results + (at - w->begin) * w->words);
out:
    return st;
}

/* Before a thread's first batch. */
static tr_status open_worker(worker *k)
{
    tr_status st = TR_OK;
    const tr_evaluator *e = k->w->e;
    k->tally = e->backend->memory->alloc(e->backend_ctx, TR_MEM_OTHER, TR_TALLY * sizeof(double));
    TR_HAVE(k->tally);
    TR_TRY(open_session(k));
    TR_TRY(open_loader(k));
out:
    return st;
}

static tr_status run_worker(worker *k)
{
    tr_status st = TR_OK;
    const work *w = k->w;
    const bool first = k->loader == NULL;
    if (k->first >= w->end) return TR_OK;
    if (first) TR_TRY(open_worker(k));
    for (uint64_t b = k->first; b < w->end; b += w->stride) {
        if (atomic_load(&w->failed)) break;
        TR_TRY(run_batch(k, b, first && b == k->first));
    }
out:
    return st;
}

static void *thread_main(void *arg)
{
    worker *k = arg;
    k->st = run_worker(k);
    if (k->st == TR_OK) return NULL;
    k->why = *tr_last_error();
    atomic_store(&k->w->failed, true);
    return NULL;
}

/* *Local.* The first thread is this one. */
static tr_status run_threads(work *w)
{
    tr_status st = TR_OK;
    const tr_topology *t = tr_comm_topology(w->e->o.comm);
    worker *k = w->workers;
    w->results = tr_alloc(TR_MEM_OTHER, (w->end - w->begin) * w->words, sizeof *w->results);
    if (!w->results) return tr_last_status();
    for (int i = 0; i < w->nthreads; i++) k[i].first = w->begin + (uint64_t)(i * t->size + t->rank);
    for (int i = 1; i < w->nthreads; i++)
        k[i].started = pthread_create(&k[i].thread, NULL, thread_main, &k[i]) == 0;
    thread_main(&k[0]);
    for (int i = 1; i < w->nthreads; i++) {
        if (k[i].started)
            pthread_join(k[i].thread, NULL);
        else
            thread_main(&k[i]); /* no more threads: one after the other */
    }
    for (int i = w->nthreads - 1; i >= 0; i--) {
        if (k[i].st == TR_OK) continue;
        st = k[i].st;
        tr_set_error(&k[i].why);
    }
    return st;
}

/* Of a batch's result. */
static tr_status count_words(work *w)
{
    tr_status st = TR_OK;
    size_t nbytes;
    TR_NEED(tr_mul_size((size_t)w->batch, w->what.sample_nbytes, &nbytes) &&
                nbytes <= SIZE_MAX / 2 - w->what.nbytes,
            TR_MEMORY, "the results of a batch of %lld do not fit in memory", (long long)w->batch);
    w->words = tr_align_up(w->what.nbytes + nbytes, sizeof(int64_t)) / sizeof(int64_t);
out:
    return st;
}

static tr_status open_local(work *w)
{
    tr_status st = TR_OK;
    const tr_evaluator *e = w->e;
    w->nthreads = e->backend->host && e->threads > 1 ? e->threads : 1;
    TR_TRY(tr_config_settled(w->config));
    w->samples = tr_dataset_samples(w->data);
    if (w->what.samples > 0 && w->what.samples < w->samples) w->samples = w->what.samples;
    TR_NEED(w->samples > 0, TR_DATA, "%s has no samples", tr_over_source_name(w->what.source));
    w->batch = w->what.batch > 0 ? w->what.batch : tr_evaluator_batch(e);
    if ((uint64_t)w->batch > w->samples) w->batch = (int64_t)w->samples;
    TR_TRY(count_words(w));
    w->batches = (w->samples + (uint64_t)w->batch - 1) / (uint64_t)w->batch;
    w->stride = (uint64_t)(w->nthreads * tr_comm_topology(e->o.comm)->size);
    w->workers = tr_alloc(TR_MEM_OTHER, (size_t)w->nthreads, sizeof *w->workers);
    TR_HAVE(w->workers);
    for (int i = 0; i < w->nthreads; i++) w->workers[i].w = w;
    st = open_params(w);
out:
    return st;
}

tr_status tr_over_open(tr_evaluator *e, const tr_network *n, const tr_config *config,
                       const tr_over_data *what, tr_over **out)
{
    tr_dataset *data = NULL;
    tr_status st = tr_evaluator_data(e, n, what->source, &data);
    if (st != TR_OK) return st;
    tr_comm_busy(e->o.comm, TR_BUSY_READS);
    work *w = TR_NEW(TR_MEM_OTHER, work);
    st = w ? TR_OK : tr_last_status();
    if (w) {
        w->e = e;
        w->n = n;
        w->config = config ? config : e->o.config;
        w->what = *what;
        w->data = data;
        st = open_local(w);
    }
    tr_comm_busy(e->o.comm, TR_BUSY_NOT);
    st = tr_agree(e->o.comm, st, NULL);
    if (st == TR_OK)
        *out = w;
    else
        tr_over_close(w);
    return st;
}

void tr_over_close(tr_over *w)
{
    if (!w) return;
    const tr_evaluator *e = w->e;
    for (int i = 0; w->workers && i < w->nthreads; i++) {
        worker *k = &w->workers[i];
        tr_loader_close(k->loader);
        tr_session_close(k->session);
        e->backend->memory->free(e->backend_ctx, k->tally);
    }
    tr_free(w->workers);
    tr_params_close(w->params);
    tr_free(w);
}

uint64_t tr_over_batches(const tr_over *w)
{
    return w->batches;
}

int64_t tr_over_batch(const tr_over *w)
{
    return w->batch;
}

size_t tr_over_nbytes(const tr_over *w)
{
    return w->words * sizeof(int64_t);
}

const char *tr_over_file(const tr_over *w, uint64_t i)
{
    return tr_dataset_file(w->data, i);
}

uint64_t tr_over_samples(const tr_over *w)
{
    return w->samples;
}

tr_status tr_over_describe(tr_over *w, FILE *to)
{
    return tr_dataset_describe(w->data, tr_over_source_name(w->what.source),
                               (uint64_t)w->e->o.config->seed, to);
}

tr_status tr_over_run(tr_over *w, uint64_t first, uint64_t count, void **results)
{
    tr_status st;
    tr_comm *comm = w->e->o.comm;
    w->begin = first;
    w->end = first + count;
    tr_comm_busy(comm, TR_BUSY_COMPUTES);
    st = run_threads(w);
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    /* each batch's words are zero on all ranks but one: sums are its bits */
    TR_TRY(tr_comm_all_reduce(comm, w->results, count * w->words, TR_I64));
    *results = w->results;
    w->results = NULL;
out:
    tr_free(w->results);
    w->results = NULL;
    return st;
}

tr_status tr_run_over(tr_evaluator *e, const tr_network *n, const tr_config *config,
                      const tr_over_data *what, void **results, uint64_t *batches)
{
    tr_over *w = NULL;
    tr_status st = tr_over_open(e, n, config, what, &w);
    if (st != TR_OK) return st;
    *batches = w->batches;
    st = tr_over_run(w, 0, w->batches, results);
    tr_over_close(w);
    return st;
}
