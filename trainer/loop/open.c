/* Set-up of a training run, in the order of the data's way: data, model, micro-batches, memory,
 * plans. */
#include "trainer/loop/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/evaluation/evaluation.h"
#include "runtime/base/numbers.h"
#include "trainer/loop/run_fit.h"
#include "trainer/plan/choose.h"
#include "trainer/plan/shares.h"

/* On a device laps are launches on the path that the next kernel waits for. */
static tr_status gather_hook(void *ctx, const void *send, void *recv, size_t nbytes)
{
    tr_trainer *t = ctx;
    tr_status st;
    if (t->recorded) return tr_reducer_gather(t->reducer, send, recv, nbytes);
    TR_TRY(tr_trainer_lap(t, TR_LAP_COMPUTE));
    TR_TRY(tr_reducer_gather(t->reducer, send, recv, nbytes));
    TR_TRY(tr_trainer_lap(t, TR_LAP_COMM));
out:
    return st;
}

static void ready_hook(void *ctx, int bucket)
{
    tr_trainer *t = ctx;
    tr_step_profile_ready(t->profile, bucket);
    tr_reducer_ready(t->reducer, bucket);
}

static tr_status paced(void *ctx, bool *done)
{
    const tr_trainer *t = ctx;
    const tr_status st = tr_reducer_poll(t->reducer);
    return st == TR_OK ? t->backend->stream->poll(t->backend_ctx, done) : st;
}

static tr_status poll_hook(void *ctx)
{
    tr_trainer *t = ctx;
    return t->backend->stream ? tr_reducer_wait(t->reducer, t->issued, paced, t)
                              : tr_reducer_poll(t->reducer);
}

/* *Collective.* */
static tr_status open_data(tr_trainer *t)
{
    const tr_config *c = t->config;
    tr_status st;
    TR_TRY(tr_config_settled(c));
    TR_TRY(tr_same_data_open(t->comm, c, TR_OVER_TRAIN, t->model, &t->train_data));
    if (tr_config_evaluates(c))
        TR_TRY(tr_same_data_open(t->comm, c, TR_OVER_EVAL, t->model, &t->eval_data));
    uint64_t n = tr_dataset_samples(t->train_data);
    TR_NEED(n > 0, TR_DATA, "data.train has no samples");
    t->steps_per_epoch = tr_steps_per_epoch(n, c->train.batch, c->data.drop_last);
    TR_REQUIRE(
        t->steps_per_epoch > 0, "train.batch",
        "%lld: data.train has %llu sample%s, fewer than a batch, which data.drop_last leaves "
        "out: expected at most %llu, or data.drop_last: false",
        (long long)c->train.batch, (unsigned long long)n, tr_plural(n), (unsigned long long)n);
    t->total_steps = c->train.steps > 0 ? (uint64_t)c->train.steps
                                        : (uint64_t)c->train.epochs * t->steps_per_epoch;
    t->state.samples = n;
    t->state.names = tr_dataset_names(t->train_data);
out:
    return st;
}

static tr_loader_options train_loader_of(const tr_trainer *t)
{
    const tr_config *c = t->config;
    return (tr_loader_options){
        .config = c,
        .model = t->model,
        .dataset = t->train_data,
        .train = true,
        .cut = true,
        .batch = c->train.batch,
        .micro_batches = t->micro_batches,
        .rank = t->topology->rank,
        .size = t->topology->size,
        .dtype = tr_precision_dtype((tr_precision)c->train.precision),
        .backend = t->backend,
        .backend_ctx = t->backend_ctx,
        .workers = (int)c->data.workers,
        .prefetch = (int)c->data.prefetch,
        .cpus = t->affinity.bound ? t->affinity.cpus : NULL,
        .ncpus = t->affinity.bound ? t->affinity.ncpus : 0,
    };
}

static tr_status open_loaders(tr_trainer *t)
{
    const tr_config *c = t->config;
    tr_status st;
    tr_loader_options o = train_loader_of(t);
    TR_TRY(tr_loader_open(&o, &t->loader));
    if (t->eval_data) {
        o.dataset = t->eval_data;
        o.train = false;
        o.batch = c->train.eval.batch > 0 ? c->train.eval.batch : c->train.batch;
        o.micro_batches = 1;
        TR_TRY(tr_loader_open(&o, &t->eval_loader));
    }
out:
    return st;
}

