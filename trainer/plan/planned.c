/* A config planned on a machine: samples counted, the teacher read, dry sessions opened (op lists,
 * kernels and offsets, but no memory for them), and what rank 0, which has the largest share, then
 * holds. */
#include "trainer/plan/planned.h"

#include "runtime/data/data.h"
#include "trainer/device/device.h"
#include "trainer/plan/shares.h"

/* What a loader's buffers for a data set take. */
static tr_status count_loader(const tr_planned *r, tr_dataset *d, bool train, size_t *loader)
{
    tr_loader *l = NULL;
    const tr_loader_options o = {.config = r->c,
                                 .model = r->m,
                                 .dataset = d,
                                 .cut = true,
                                 .train = train,
                                 .batch = train ? r->c->train.batch : (int64_t)tr_eval_batch(r->c),
                                 .micro_batches = train ? r->micro_batches : 1,
                                 .size = r->on.topology.size,
                                 .dtype = tr_precision_dtype((tr_precision)r->c->train.precision),
                                 .workers = (int)r->c->data.workers,
                                 .prefetch = (int)r->c->data.prefetch};
    const tr_status st = tr_loader_open(&o, &l);
    if (st == TR_OK) *loader = tr_loader_held(l);
    tr_loader_close(l);
    return st;
}

tr_status tr_planned_loaders(tr_planned *r)
{
    tr_status st = TR_OK;
    if (r->train_data) st = count_loader(r, r->train_data, true, &r->train_loader);
    if (st == TR_OK && r->eval_data) st = count_loader(r, r->eval_data, false, &r->eval_loader);
    return st;
}

tr_status tr_planned_data(tr_planned *r, tr_dataset *train, tr_dataset *eval)
{
    tr_status st;
    r->train_data = train;
    r->eval_data = eval;
    r->train_samples = tr_dataset_samples(train);
    r->train_held = tr_dataset_held(train);
    if (eval) {
        r->eval_samples = tr_dataset_samples(eval);
        r->eval_held = tr_dataset_held(eval);
    }
    TR_TRY(tr_planned_loaders(r));
    r->counted = true;
out:
    return st;
}

static tr_status count_files(tr_planned *r)
{
    tr_status st;
    const tr_config *c = r->c;
    tr_dataset *train = NULL, *eval = NULL;
    TR_TRY(tr_dataset_open(c, &c->data.train, r->m, &train));
    if (tr_config_evaluates(c)) TR_TRY(tr_dataset_open(c, &c->data.eval, r->m, &eval));
    TR_TRY(tr_planned_data(r, train, eval));
out:
    if (st != TR_OK) {
        tr_dataset_close(train);
        tr_dataset_close(eval);
        r->train_data = r->eval_data = NULL;
    }
    return st;
}

void tr_planned_close_data(tr_planned *r)
{
    tr_dataset_close(r->train_data);
    tr_dataset_close(r->eval_data);
    r->train_data = r->eval_data = NULL;
}

void tr_planned_count(tr_planned *r)
{
    const tr_config *c = r->c;
    if (count_files(r) == TR_OK) return;
    fprintf(r->notes, "%s; full batches are assumed, and memory for data is left out\n",
            tr_last_error()->text);
    r->train_samples = (uint64_t)c->train.batch;
    r->eval_samples = tr_config_evaluates(c) ? tr_eval_batch(c) : 0;
    r->train_held = r->eval_held = r->train_loader = r->eval_loader = 0;
}

tr_session_options tr_planned_options(const tr_planned *r)
{
    return (tr_session_options){.model = r->m,
                                .trained = true,
                                .backend = r->on.backend,
                                .backend_ctx = r->backend_ctx,
                                .threads = r->on.threads,
                                .precision = (tr_precision)r->c->train.precision,
                                .sync_batchnorm = r->c->train.sync_batchnorm != TR_SYNC_NONE,
                                .ranks = r->c->train.sync_batchnorm == TR_SYNC_NODE
                                             ? r->on.topology.most
                                             : r->on.topology.size,
                                .recompute = r->c->train.recompute.kind.which,
                                .recompute_every = r->c->train.recompute.every,
                                .recompute_segments = r->segments,
                                .skip_passes = tr_graph_skip(r->c) | r->skip_passes,
                                .distill = tr_teacher_distill(r->teacher),
                                .mixed = tr_config_mixes(r->c),
                                .dry = true};
}

static tr_status open_session(const tr_planned *r, const tr_plan_key *keys, size_t nkeys,
                              tr_session **out)
{
    tr_session_options o = tr_planned_options(r);
    o.keys = keys;
    o.nkeys = nkeys;
    return tr_session_open(&o, out);
}

bool tr_planned_too_many(tr_status st)
{
    return st != TR_OK && tr_last_error()->hint == TR_HINT_BATCH;
}

