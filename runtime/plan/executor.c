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
    char text[TR_ERROR_TEXT];
    memcpy(text, tr_last_error()->text, sizeof text);
    return TR_FAIL(st, "layer %s: op %s: %s", op->layer, tr_op_name(op), text);
}

/* Gradients that no op writes must not keep old values. */
static void zero_unwritten(const tr_plan *p, const tr_run *run)
{
    for (size_t i = 0; !run->accumulate && i < p->nzero; i++)
        memset(p->session->o.grads + p->zero[i].begin, 0,
               (p->zero[i].end - p->zero[i].begin) * sizeof(float));
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

tr_status tr_plan_run(tr_plan *p, const tr_run *run)
{
    tr_session *s = p->session;
    if (s->o.dry) return TR_FAIL(TR_INTERNAL, "a dry session cannot run");
    const tr_status ready_to_read = check_inputs(p);
    if (ready_to_read != TR_OK) return ready_to_read;
    const bool marks = run->last && p->graph->train;
    const int last_bucket = (int)s->o.model->nbuckets - 1;
    int ready = -1;
    if (run->params_changed) s->version++;
    zero_unwritten(p, run);
    if (marks && !p->writes_grads) announce(run, last_bucket, &ready);

    for (size_t i = 0; i < p->nsteps; i++) {
        const tr_step *step = &p->steps[i];
        if (step->kernel) {
            const double start = p->seconds ? tr_now() : 0;
            if (step->packed >= 0 && s->packed[step->packed].version != s->version) {
                const tr_status st = step->kernel->pack(step->kernel);
                if (st != TR_OK) return run_failed(&p->graph->ops[step->op], st);
                s->packed[step->packed].version = s->version;
            }
            const tr_status st = step->kernel->run(step->kernel, run);
            if (st != TR_OK) return run_failed(&p->graph->ops[step->op], st);
            if (p->seconds) p->seconds[step->op] += tr_now() - start;
        }
        if (marks) announce(run, step->bucket, &ready);
        if (run->hooks && run->hooks->poll) run->hooks->poll(run->hooks->ctx);
    }
    if (marks) announce(run, last_bucket, &ready);
    return TR_OK;
}

void tr_plan_time_ops(tr_plan *p, double *seconds)
{
    p->seconds = seconds;
}
