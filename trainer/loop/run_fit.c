/* A run, before it allocates: does it fit? The job is planned as `trainer plan` does, so that both
 * name one figure, and set against what the node has left. That takes as long as planning it does,
 * so only jobs that come near are: what activations could take at most, if none shared memory in
 * time, and all else that needs no planning, is looked at first. */
#include "trainer/loop/run_fit.h"

#include "runtime/base/crc32c.h"
#include "trainer/plan/choose.h"
#include "trainer/plan/shares.h"

size_t tr_planned_available(const tr_trainer *t, tr_space space)
{
    tr_device_load load;
    if (space == TR_SPACE_HOST) {
        const size_t left = tr_mem_available(),
                     held = tr_held_memory(t) * (size_t)t->topology->local_size;
        return left > SIZE_MAX - held ? SIZE_MAX : left + held;
    }
    if (!t->backend->load || !t->backend->load(t->backend_ctx, &load)) return SIZE_MAX;
    return load.total - load.used;
}

/* A teacher's values and, as if it were trained, its activations; false where that cannot be
 * said. */
static bool add_teacher(const tr_trainer *t, int64_t at_once, tr_memory_total *all)
{
    const tr_model *m = tr_teacher_model(t->teacher);
    size_t nbytes;
    if (tr_activation_bound(t->config, m, at_once, &nbytes) != TR_OK) return false;
    all->bytes[tr_space_of(t->backend)][TR_MEM_ACTIVATIONS] += nbytes;
    for (int s = 0; s < TR_SPACES; s++)
        all->bytes[s][TR_MEM_WEIGHTS] += 2 * (m->flat_count + m->state_count) * sizeof(float);
    return true;
}

/* The most samples that a rank pushes through at once, in training or in evaluation. */
static int64_t samples_at_once(const tr_trainer *t, const tr_planned *r)
{
    const int64_t ranks = t->topology->size, share = (t->config->train.batch + ranks - 1) / ranks,
                  train = (share + t->micro_batches - 1) / t->micro_batches;
    const int64_t evaluated = (int64_t)tr_eval_at_once(t->config, r->eval_samples),
                  eval = (evaluated + ranks - 1) / ranks;
    return eval > train ? eval : train;
}

/* Whether it can come to more than half of what there is. */
static tr_status is_near(const tr_trainer *t, const tr_planned *r, bool *near)
{
    tr_status st;
    tr_memory_total all;
    tr_memory_plan bound = {0};
    const tr_memory_of of = {.config = t->config,
                             .model = t->model,
                             .backend = t->backend,
                             .topology = t->topology,
                             .nccl = t->nccl,
                             .datasets = r->train_held + r->eval_held,
                             .loaders = r->train_loader + r->eval_loader};
    const int64_t at_once = samples_at_once(t, r);
    TR_TRY(tr_activation_bound(t->config, t->model, at_once, &bound.bytes[TR_MEM_ACTIVATIONS]));
    tr_predict_memory(&of, &bound, &all);
    *near = t->teacher && !add_teacher(t, at_once, &all);
    for (int s = (int)tr_space_of(t->backend); s < TR_SPACES; s++) {
        size_t ranks = s == TR_SPACE_HOST ? (size_t)t->topology->local_size : 1, total = 0;
        for (int k = 0; k < TR_MEM_KINDS; k++) total += all.bytes[s][k];
        total += tr_program_bytes((tr_space)s, t->model, 0, 0, 1);
        *near = *near || total > tr_planned_available(t, (tr_space)s) / ranks / 2;
    }
out:
    return st;
}