static size_t all_keys(const tr_planned *r, tr_plan_key keys[TR_PLAN_KEYS])
{
    return tr_plan_keys(r->c, r->m, r->train_samples, r->eval_samples, r->micro_batches, 0,
                        r->on.topology.size, keys);
}

tr_status tr_planned_sessions(tr_planned *r)
{
    tr_plan_key keys[TR_PLAN_KEYS];
    const size_t n = all_keys(r, keys);
    for (size_t i = 0; i < n; i++) {
        int64_t *largest = keys[i].mode == TR_MODE_TRAIN ? &r->train_batch : &r->eval_batch;
        if (keys[i].batch > *largest) *largest = keys[i].batch;
    }
    tr_status st = open_session(r, keys, n, &r->both);
    tr_teacher_forget(r->teacher);
    if (st == TR_OK && r->teacher) {
        tr_session_options o = tr_planned_options(r);
        o.keys = keys;
        o.nkeys = n;
        st = tr_teacher_plan(r->teacher, &o);
    }
    return st;
}

tr_status tr_planned_evaluation(tr_planned *r)
{
    tr_plan_key keys[TR_PLAN_KEYS];
    size_t n = 0, all = all_keys(r, keys);
    for (size_t i = 0; i < all; i++)
        if (keys[i].mode == TR_MODE_EVALUATE) keys[n++] = keys[i];
    if (n == 0) { /* the run does not evaluate: what it would take to use the model */
        r->eval_batch = r->train_batch;
        keys[n++] = (tr_plan_key){.mode = TR_MODE_EVALUATE, .batch = r->eval_batch};
    }
    return open_session(r, keys, n, &r->eval);
}

/* A plan may be made where the teacher's file is not. */
tr_status tr_planned_teacher(tr_planned *r)
{
    tr_status st;
    const tr_comm_options alone = {.mpi = false};
    if (!tr_config_distills(r->c)) return TR_OK;
    TR_TRY(tr_comm_open(&alone, &r->comm));
    const tr_teacher_options o = {.comm = r->comm, .config = r->c, .model = r->m};
    st = tr_teacher_open(&o, &r->teacher);
    if (st == TR_IO || st == TR_FILE) {
        fprintf(r->notes, "%s; the teacher is not counted: its weights, memory and forward pass\n",
                tr_last_error()->text);
        st = TR_OK;
    }
out:
    return st;
}

static void add_teacher(const tr_planned *r, tr_memory_total *all)
{
    tr_teacher_memory(r->teacher, all);
    for (int s = 0; s < TR_SPACES; s++) {
        all->total[s] = 0;
        for (int k = 0; k < TR_MEM_KINDS; k++) all->total[s] += all->bytes[s][k];
    }
}

static tr_memory_of memory_of(const tr_planned *r, size_t datasets, size_t loaders)
{
    return (tr_memory_of){.config = r->c,
                          .model = r->m,
                          .backend = r->on.backend,
                          .topology = &r->on.topology,
                          .nccl = tr_config_nccl(r->c),
                          .datasets = datasets,
                          .loaders = loaders};
}

void tr_planned_memory(const tr_planned *r, tr_memory_total *out)
{
    tr_memory_plan session;
    const tr_memory_of of =
        memory_of(r, r->train_held + r->eval_held, r->train_loader + r->eval_loader);
    tr_session_memory(r->both, &session);
    tr_predict_memory(&of, &session, out);
    if (r->teacher) add_teacher(r, out);
}

void tr_planned_memory_alone(const tr_planned *r, tr_memory_total *out)
{
    tr_memory_plan session;
    const tr_memory_of of = memory_of(r, r->eval_held, r->eval_loader);
    tr_session_memory(r->eval, &session);
    tr_predict_evaluation(&of, &session, out);
}

void tr_planned_close_sessions(tr_planned *r)
{
    tr_session_close(r->eval);
    tr_session_close(r->both);
    r->eval = r->both = NULL;
}

/* ---- Figures of what was planned ---- */

const char *tr_planned_precision(const tr_planned *r)
{
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    return names[r->c->train.precision];
}

double tr_planned_flops(const tr_plan *p, bool backward)
{
    double sum = 0;
    for (size_t i = 0; i < tr_plan_rows(p); i++) {
        const tr_plan_row row = tr_plan_row_at(p, i);
        if ((row.phase == TR_PHASE_BACKWARD) == backward) sum += row.flops;
    }
    return sum / (double)tr_plan_batch(p);
}

size_t tr_planned_gathers(const tr_planned *r, double *nbytes)
{
    const tr_graph *g = tr_plan_graph(tr_session_plan(r->both, TR_MODE_TRAIN, r->train_batch));
    size_t gathers = 0;
    *nbytes = 0;
    for (size_t i = 0; i < g->nops; i++) {
        const size_t sent = tr_op_gathered(g, &g->ops[i]);
        gathers += sent > 0;
        *nbytes += (double)sent;
    }
    return gathers;
}
