/* The reducer's front: picks shared memory, MPI or what the device has, keeps
 * order between ready, poll, finish and publish, and adds the tallies. */
#include "collectives/reducer/reducer.h"

#include <string.h>

/* The same on every rank: the options are. */
static tr_status choose_on_device(tr_reducer *r)
{
    if (!r->o.gpu)
        return TR_FAIL(TR_UNSUPPORTED, "this program cannot reduce gradients on %s",
                       r->p->o.backend->name);
    if (r->o.wire_bf16)
        return TR_FAIL(
            TR_UNSUPPORTED,
            "gradients on %s are reduced in fp32: wire precision bf16 is for cpu, use fp32",
            r->p->o.backend->name);
    return r->o.nccl ? r->o.gpu->nccl(r) : r->o.gpu->staged(r);
}

static tr_status choose(tr_reducer *r)
{
    if (tr_on_device(&r->p->o)) return choose_on_device(r);
    return tr_placement_of(r->p)->bases ? tr_reducer_shared_init(r) : tr_reducer_mpi_init(r);
}

tr_status tr_reducer_open(tr_comm *c, tr_params *p, const tr_reducer_options *o, tr_reducer **out)
{
    tr_status st = TR_OK;
    tr_reducer *r = TR_NEW(TR_MEM_OTHER, tr_reducer);
    if (r) {
        r->c = c;
        r->p = p;
        r->comm = MPI_COMM_NULL;
        r->o = *o;
        r->ready = -1;
    }
    TR_TRY(tr_agree(c, r ? TR_OK : tr_last_status(), NULL));
    TR_TRY(choose(r));
out:
    if (st != TR_OK) {
        tr_reducer_close(r);
        return st;
    }
    *out = r;
    return TR_OK;
}

void tr_reducer_close(tr_reducer *r)
{
    if (!r) return;
    if (r->ops) r->ops->close(r);
    if (r->comm != MPI_COMM_NULL && !tr_comm_broken(r->c)) MPI_Comm_free(&r->comm);
    tr_free(r);
}

const char *tr_reducer_name(const tr_reducer *r)
{
    return r->name[0] ? r->name : r->ops->name;
}

uint64_t tr_reducer_sent(const tr_reducer *r)
{
    const tr_exchange *x = r->ops->exchange ? r->ops->exchange(r) : NULL;
    return x ? tr_exchange_sent(x) : 0;
}

/* Every later call fails with it. */
static void store_failure(tr_reducer *r, tr_status st)
{
    r->failed = st;
    r->failure = *tr_last_error();
}

/* So does every later call of this rank's peers. */
static tr_status give_up(tr_reducer *r, tr_status st)
{
    store_failure(r, st);
    return tr_comm_break(r->c, st);
}

/* What went wrong before, on this rank or in the communicator. */
static tr_status usable(tr_reducer *r)
{
    if (r->failed != TR_OK) {
        tr_set_error(&r->failure);
        return tr_comm_break(r->c, r->failed);
    }
    return tr_comm_usable(r->c);
}

void tr_reducer_ready(tr_reducer *r, int bucket)
{
    if (r->failed != TR_OK) return;
    if (bucket < 0 && r->ops->begin) r->ops->begin(r);
    if (bucket <= r->ready) return;
    tr_status st = TR_OK;
    if (bucket >= (int)r->p->o.nbuckets)
        st = TR_FAIL(TR_INTERNAL, "bucket %d of %zu is ready", bucket, r->p->o.nbuckets);
    else
        st = r->ops->ready(r, bucket);
    if (st == TR_OK) {
        r->ready = bucket;
        return;
    }
    store_failure(r, st);
}

static tr_status poll(tr_reducer *r, bool *moved)
{
    tr_status st = usable(r);
    if (st != TR_OK) return st;
    int before = r->current;
    st = r->ops->poll(r, moved);
    if (st != TR_OK) return give_up(r, st);
    r->reductions += (uint64_t)(r->current - before);
    for (; r->reduced && before < r->current; before++) r->reduced(r->reduced_ctx, before);
    return TR_OK;
}

void tr_reducer_tell(tr_reducer *r, void (*reduced)(void *ctx, int bucket), void *ctx)
{
    r->reduced = reduced;
    r->reduced_ctx = ctx;
}

tr_status tr_reducer_poll(tr_reducer *r)
{
    bool moved = false;
    if (r->failed == TR_OK && r->current > r->ready) return TR_OK;
    return r->ops->poll ? poll(r, &moved) : usable(r);
}

static tr_status wait_all(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_wait w;
    tr_wait_init(&w, r->c, "reduction");
    w.step = (int64_t)r->steps;
    w.arrived = r->ops->arrived;
    w.ctx = r;
    w.mpi = r->comm != MPI_COMM_NULL;
    while (r->failed != TR_OK || !r->ops->done(r)) {
        bool moved = false;
        TR_TRY(poll(r, &moved));
        w.bucket = r->current;
        if (moved)
            tr_wait_restart(&w);
        else
            TR_TRY(tr_wait_turn(&w));
    }
out:
    return st;
}

tr_status tr_reducer_exchange_weights(tr_reducer *r, tr_exchange *x, float *weights)
{
    tr_status st = TR_OK;
    tr_wait w;
    tr_wait_init(&w, r->c, "updated weights");
    w.step = (int64_t)r->steps - 1;
    w.mpi = true;
    tr_exchange_gather(x, weights);
    for (bool moved = false; !tr_exchange_all(x); moved = false) {
        TR_TRY(tr_exchange_poll(x, &moved));
        if (moved)
            tr_wait_restart(&w);
        else
            TR_TRY(tr_wait_turn(&w));
    }
    tr_exchange_rewind(x);
out:
    return st;
}

