/* A network run over data by all threads of all ranks. Batch b is the work of one thread alone,
 * which runs it with a session of its own, on one thread: which kernels that takes, and the order of
 * every sum, depend on nothing but the batch. Rank r's thread t takes batches t * ranks + r, then
 * every (ranks * threads)-th. A device has one session a rank. */
#include "optimize/evaluation/internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* What the threads of a rank share. */
typedef struct {
    tr_evaluator *e;
    const tr_network *n;
    const tr_config *config;
    const tr_over_data *what;
    tr_dataset *data;
    tr_params *params;
    int64_t batch;
    uint64_t batches, stride; /* of all; from one of a thread's batches to the next */
    size_t words;             /* of a batch's result, 8 bytes each */
    int64_t *results;         /* [batches * words] */
    atomic_bool failed;
} work;

typedef struct {
    work *w;
    uint64_t first; /* batch */
    pthread_t thread;
    bool started;
    tr_status st;
    tr_error why;
    tr_session *session;
    tr_loader *loader;
    double *tally; /* [TR_TALLY] in the backend's memory */
} worker;

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
    return w->what->infer ? TR_MODE_INFER : TR_MODE_EVALUATE;
}

static tr_status open_session(worker *k)
{
    const work *w = k->w;
    const tr_evaluator *e = w->e;
    const uint64_t rest = tr_dataset_samples(w->data) % (uint64_t)w->batch;
    const tr_mode mode = mode_of(w);
    const tr_plan_key keys[] = {{.mode = mode, .batch = w->batch},
                                {.mode = mode, .batch = (int64_t)rest}};
    const tr_session_options s = {.model = w->n->model,
                                  .backend = e->backend,
                                  .backend_ctx = e->backend_ctx,
                                  .params = w->params,
                                  .threads = 1,
                                  .precision = (tr_precision)e->o.config->train.precision,
                                  .ranks = 1,
                                  .skip_passes = tr_graph_skip(e->o.config),
                                  .keys = keys,
                                  .nkeys = rest ? 2 : 1,
                                  .outputs = w->what->outputs,
                                  .noutputs = w->what->noutputs};
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
        .batch = w->batch,
        .micro_batches = 1,
        .size = 1,
        .dtype = tr_precision_dtype((tr_precision)e->o.config->train.precision),
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
    if (!w->what->infer) TR_TRY(tr_plan_set_target(p, batch.targets));
    TR_TRY(b->memory->zero(ctx, k->tally, sizeof tally));
    const tr_run run = {.loss_scale = 1, .last = true, .params_changed = first, .tally = k->tally};
    TR_TRY(tr_plan_run(p, &run));
    TR_TRY(b->memory->download(ctx, tally, k->tally, sizeof tally)); /* waits for the run */
    st = w->what->take(w->what->ctx, p, &batch, tally, w->results + at * w->words);
out:
    return st;
}

static tr_status run_worker(worker *k)
{
    tr_status st = TR_OK;
    const work *w = k->w;
    const tr_evaluator *e = w->e;
    if (k->first >= w->batches) return TR_OK;
    k->tally = e->backend->memory->alloc(e->backend_ctx, TR_MEM_OTHER, TR_TALLY * sizeof(double));
    TR_HAVE(k->tally);
    TR_TRY(open_session(k));
    TR_TRY(open_loader(k));
    for (uint64_t b = k->first; b < w->batches; b += w->stride) {
        if (atomic_load(&w->failed)) break;
        TR_TRY(run_batch(k, b, b == k->first));
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

static void close_worker(worker *k)
{
    const tr_evaluator *e = k->w->e;
    tr_loader_close(k->loader);
    tr_session_close(k->session);
    e->backend->memory->free(e->backend_ctx, k->tally);
}

/* *Local.* The first thread is this one. */
static tr_status run_threads(work *w, int nthreads)
{
    tr_status st = TR_OK;
    const tr_topology *t = tr_comm_topology(w->e->o.comm);
    worker *k = tr_alloc(TR_MEM_OTHER, (size_t)nthreads, sizeof *k);
    if (!k) return tr_last_status();
    for (int i = 0; i < nthreads; i++)
        k[i] = (worker){.w = w, .first = (uint64_t)(i * t->size + t->rank)};
    for (int i = 1; i < nthreads; i++)
        k[i].started = pthread_create(&k[i].thread, NULL, thread_main, &k[i]) == 0;
    thread_main(&k[0]);
    for (int i = 1; i < nthreads; i++) {
        if (k[i].started)
            pthread_join(k[i].thread, NULL);
        else
            thread_main(&k[i]); /* no more threads: one after the other */
    }
    for (int i = nthreads - 1; i >= 0; i--) {
        close_worker(&k[i]);
        if (k[i].st == TR_OK) continue;
        st = k[i].st;
        tr_set_error(&k[i].why);
    }
    tr_free(k);
    return st;
}

static tr_status run_local(work *w)
{
    tr_status st = TR_OK;
    const tr_evaluator *e = w->e;
    const int64_t batch = e->o.config->train.eval.batch;
    const int threads = e->backend->host ? e->threads : 1;
    TR_TRY(tr_evaluator_data(w->e, w->n, w->what->train_data, &w->data));
    uint64_t samples = tr_dataset_samples(w->data);
    if (w->what->samples > 0 && w->what->samples < samples) samples = w->what->samples;
    TR_NEED(samples > 0, TR_DATA, "%s has no samples",
            w->what->train_data ? "data.train" : "data.eval");
    w->batch = batch > 0 ? batch : e->o.config->train.batch;
    w->batches = (samples + (uint64_t)w->batch - 1) / (uint64_t)w->batch;
    w->stride = (uint64_t)(threads * tr_comm_topology(e->o.comm)->size);
    w->results = tr_alloc(TR_MEM_OTHER, w->batches * w->words, sizeof *w->results);
    TR_HAVE(w->results);
    TR_TRY(open_params(w));
    st = run_threads(w, threads);
out:
    tr_params_close(w->params);
    return st;
}

tr_status tr_run_over(tr_evaluator *e, const tr_network *n, const tr_config *config,
                      const tr_over_data *what, void **results, uint64_t *batches)
{
    tr_status st;
    work w = {.e = e,
              .n = n,
              .config = config ? config : e->o.config,
              .what = what,
              .words = (what->nbytes + sizeof(int64_t) - 1) / sizeof(int64_t)};
    TR_NEED(what->nbytes % sizeof(int64_t) == 0, TR_INTERNAL,
            "results of %zu bytes: expected a multiple of 8", what->nbytes);
    tr_comm_busy(e->o.comm, true);
    st = run_local(&w);
    tr_comm_busy(e->o.comm, false);
    TR_TRY(tr_agree(e->o.comm, st, NULL));
    /* each batch's words are zero on all ranks but one: sums are its bits */
    TR_TRY(tr_comm_all_reduce(e->o.comm, w.results, w.batches * w.words, TR_I64));
    *results = w.results;
    *batches = w.batches;
    w.results = NULL;
out:
    tr_free(w.results);
    return st;
}
