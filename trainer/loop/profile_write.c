/* What comes of run.profile: trace.json of all ranks; of rank 0 a profile of the steps' means, op
 * by op, and what they waited for, against what this machine can do. */
#include "trainer/loop/profile_kept.h"

#include <math.h>
#include <string.h>

#include "optimize/profile/profile.h"
#include "runtime/base/file.h"
#include "trainer/loop/trainer.h"

/* ---- Rank 0's rows --------------------------------------------------------------------------- */

/* The row of the plan's op `at` in rows that another plan made: the same one, as plans of several
 * batch sizes have the same ops; or none. */
static tr_profile_row *find(tr_profile *p, size_t row, const tr_profile_row *r)
{
    for (size_t k = 0; k < p->nrows; k++) {
        tr_profile_row *here = &p->rows[(row + k) % p->nrows];
        if (strcmp(here->layer, r->layer) == 0 && strcmp(here->op, r->op) == 0) return here;
    }
    return NULL;
}

/* Adds what the runs of one plan took: a step's part of it. */
static void add_plan(const tr_step_profile *p, const tr_timed_plan *d, const tr_model *m,
                     tr_profile *out)
{
    const tr_graph *g = tr_plan_graph(d->plan);
    const double runs = (double)d->runs / (double)p->kept;
    const bool first = out->nrows == 0;
    for (size_t i = 0, row = 0; i < g->nops; i++) {
        tr_profile_row r, *at;
        if (tr_op_is_view(g, &g->ops[i])) continue;
        tr_profile_row_of(d->plan, m, i, &r);
        at = first ? NULL : find(out, row, &r);
        row++;
        if (!at) {
            at = &out->rows[out->nrows++];
            *at = r;
            at->flops = at->bytes = 0;
        }
        at->seconds += d->sums[i] / (double)p->kept;
        at->least = at->seconds;
        at->times += runs;
        at->flops += r.flops * runs;
        at->bytes += r.bytes * runs;
    }
}

static void add_wait(const tr_step_profile *p, const char *layer, const char *op, double seconds,
                     tr_profile *out)
{
    if (seconds <= 0) return;
    tr_profile_row *r = &out->rows[out->nrows++];
    *r = (tr_profile_row){
        .part = TR_PART_WAIT, .seconds = seconds / (double)p->kept, .counters = {NAN, NAN, NAN}};
    snprintf(r->layer, sizeof r->layer, "%s", layer);
    snprintf(r->op, sizeof r->op, "%s", op);
}

/* The plan that took most of the time comes first: its memory is shown. */
static const tr_timed_plan *main_plan(const tr_step_profile *p)
{
    const tr_timed_plan *most = &p->plans[0];
    for (size_t i = 1; i < p->nplans; i++)
        if ((double)tr_plan_batch(p->plans[i].plan) * (double)p->plans[i].runs >
            (double)tr_plan_batch(most->plan) * (double)most->runs)
            most = &p->plans[i];
    return most;
}

static tr_status fill(const tr_trainer *t, const tr_step_profile *p, tr_profile *out)
{
    enum { MORE = 4 }; /* the update, and waits */
    tr_status st = TR_OK;
    const tr_timed_plan *most = main_plan(p);
    size_t all = MORE, owned = 0;
    double samples = 0;
    *out = (tr_profile){.mode = TR_MODE_TRAIN,
                        .mean = true,
                        .runs = (int)p->kept,
                        .seconds = p->steps / (double)p->kept,
                        .not_counted = "not read in a training"};
    for (size_t i = 0; i < p->nplans; i++) {
        all += tr_plan_rows(p->plans[i].plan);
        samples += (double)tr_plan_batch(p->plans[i].plan) * (double)p->plans[i].runs;
    }
    out->batch = (int64_t)(samples / (double)p->kept + 0.5);
    TR_HAVE(out->rows = tr_alloc(TR_MEM_OTHER, all, sizeof *out->rows));
    if (most->runs > 0) {
        add_plan(p, most, t->model, out);
        TR_TRY(tr_profile_memory(most->plan, t->session, out));
    }
    for (size_t i = 0; i < p->nplans; i++)
        if (&p->plans[i] != most && p->plans[i].runs > 0) add_plan(p, &p->plans[i], t->model, out);
    for (size_t i = 0; i < t->params->nowned; i++) owned += tr_range_count(t->params->owned[i]);
    if (p->parts[TR_STEP_UPDATE] > 0) {
        tr_profile_row *r = &out->rows[out->nrows++];
        tr_profile_row_of_update(t->config, t->backend, owned, r);
        r->seconds = r->least = p->parts[TR_STEP_UPDATE] / (double)p->kept;
    }
    add_wait(p, "data", "wait for data", p->data, out);
    add_wait(p, "gradients", "wait for gradients", p->parts[TR_STEP_REDUCE], out);
    add_wait(p, "weights", "hand on weights", p->parts[TR_STEP_PUBLISH], out);
out:
    return st;
}