static tr_status open_reducer(tr_trainer *t)
{
    tr_params_options p = tr_params_options_of(t->config, t->model, t->backend);
    tr_reducer_options r = tr_reducer_options_of(t->config, t->backend, t->topology, t->nccl);
    tr_status st;
    p.backend_ctx = t->backend_ctx;
    r.gpu = t->gpu_reducers;
    r.link = t->link;
    r.gatherers = t->gatherers;
    TR_TRY(tr_comm_params_open(t->comm, &p, &r, &t->params));
    TR_TRY(tr_reducer_open(t->comm, t->params, &r, &t->reducer));
out:
    return st;
}

/* How many ranks share a batchnorm's statistics at the least. */
static int least_together(const tr_trainer *t)
{
    const int kind = t->config->train.sync_batchnorm;
    return kind == TR_SYNC_ALL ? t->topology->size : kind == TR_SYNC_NODE ? t->topology->slices : 1;
}

/* Of a micro-batch's samples, dealt to all ranks, those of the last `ranks` ranks: the fewest. */
static uint64_t fewest(const tr_trainer *t, uint64_t samples, int ranks)
{
    const uint64_t size = (uint64_t)t->topology->size, k = (uint64_t)ranks;
    const uint64_t more = samples % size, none = size - k;
    const uint64_t n = samples / size * k + (more > none ? more - none : 0);
    return n > 0 ? n : 1; /* empty groups aside */
}

/* The fewest samples that some batchnorm will normalize over together. */
static uint64_t smallest_group(const tr_trainer *t)
{
    int64_t sizes[8]; /* of whole micro-batches */
    const int n = tr_share_sizes(t->state.samples, t->config->train.batch, t->micro_batches, 0, 1,
                                 t->config->data.drop_last, sizes);
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < n; i++) {
        const uint64_t few = fewest(t, (uint64_t)sizes[i], least_together(t));
        if (sizes[i] > 0 && few < least) least = few;
    }
    return least;
}

/* A batchnorm over a single value puts out its bias and learns nothing: worth a word before the
 * start. (PyTorch raises an error, when it comes to that step.) So is one whose groups of samples
 * depend on the number of ranks. */
static void warn_of_batchnorm(const tr_trainer *t, const tr_plan_key *keys, size_t nkeys)
{
    if (t->topology->rank != 0) return;
    for (size_t k = 0; k < nkeys; k++) {
        if (keys[k].mode != TR_MODE_TRAIN || keys[k].batch == 0) continue;
        const tr_graph *g =
            tr_plan_graph(tr_session_plan(t->session, TR_MODE_TRAIN, keys[k].batch));
        if (tr_micro_batch_matters(t->config, g))
            tr_log(TR_LOG_WARN, TR_MICRO_BATCH_ADVICE, t->micro_batches);
        if (smallest_group(t) > 1) return;
        for (size_t i = 0; i < g->nops; i++) {
            const tr_tensor *x = &g->tensors[g->ops[i].in[0]];
            if (!tr_op_over_batch(&g->ops[i]) || x->count != (size_t)(x->dims[0] * x->dims[1]))
                continue;
            tr_log(
                TR_LOG_WARN,
                "%s will see a single value a channel in some steps (%llu samples, batch %lld, %d "
                "micro-batches), and put out its bias there: change train.batch or "
                "train.accumulate, or set data.drop_last",
                g->ops[i].layer, (unsigned long long)t->state.samples,
                (long long)t->config->train.batch, t->micro_batches);
            return;
        }
    }
}

