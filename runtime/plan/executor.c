/* The step loop's inner half: walks a plan's flat list of steps. Packed copies are refreshed just
 * before the first kernel that reads them, so that they are still in cache; buckets are announced
 * as soon as their last gradient is written, and transfers get a chance to progress between
 * kernels. */
#include "runtime/plan/internal.h"

#include <string.h>

static void announce(const tr_run *run, int bucket, int *ready)
{
    if (bucket <= *ready) return;
    *ready = bucket;
    if (run->hooks && run->hooks->bucket_ready) run->hooks->bucket_ready(run->hooks->ctx, bucket);
}

static tr_status run_failed(const tr_op *op, tr_status st)
{
    return tr_fail_before(st, "layer %s: op %s: ", op->layer, tr_op_name(op));
}

/* Gradients that no op writes must not keep old values. */
static tr_status zero_unwritten(const tr_plan *p, const tr_run *run)
{
    const tr_session_options *o = &p->session->o;
    tr_status st = TR_OK;
    for (size_t i = 0; !run->accumulate && st == TR_OK && i < p->nzero; i++)
        st = o->backend->memory->zero(o->backend_ctx, o->params->grads + p->zero[i].begin,
                                      (p->zero[i].end - p->zero[i].begin) * sizeof(float));
    return st;
}

static tr_status check_inputs(const tr_plan *p)
{
    for (size_t i = 0; i < TR_COUNT(p->slots); i++) {
        const tr_slot *slot = &p->slots[i];
        if (slot->root >= 0 && slot->nbytes > 0 && !slot->current)
            return TR_FAIL(TR_INTERNAL, "\"%s\" is not set: nothing to read",
                           p->graph->tensors[slot->root].name);
    }
    return TR_OK;
}

tr_status tr_step_pack(tr_session *s, const tr_step *step)
{
    for (int i = 0; i < step->npacked; i++) {
        tr_packed *copy = &s->packed[step->packed[i]];
        if (copy->version == s->version) continue;
        const tr_status st = step->kernel->pack(step->kernel, i);
        if (st != TR_OK) return st;
        copy->version = s->version;
    }
    return TR_OK;
}

/* A kernel, behind the packed copies that it reads. */
static tr_status run_step(tr_plan *p, const tr_step *step, const tr_run *run)
{
    tr_session *s = p->session;
    tr_status st = TR_OK;
    if (p->timed) TR_TRY(s->o.backend->marks->set(p->marks, (size_t)(step - p->steps)));
    if (!step->kernel) goto out;
    TR_TRY(tr_step_pack(s, step));
    TR_TRY(step->kernel->run(step->kernel, run));
out:
    return st == TR_OK ? TR_OK : run_failed(&p->graph->ops[step->op], st);
}

tr_status tr_plan_run(tr_plan *p, const tr_run *run)
{
    tr_session *s = p->session;
    tr_status st = TR_OK;
    if (s->o.dry) return TR_FAIL(TR_INTERNAL, "a dry session cannot run");
    TR_TRY(check_inputs(p));
    const bool marks = run->last && p->graph->mode == TR_MODE_TRAIN;
    const int last_bucket = (int)s->o.model->nbuckets - 1;
    int ready = -1;
    if (run->params_changed) s->version++;
    TR_TRY(zero_unwritten(p, run));
    if (marks && !p->writes_grads) announce(run, last_bucket, &ready);
    for (size_t i = 0; i < p->nsteps; i++) {
        TR_TRY(run_step(p, &p->steps[i], run));
        if (marks) announce(run, p->steps[i].bucket, &ready);
        if (run->hooks && run->hooks->poll) TR_TRY(run->hooks->poll(run->hooks->ctx));
    }
    if (marks) announce(run, last_bucket, &ready);
    if (p->timed) TR_TRY(s->o.backend->marks->set(p->marks, p->nsteps));
out:
    return st;
}

tr_status tr_plan_time_ops(tr_plan *p, bool on)
{
    const tr_session_options *o = &p->session->o;
    const tr_device_marks *marks = o->backend->marks;
    tr_status st = TR_OK;
    p->timed = false;
    if (!on) return TR_OK;
    TR_NEED(marks, TR_UNSUPPORTED, "%s cannot time ops", o->backend->name);
    if (!p->step_seconds) p->step_seconds = tr_alloc(TR_MEM_OTHER, p->nsteps, sizeof(double));
    if (!p->step_seconds) return tr_last_status();
    if (!p->marks) TR_TRY(marks->open(o->backend_ctx, p->nsteps + 1, &p->marks));
    p->timed = true;
out:
    return st;
}

tr_status tr_plan_op_seconds(tr_plan *p, double *seconds)
{
    const tr_session_options *o = &p->session->o;
    tr_status st = TR_OK;
    TR_NEED(p->timed, TR_INTERNAL, "the plan's ops were not timed");
    TR_TRY(o->backend->marks->read(p->marks, p->step_seconds, p->nsteps));
    for (size_t i = 0; i < p->nsteps; i++) seconds[p->steps[i].op] += p->step_seconds[i];
out:
    return st;
}