/* What this machine can do, of the folder's file or measured now, while the others wait; false: not
 * known. */
static bool find_machine(const tr_trainer *t, tr_machine *m)
{
    char *file = tr_sprintf("%s/machine.json", tr_run_folder_path(t->folder));
    const tr_status st =
        file ? tr_machine_get(file, t->backend, t->backend_ctx, t->affinity.threads, m)
             : tr_last_status();
    if (st != TR_OK)
        tr_log(TR_LOG_WARN, "run.profile: without what this machine can do: %s",
               tr_last_error()->text);
    tr_free(file);
    return st == TR_OK;
}

/* ---- Told, and written ----------------------------------------------------------------------- */

/* Rank 0. */
static tr_status say(const tr_step_profile *p, const tr_profile *rows, const tr_machine *m,
                     const char *folder)
{
    enum { MOST = 12 };
    const double ms = 1e3 / (double)p->kept;
    tr_log(TR_LOG_INFO,
           "run.profile: steps %llu to %llu of all ranks are in %s/trace.json%s; rank 0's "
           "milliseconds "
           "a step:",
           (unsigned long long)p->first, (unsigned long long)p->step, folder,
           p->ops ? ", ops of rank 0 in profile.txt, .folded and .svg beside it" : "");
    tr_log(TR_LOG_INFO,
           "  step %.4f: data wait %.4f, forward and backward %.4f, exposed communication %.4f, "
           "update %.4f, "
           "handing weights on %.4f",
           p->steps * ms, p->data * ms, p->compute * ms, p->parts[TR_STEP_REDUCE] * ms,
           p->parts[TR_STEP_UPDATE] * ms, p->parts[TR_STEP_PUBLISH] * ms);
    for (size_t b = 0; p->host && b < p->nbuckets; b++)
        tr_log(TR_LOG_INFO,
               "  bucket %zu, %zu bytes: %.4f from ready to reduced, %.4f of it exposed", b,
               tr_range_count(p->buckets[b]) * sizeof(float), p->bucket_seconds[b] * ms,
               p->bucket_exposed[b] * ms);
    if (p->trace.dropped > 0)
        tr_log(TR_LOG_WARN, "run.profile: %zu events had no room", p->trace.dropped);
    if (!p->ops) return TR_OK;
    tr_text_file f;
    const tr_status st = tr_text_file_open(&f, "the table of run.profile");
    if (st == TR_OK) tr_profile_table(rows, m, MOST, f.to);
    return tr_text_file_log(&f, TR_LOG_INFO, st);
}

/* Rank 0, while the others wait. Without times of ops there is nothing but the trace. */
static tr_status write_profile(const tr_trainer *t, const tr_step_profile *p)
{
    tr_profile rows = {.nrows = 0};
    tr_machine machine;
    const tr_machine *m = NULL;
    const char *const folder = tr_run_folder_path(t->folder);
    char *prefix = tr_sprintf("%s/profile", folder);
    tr_status st = TR_OK;
    TR_HAVE(prefix);
    if (p->ops) {
        TR_TRY(fill(t, p, &rows));
        if (find_machine(t, &machine)) m = &machine;
        tr_profile_judge(&rows, m);
        TR_TRY(tr_profile_files(prefix, &rows, 1, m, NULL, NULL));
    }
    st = say(p, &rows, m, folder);
out:
    tr_profile_free(&rows);
    tr_free(prefix);
    return st;
}

/* *Collective.* */
static tr_status write_all(tr_trainer *t, tr_step_profile *p, const char *trace)
{
    tr_status st;
    const bool root = t->topology->rank == 0;
    TR_TRY(tr_trace_write(&p->trace, t->comm, tr_now, trace));
    if (root) tr_comm_busy(t->comm, TR_BUSY_MEASURES);
    if (root) st = write_profile(t, p);
    tr_comm_busy(t->comm, TR_BUSY_NOT);
    st = tr_agree(t->comm, st, NULL);
out:
    return st;
}

tr_status tr_step_profile_write(tr_trainer *t, bool last)
{
    tr_status st = TR_OK;
    tr_step_profile *p = t->profile;
    char *path = NULL;
    if (!p || p->written || p->kept == 0 || (!last && p->kept < p->active)) return TR_OK;
    p->written = true;
    p->on = p->counts = false;
    st = tr_step_profile_time_ops(p, false);
    if (st == TR_OK && t->folder) st = tr_report_follow(t);
    if (st == TR_OK && t->folder) {
        path = tr_sprintf("%s/trace.json", tr_run_folder_path(t->folder));
        if (!path) st = tr_last_status();
    }
    TR_TRY(tr_agree(t->comm, st, NULL));
    st = write_all(t, p, path);
    if (st != TR_OK && !tr_comm_broken(t->comm)) { /* the training is worth more */
        if (t->topology->rank == 0)
            tr_log(TR_LOG_WARN, "run.profile: it is lost: %s", tr_last_error()->text);
        st = TR_OK;
    }
out:
    tr_free(path);
    return st;
}