static void next_step(tr_reducer *r)
{
    r->ready = -1;
    r->current = 0;
    r->steps++;
}

/* All on the device, in the stream. */
static tr_status finish_on_device(tr_reducer *r, double *tally, size_t ntally, double *sum_squares)
{
    tr_status st = TR_OK;
    if (r->ops->poll) TR_TRY(wait_all(r));
    TR_TRY(usable(r));
    st = r->ops->finish(r, tally, ntally, sum_squares);
    if (st != TR_OK) return give_up(r, st);
    if (!r->ops->poll) r->reductions += r->p->o.nbuckets;
    next_step(r);
out:
    return st;
}

tr_status tr_reducer_finish(tr_reducer *r, double *tally, size_t ntally, double *sum_squares)
{
    tr_status st = TR_OK;
    double v[64];
    if (r->failed == TR_OK && r->ready + 1 != (int)r->p->o.nbuckets)
        store_failure(r, TR_FAIL(TR_INTERNAL, "finish with %d of %zu buckets ready", r->ready + 1,
                                 r->p->o.nbuckets));
    if (r->ops->finish) return finish_on_device(r, tally, ntally, sum_squares);
    TR_TRY(wait_all(r));
    double squares = r->ops->squares(r);
    /* This sum is also the agreement that everybody has read what it had to read of our gradients
     * (so the next backward may overwrite them) and of the weights (so their owners may update
     * them). */
    if (ntally < TR_COUNT(v)) {
        if (ntally) memcpy(v, tally, ntally * sizeof(double));
        v[ntally] = squares;
        TR_TRY(tr_comm_all_reduce(r->c, v, ntally + 1, TR_F64));
        if (ntally) memcpy(tally, v, ntally * sizeof(double));
        squares = v[ntally];
    } else {
        TR_TRY(tr_comm_all_reduce(r->c, tally, ntally, TR_F64));
        TR_TRY(tr_comm_all_reduce(r->c, &squares, 1, TR_F64));
    }
    *sum_squares = squares;
    r->ops->rewind(r);
    next_step(r);
out:
    return st;
}

tr_status tr_reducer_sum_owned(tr_reducer *r, double *values, size_t count)
{
    const tr_ownership *own = &tr_placement_of(r->p)->own;
    const tr_topology *t = &r->c->topology;
    const bool copies = own->parts == 1, alone = copies && own->slices == 1;
    tr_status st = TR_OK;
    TR_TRY(usable(r));
    if (t->size == 1 || alone || !count) goto out;
    if (copies && t->node > 0) {
        if (tr_on_device(&r->p->o))
            TR_TRY(
                r->p->o.backend->memory->zero(r->p->o.backend_ctx, values, count * sizeof *values));
        else
            memset(values, 0, count * sizeof *values);
    }
    st = r->ops->sum ? r->ops->sum(r, values, count)
                     : tr_comm_all_reduce(r->c, values, count, TR_F64);
    if (st != TR_OK) return give_up(r, st);
out:
    return st;
}

tr_status tr_reducer_gather(tr_reducer *r, const void *send, void *recv, size_t nbytes)
{
    tr_status st = TR_OK;
    if (!r->ops->gather) return tr_comm_all_gather(tr_reducer_gatherers(r), send, recv, nbytes);
    TR_TRY(usable(r));
    st = r->ops->gather(r, send, recv, nbytes);
    if (st != TR_OK) return give_up(r, st);
out:
    return st;
}

tr_status tr_reducer_step(tr_reducer *r, uint64_t step, int micro)
{
    tr_status st = TR_OK;
    r->before.steps = r->steps;
    r->before.reductions = r->reductions;
    if (!r->ops->step) return TR_OK;
    TR_TRY(usable(r));
    st = r->ops->step(r, step, micro);
    if (st != TR_OK) return give_up(r, st);
out:
    return st;
}

void tr_reducer_again(tr_reducer *r)
{
    r->steps = r->before.steps;
    r->reductions = r->before.reductions;
    r->ready = -1;
    if (r->ops->again) r->ops->again(r);
}

void tr_reducer_issued(tr_reducer *r)
{
    if (r->ops->issued) r->ops->issued(r);
}

tr_status tr_reducer_wait(tr_reducer *r, uint64_t step, tr_status (*done)(void *ctx, bool *is),
                          void *ctx)
{
    tr_status st = TR_OK;
    tr_wait w;
    tr_wait_init(&w, r->c, "device's work");
    w.device = true;
    w.step = (int64_t)step;
    w.ctx = r;
    for (;;) {
        bool is = false;
        TR_TRY(usable(r));
        TR_TRY(done(ctx, &is));
        if (is) break;
        if (r->ops->watch) TR_TRY(r->ops->watch(r, &w));
        TR_TRY(tr_wait_turn(&w));
    }
    if (r->ops->reached) r->ops->reached(r);
    return TR_OK;
out:
    give_up(r, st);
    if (r->ops->abort) r->ops->abort(r); /* or what follows would wait for the device */
    tr_set_error(&r->failure);
    return st;
}

tr_status tr_reducer_publish(tr_reducer *r)
{
    tr_status st = tr_comm_usable(r->c);
    return st == TR_OK ? tr_comm_done(r->c, r->ops->publish(r)) : st;
}