static tr_status open_session(tr_trainer *t)
{
    const tr_config *c = t->config;
    tr_plan_key keys[TR_PLAN_KEYS];
    size_t nkeys = tr_plan_keys(c, t->model, tr_dataset_samples(t->train_data),
                                t->eval_data ? tr_dataset_samples(t->eval_data) : 0,
                                t->micro_batches, t->topology->rank, t->topology->size, keys);
    tr_session_options o = {
        .trained = true,
        .model = t->model,
        .backend = t->backend,
        .backend_ctx = t->backend_ctx,
        .params = t->params,
        .threads = t->affinity.threads,
        .precision = (tr_precision)c->train.precision,
        .sync_batchnorm = c->train.sync_batchnorm != TR_SYNC_NONE,
        .ranks = c->train.sync_batchnorm == TR_SYNC_NODE ? t->topology->most : t->topology->size,
        .recompute = c->train.recompute.kind.which,
        .recompute_every = c->train.recompute.every,
        .recompute_segments = t->segments,
        .skip_passes = tr_graph_skip(c),
        .keys = keys,
        .nkeys = nkeys,
        .distill = tr_teacher_distill(t->teacher),
        .mixed = tr_config_mixes(c),
    };
    tr_status st = tr_session_open(&o, &t->session);
    if (st == TR_OK && t->teacher) {
        const tr_loader_options l = train_loader_of(t);
        st = tr_teacher_ready(t->teacher, &o, &l);
    }
    if (st != TR_OK) return st;
    warn_of_batchnorm(t, keys, nkeys);
    return tr_step_profile_open(t, keys, nkeys);
}

/* *Collective.* With the data of all ranks open, and before anything else is allocated. */
static tr_status judge_memory(tr_trainer *t)
{
    tr_status st;
    TR_TRY(open_data(t));
    TR_TRY(tr_agree(t->comm, tr_segments_read(t->config, t->model, &t->segments), NULL));
    t->micro_batches = tr_micro_batches(t->config, t->topology->size);
    if (tr_chooses(t->config)) TR_TRY(tr_plan_choose_run(t));
    tr_trainer_warn(t);
    st = t->topology->local_rank == 0 ? tr_plan_judge_run(t) : TR_OK;
    st = tr_agree(t->comm, st, NULL);
out:
    return st;
}

static tr_status open_local(tr_trainer *t)
{
    const tr_model *m = t->model;
    tr_status st;
    TR_TRY(tr_section_open(t));
    const tr_backend *b = t->backend;
    const size_t cells = t->eval_data ? tr_confusion_cells(m) : 0;
    t->states_copy = tr_alloc(TR_MEM_OTHER, m->state_count, sizeof(float));
    t->control = b->memory->alloc(t->backend_ctx, TR_MEM_OTHER, sizeof *t->control);
    t->eval_tally =
        b->memory->alloc(t->backend_ctx, TR_MEM_OTHER, TR_TALLY * sizeof *t->eval_tally);
    TR_HAVE(t->states_copy && t->control && t->eval_tally);
    TR_TRY(b->training->open(t->backend_ctx, t->affinity.threads, &t->training));
    if (cells == 0) goto out;
    t->confusion = tr_alloc(TR_MEM_IO, cells, sizeof *t->confusion);
    t->eval_confusion =
        b->host ? t->confusion
                : b->memory->alloc(t->backend_ctx, TR_MEM_IO, cells * sizeof *t->confusion);
    TR_HAVE(t->confusion && t->eval_confusion);
out:
    return st;
}

static tr_status open_output(tr_trainer *t, const tr_trainer_options *o)
{
    tr_status st;
    const tr_memory_of of = {.config = t->config,
                             .model = t->model,
                             .backend = t->backend,
                             .topology = t->topology,
                             .nccl = t->nccl};
    tr_checkpointer_options k = {
        .copies = tr_saves_copies(&of),
        .comm = t->comm,
        .params = t->params,
        .reducer = t->reducer,
        .folder = t->config->output,
        .config_text = t->config_text,
        .keep = t->config->train.checkpoint.keep,
        .teacher_sha256 = tr_teacher_sha256(t->teacher),
        .origin = &t->origin,
    };
    TR_TRY(tr_agree(t->comm, tr_checkpointer_open(&k, &t->checkpointer), NULL));
    bool found = false;
    TR_TRY(tr_trainer_initialize(t, !o->resume));
    if (o->resume) TR_TRY(tr_trainer_restore(t, &found));
    if (o->resume && !found) {
        tr_log(TR_LOG_INFO, "nothing to resume from in %s: starting at step 0", t->config->output);
        TR_TRY(tr_trainer_initialize(t, true));
    }
    t->from = t->state.step;
out:
    return st;
}