static void describe(const tr_planned *r, const tr_fit *f, char *buf, size_t room)
{
    char need[32], have[32], gap[32], programs[32];
    const int ranks = r->on.topology.local_size;
    size_t n = 0;
    tr_format_bytes((double)f->need, need, sizeof need);
    tr_format_bytes((double)f->have, have, sizeof have);
    tr_format_bytes((double)(f->need + f->programs - f->have), gap, sizeof gap);
    if (f->space == TR_SPACE_DEVICE)
        n += (size_t)snprintf(
            buf, room, "training may take %s on a GPU (trainer plan), this one has %s", need, have);
    else
        n += (size_t)snprintf(buf, room,
                              "training does not fit this node: its %d rank%s need%s %s (trainer "
                              "plan), %s are available, of which programs take %s to work",
                              ranks, ranks == 1 ? "" : "s", ranks == 1 ? "s" : "", need, have,
                              tr_format_bytes((double)f->programs, programs, sizeof programs));
    n += (size_t)snprintf(buf + n, room - n, ": %s are short", gap);
    for (int i = 0; i < f->nadvice && n < room; i++)
        n += (size_t)snprintf(buf + n, room - n, "%s%s %s%s", i ? ", " : "; less take ",
                              f->advice[i].set,
                              tr_format_bytes((double)f->advice[i].need, need, sizeof need),
                              f->advice[i].fits ? " (fits)" : "");
    if (f->searched && f->largest > 0 && n < room)
        snprintf(buf + n, room - n, "; the largest batch that fits: %lld", (long long)f->largest);
}

static tr_status judge(const tr_trainer *t, const tr_planned *r)
{
    tr_status st = TR_OK;
    char text[800];
    for (int s = (int)tr_space_of(t->backend); s < TR_SPACES; s++) {
        tr_fit fit;
        const size_t have = tr_planned_available(t, (tr_space)s);
        /* what they hold so far is no part of what is left */
        const size_t programs =
            tr_program_bytes((tr_space)s, t->model, 0, 0, t->topology->local_size);
        if (tr_planned_need(r, (tr_space)s) + programs <= have) continue;
        TR_TRY(tr_plan_fit(r, (tr_space)s, have, programs, &fit));
        describe(r, &fit, text, sizeof text);
        TR_NEED(s == TR_SPACE_DEVICE || t->config->run.overcommit_memory, TR_MEMORY,
                "%s. run.overcommit_memory=true trains all the same", text);
        const uint64_t need = fit.need;
        if (tr_comm_first_to_say(t->comm, TR_NOTICE_FIT,
                                 tr_crc32c((uint32_t)s, &need, sizeof need)))
            tr_log(TR_LOG_WARN, "%s", text);
    }
out:
    return st;
}

tr_status tr_planned_of_run(const tr_trainer *t, tr_planned *r)
{
    *r = (tr_planned){.c = t->config,
                      .m = t->model, /* a context of its own: what was tried goes with it */
                      .on = {.backend = t->backend,
                             .options = t->backend_options,
                             .threads = t->affinity.threads,
                             .topology = *t->topology},
                      .micro_batches = t->micro_batches,
                      .segments = t->segments,
                      .teacher = t->teacher};
    const tr_status st = tr_planned_data(r, t->train_data, t->eval_data);
    if (st != TR_OK) return st;
    if (!t->backend->host) {
        r->on.options =
            tr_gpu_options(t->config, 0, t->nccl); /* its kernels are not to be chosen twice */
        r->on.options.dry = true;
    }
    return t->backend->open(&r->on.options, &r->backend_ctx);
}

void tr_planned_leave_run(const tr_trainer *t, tr_planned *r)
{
    const tr_error why = *tr_last_error();
    tr_planned_close_sessions(r);
    tr_teacher_forget(t->teacher);
    if (r->backend_ctx) t->backend->close(r->backend_ctx);
    tr_set_error(&why);
}

tr_status tr_plan_judge_run(const tr_trainer *t)
{
    bool near = false;
    tr_planned r;
    tr_status st;
    TR_TRY(tr_planned_of_run(t, &r));
    TR_TRY(is_near(t, &r, &near));
    if (!near) goto out;
    TR_TRY(tr_planned_sessions(&r));
    st = judge(t, &r);
out:
    tr_planned_leave_run(t, &r);
    return st;
}