/* *Collective.* */
static tr_status open_teacher(tr_trainer *t)
{
    const tr_teacher_options o = {.comm = t->comm, .config = t->config, .model = t->model};
    if (!tr_config_distills(t->config)) return TR_OK;
    const tr_status st = tr_teacher_open(&o, &t->teacher);
    if (st == TR_OK && t->topology->rank == 0)
        tr_log(TR_LOG_INFO, "learning from %s (SHA-256 %.12s...)", t->config->train.distill.teacher,
               tr_teacher_sha256(t->teacher));
    return st;
}

tr_status tr_trainer_open(const tr_trainer_options *o, tr_trainer **out)
{
    tr_status st = TR_OK;
    tr_trainer *t = TR_NEW(TR_MEM_OTHER, tr_trainer);
    if (t) {
        t->config = o->config;
        t->config_text = o->config_text;
        t->model = o->model;
        t->folder = o->folder;
        t->start = o->start;
        t->resume = o->resume;
        t->quiet = o->quiet;
        t->rounded = o->rounded;
        t->comm = o->comm;
        t->topology = tr_comm_topology(o->comm);
        t->rss_before = tr_mem_rss_first();
        for (int k = 0; k < TR_MEM_KINDS; k++) t->held_before[k] = tr_mem_held((tr_mem_kind)k);
        t->loss = NAN;
        t->gathered = tr_alloc(TR_MEM_OTHER, (size_t)t->topology->size, sizeof *t->gathered);
        t->hooks = (tr_hooks){.ctx = t,
                              .rank = t->topology->rank,
                              .size = t->topology->size,
                              .gather = gather_hook,
                              .bucket_ready = ready_hook,
                              .poll = poll_hook};
    }
    TR_TRY(tr_agree(o->comm, t && t->gathered ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_priority_set(t->config, t->comm));
    TR_TRY(tr_trainer_open_device(t));
    TR_TRY(tr_agree(t->comm, tr_train_buckets(t->config, t->backend, t->model), NULL));
    TR_TRY(open_teacher(t));
    TR_TRY(judge_memory(t));
    TR_TRY(tr_agree(t->comm, open_local(t), NULL));
    TR_TRY(open_reducer(t));
    TR_TRY(tr_agree(t->comm, open_session(t), NULL));
    TR_TRY(tr_agree(t->comm, open_loaders(t), NULL));
    TR_TRY(tr_agree(t->comm, tr_optimizer_open(t->config, t->params, t->training, &t->optimizer),
                    NULL));
    TR_TRY(open_output(t, o));
out:
    if (st != TR_OK) {
        tr_trainer_close(t);
        return st;
    }
    *out = t;
    return TR_OK;
}

static void close_arrays(tr_trainer *t)
{
    const tr_backend *b = t->backend;
    if (!t->backend_ctx) return;
    if (t->training) b->training->close(t->training);
    b->memory->free(t->backend_ctx, t->control);
    b->memory->free(t->backend_ctx, t->eval_tally);
    if (t->eval_confusion != t->confusion) b->memory->free(t->backend_ctx, t->eval_confusion);
}

void tr_trainer_close(tr_trainer *t)
{
    if (!t) return;
    if (t->backend_ctx) tr_sections_drop(t->backend, t->backend_ctx);
    tr_checkpointer_close(t->checkpointer);
    tr_metrics_close(t->metrics);
    tr_loader_close(t->loader);
    tr_loader_close(t->eval_loader);
    tr_optimizer_close(t->optimizer);
    tr_step_profile_close(t->profile);
    tr_session_close(t->session);
    tr_teacher_close(t->teacher);
    tr_reducer_close(t->reducer);
    tr_gpu_link_close(t->link);
    tr_comm_close(t->gatherers);
    tr_comm_params_close(t->params);
    tr_dataset_close(t->train_data);
    tr_dataset_close(t->eval_data);
    close_arrays(t);
    if (t->backend_ctx) t->backend->close(t->backend_ctx);
    tr_history_free(&t->history);
    tr_free(t->confusion);
    tr_free(t->gathered);
    tr_free(t->states_copy);
    tr_free(t->section_class);
    tr_free(t->segments);
    tr_config_close(t->chosen);
    free(t->chosen_text);
    tr_free(t);
}
