/* Gradients over NCCL: one ncclAllReduce a bucket, in place, on a stream of its own, as soon as
 * backward has made the bucket:
 *
 *   compute   backward ... g2 | ... g1 | ... g0 |                     sum of squares, update
 *                            \         \         \                   /
 *   comm                      bucket 0  bucket 1  bucket 2 + tally -
 *
 * All ranks must give NCCL the same operations in the same order, in the same groups, or it hangs.
 * So
 *  - each bucket is an operation of its own, whichever became ready together; the last one goes
 *    with the tally in one group, which NCCL makes one kernel of. What divides and what tells an
 *    overflow is thereby there with the gradients: sums that are not finite make the sum of squares
 *    so;
 *  - buckets and SyncBN's gathers are issued in one order, whichever communicators and streams
 *    they have (link.c), also on ranks of nodes that do not gather with each other, as all have as
 *    many gathers: an empty share has its buckets ready before it gathers, others in the midst of
 *    it. In the first step every bucket waits for finish, where the ranks compare after how many
 *    gathers each had it ready; from then on bucket b follows gather after[b], the last of those,
 * on all of them.
 *
 * Sharded: ncclReduceScatter takes the all-reduce's place; the sum of squares needs one more small
 * all-reduce, which takes the tally along; publish gathers the weights, those that kernels read as
 * 16-bit copies alone rounded to these, packed where the bucket's gradients lay:
 *
 *   compute   ... g0 |                    squares         update
 *                     \                  /      \        /     \
 *   comm               bucket 2: scatter        tally +       all-gather of weights
 *
 * NCCL leaves the same bits on every rank; and, where link.c keeps it from NVLS, the same
 * ones in every run on the same machines: its choice of algorithm depends on sizes and topology,
 * not on time. Bytes a rank sends: 2 (p-1)/p of the gradients in a ring, or its two halves. One
 * rank has no communicator: the gradients are the sums. */
#include "collectives/nccl/internal.h"

#include <string.h>
#include <time.h>

typedef struct {
    tr_side side;
    tr_side beside; /* of gathers that need not queue behind buckets; else not open */
    tr_side *gathering;
    /* The link's. */
    tr_nccl *nccl;      /* NULL: one rank */
    tr_nccl *gatherers; /* may be `nccl`; NULL: one rank gathers alone */
    void *squares;      /* of what is owned; NULL: the optimizer is not sharded */
    tr_nccl_weights *weights;
    tr_watch *watch;
    void *registered[2]; /* the store's arrays, with `nccl` */
    int launched;        /* buckets of this step */
    int gathers;         /* since the run began in which buckets become ready */
    int begun;           /* gathers of this micro-batch */
    bool agreed;
    int32_t *after; /* [nbuckets] gathers; of this rank until they are agreed */
    int32_t *all;   /* [ranks][nbuckets] */
} tr_gpu_state;

static int last_bucket(const tr_reducer *r)
{
    return (int)r->p->o.nbuckets - 1;
}

static tr_status all_reduce(tr_reducer *r, void *at, size_t count, ncclDataType_t type)
{
    tr_gpu_state *s = r->state;
    return tr_nccl_check(s->nccl,
                         ncclAllReduce(at, at, count, type, ncclSum, s->nccl->comm, s->side.stream),
                         "ncclAllReduce");
}

/* In place: a rank's share of the sums ends where its own gradients lay; what does not divide is
 * small, and summed everywhere. */
static tr_status reduce_scatter(tr_reducer *r, tr_range bucket)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    const tr_topology *t = &r->c->topology;
    const tr_range mine = tr_even_share(bucket, t->rank, t->size);
    const tr_range rest = tr_even_rest(bucket, t->size);
    float *g = r->p->grads;
    if (tr_range_count(mine))
        TR_TRY(
            tr_nccl_check(s->nccl,
                          ncclReduceScatter(g + bucket.begin, g + mine.begin, tr_range_count(mine),
                                            ncclFloat32, ncclSum, s->nccl->comm, s->side.stream),
                          "ncclReduceScatter"));
    if (tr_range_count(rest))
        TR_TRY(all_reduce(r, g + rest.begin, tr_range_count(rest), ncclFloat32));
out:
    return st;
}

static tr_status reduce_bucket(tr_reducer *r, tr_range bucket)
{
    return r->o.shard
               ? reduce_scatter(r, bucket)
               : all_reduce(r, r->p->grads + bucket.begin, tr_range_count(bucket), ncclFloat32);
}

/* Bucket b, and with it, unless it is NULL, the tally. The same operations on every rank. */
static tr_status launch(tr_reducer *r, int b, double *tally, size_t ntally)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    const tr_range bucket = b >= 0 ? r->p->o.buckets[b] : (tr_range){0, 0};
    const size_t count = tr_range_count(bucket);
    if (!count && !ntally) return TR_OK;
    TR_TRY(tr_side_fork(&s->side));
    tr_watch_issue(s->watch);
    if (b >= 0) TR_TRY(tr_watch_begun(s->watch, b, s->side.stream));
    TR_TRY(tr_nccl_check(s->nccl, ncclGroupStart(), "ncclGroupStart"));
    if (count) st = reduce_bucket(r, bucket);
    if (st == TR_OK && ntally) st = all_reduce(r, tally, ntally, ncclFloat64);
    ncclResult_t ended = ncclGroupEnd(); /* a group that was begun is ended, whatever went wrong */
    if (st != TR_OK) return st;
    TR_TRY(tr_nccl_settle(s->nccl, ended, "ncclGroupEnd"));
    if (b >= 0) TR_TRY(tr_watch_done(s->watch, b, s->side.stream));
out:
    return st;
}

/* What may go by now: all but the last bucket, which waits for the tally. */
static tr_status advance(tr_reducer *r, int ready)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    while (s->agreed && s->launched < last_bucket(r) && s->launched <= ready &&
           s->after[s->launched] <= s->gathers)
        TR_TRY(launch(r, s->launched++, NULL, 0));
out:
    return st;
}

static tr_status nccl_ready(tr_reducer *r, int bucket)
{
    tr_gpu_state *s = r->state;
    if (!s->nccl) return TR_OK;
    for (int b = r->ready + 1; b <= bucket; b++) {
        if (!s->agreed)
            s->after[b] = s->gathers;
        else if (b < last_bucket(r) && s->gathers > s->after[b])
            return TR_FAIL(TR_INTERNAL,
                           "bucket %d is ready after %d gathers, in the first step after %d: "
                           "the ranks would go out of step",
                           b, s->gathers, s->after[b]);
    }
    return advance(r, bucket);
}

/* *Collective*, on the host, once. */
static tr_status agree_order(tr_reducer *r)
{
    tr_gpu_state *s = r->state;
    size_t n = r->p->o.nbuckets;
    tr_status st = tr_comm_all_gather(r->c, s->after, s->all, n * sizeof *s->after);
    for (int k = 0; st == TR_OK && k < r->c->topology.size; k++)
        for (size_t b = 0; b < n; b++)
            if (s->all[(size_t)k * n + b] > s->after[b]) s->after[b] = s->all[(size_t)k * n + b];
    s->agreed = st == TR_OK;
    return st;
}

/* Each rank has the squares of its own sums: added up with the tally, when all of them are
 * there. */
static tr_status finish_sharded(tr_reducer *r, double *tally, size_t ntally, double *sum_squares)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    while (s->launched <= last_bucket(r)) TR_TRY(launch(r, s->launched++, NULL, 0));
    TR_TRY(tr_side_join(&s->side));
    TR_TRY(r->p->o.backend->training->squares_run(s->squares, sum_squares));
    TR_TRY(tr_side_fork(&s->side));
    tr_watch_issue(s->watch);
    TR_TRY(tr_nccl_check(s->nccl, ncclGroupStart(), "ncclGroupStart"));
    st = all_reduce(r, sum_squares, 1, ncclFloat64);
    if (st == TR_OK && ntally) st = all_reduce(r, tally, ntally, ncclFloat64);
    ncclResult_t ended = ncclGroupEnd();
    if (st != TR_OK) return st;
    TR_TRY(tr_nccl_settle(s->nccl, ended, "ncclGroupEnd"));
    TR_TRY(tr_side_join(&s->side));
out:
    return st;
}

static tr_status finish_whole(tr_reducer *r, double *tally, size_t ntally, double *sum_squares)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    const tr_params *p = r->p;
    if (s->nccl) {
        while (s->launched < last_bucket(r)) TR_TRY(launch(r, s->launched++, NULL, 0));
        TR_TRY(launch(r, last_bucket(r), tally, ntally));
        TR_TRY(tr_side_join(&s->side));
    }
    TR_TRY(p->o.backend->training->sum_squares(p->o.backend_ctx, p->grads, tr_params_learned(&p->o),
                                               sum_squares));
out:
    return st;
}

static tr_status nccl_finish(tr_reducer *r, double *tally, size_t ntally, double *sum_squares)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    TR_TRY(s->squares ? finish_sharded(r, tally, ntally, sum_squares)
                      : finish_whole(r, tally, ntally, sum_squares));
    if (s->nccl && !s->agreed) TR_TRY(agree_order(r));
    s->launched = s->gathers = 0;
out:
    return st;
}

static tr_status nccl_sum(tr_reducer *r, double *values, size_t count)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    TR_TRY(tr_side_fork(&s->side));
    tr_watch_issue(s->watch);
    TR_TRY(tr_watch_gather(s->watch, s->begun++, s->side.stream));
    TR_TRY(tr_nccl_settle(
        s->nccl,
        ncclAllReduce(values, values, count, ncclFloat64, ncclSum, s->nccl->comm, s->side.stream),
        "ncclAllReduce"));
    TR_TRY(tr_side_join(&s->side));
out:
    return st;
}

static tr_status nccl_gather(tr_reducer *r, const void *send, void *recv, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    if (!nbytes) return TR_OK;
    if (!s->gatherers)
        TR_TRY(r->p->o.backend->memory->copy(r->p->o.backend_ctx, recv, send, nbytes));
    if (!s->nccl) return TR_OK;
    TR_TRY(tr_side_fork(s->gathering));
    tr_watch_issue(s->watch);
    TR_TRY(tr_watch_gather(s->watch, s->begun++, s->gathering->stream));
    if (s->gatherers)
        TR_TRY(tr_nccl_settle(
            s->gatherers,
            ncclAllGather(send, recv, nbytes, ncclUint8, s->gatherers->comm, s->gathering->stream),
            "ncclAllGather"));
    TR_TRY(tr_side_join(s->gathering));
    s->gathers++;
    TR_TRY(advance(r, r->ready));
out:
    return st;
}

static void nccl_begin(tr_reducer *r)
{
    tr_gpu_state *s = r->state;
    s->gathers = 0;
}

/* Connections to a rank that died break at about the time at which it can be seen dead: who died is
 * better news than that a connection did. */
static tr_status blame(const tr_reducer *r, const tr_wait *w)
{
    const tr_topology *t = &r->c->topology;
    const tr_error why = *tr_last_error();
    for (int i = 0; i < 10; i++) {
        if (tr_wait_look(w) != TR_OK) return TR_PEER;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    char bucket[32] = "";
    if (w->bucket >= 0) snprintf(bucket, sizeof bucket, ", bucket %lld", (long long)w->bucket);
    tr_set_error(&why);
    return tr_fail_before(why.status, "rank %d (%s), step %lld%s: ", t->rank, t->host,
                          (long long)w->step, bucket);
}

static tr_status nccl_step(tr_reducer *r, uint64_t step, int micro)
{
    tr_gpu_state *s = r->state;
    s->begun = 0;
    return s->nccl ? tr_watch_micro(s->watch, step, micro, s->side.compute) : TR_OK;
}

static void nccl_again(tr_reducer *r)
{
    tr_gpu_state *s = r->state;
    s->launched = s->gathers = 0;
}

static void nccl_issued(tr_reducer *r)
{
    tr_gpu_state *s = r->state;
    if (s->nccl) tr_watch_issued(s->watch);
}

static void nccl_reached(tr_reducer *r)
{
    tr_gpu_state *s = r->state;
    if (s->nccl) tr_watch_tell(s->watch);
}

static tr_status nccl_watch(tr_reducer *r, tr_wait *w)
{
    tr_gpu_state *s = r->state;
    if (!s->nccl) return TR_OK;
    tr_watch_device(s->watch, w);
    if (tr_nccl_look(s->nccl) != TR_OK) return blame(r, w);
    return !s->gatherers || tr_nccl_look(s->gatherers) == TR_OK ? TR_OK : blame(r, w);
}

static void nccl_abort(tr_reducer *r)
{
    tr_gpu_state *s = r->state;
    if (s->nccl) tr_nccl_abort(s->nccl);
    if (s->gatherers) tr_nccl_abort(s->gatherers);
}

/* Weights are private. Where every rank owns everything they were updated alike everywhere; else
 * all buckets' go in a few operations, as nothing is left to overlap them with. */
static tr_status nccl_publish(tr_reducer *r)
{
    enum { TOGETHER = 64 };
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    const size_t n = r->p->o.nbuckets;
    if (!s->squares) return TR_OK;
    TR_TRY(tr_nccl_weights_pack(s->weights));
    TR_TRY(tr_side_fork(&s->side));
    for (size_t b = 0; b < n;) {
        const size_t end = n - b < TOGETHER ? n : b + TOGETHER;
        tr_watch_issue(s->watch);
        TR_TRY(tr_watch_gather(s->watch, s->begun++, s->side.stream));
        TR_TRY(tr_nccl_check(s->nccl, ncclGroupStart(), "ncclGroupStart"));
        for (; st == TR_OK && b < end; b++)
            st = tr_nccl_weights_gather(s->weights, s->nccl, b, s->side.stream);
        ncclResult_t ended = ncclGroupEnd();
        if (st != TR_OK) return st;
        TR_TRY(tr_nccl_settle(s->nccl, ended, "ncclGroupEnd"));
    }
    TR_TRY(tr_side_join(&s->side));
    TR_TRY(tr_nccl_weights_unpack(s->weights));
out:
    return st;
}

static void forget_watch(tr_gpu_state *s)
{
    if (s->nccl) s->nccl->watch = NULL;
    if (s->gatherers) s->gatherers->watch = NULL;
    tr_watch_close(s->watch);
}

static void deregister(tr_gpu_state *s)
{
    for (size_t i = 0; i < TR_COUNT(s->registered); i++) {
        if (s->nccl) tr_nccl_deregister(s->nccl, s->registered[i]);
        s->registered[i] = NULL;
    }
}

static void nccl_close(tr_reducer *r)
{
    tr_gpu_state *s = r->state;
    const tr_backend *b = r->p->o.backend;
    if (s && s->nccl) {
        if (tr_comm_broken(r->c)) nccl_abort(r); /* or the next call would wait for the device */
        tr_sections_drop(b, r->p->o.backend_ctx);
    }
    if (s) {
        tr_side_close(&s->side); /* waits for copies into what the next lines free */
        tr_side_close(&s->beside);
        deregister(s); /* what is aborted has done so itself */
        forget_watch(s);
        if (s->squares) b->training->squares_close(s->squares);
        tr_nccl_weights_close(s->weights);
        tr_free(s->after);
        tr_free(s->all);
    }
    tr_free(s);
    r->state = NULL;
    r->ops = NULL;
}

static const tr_reducer_ops ops = {.name = "NCCL",
                                   .ready = nccl_ready,
                                   .publish = nccl_publish,
                                   .close = nccl_close,
                                   .finish = nccl_finish,
                                   .sum = nccl_sum,
                                   .gather = nccl_gather,
                                   .begin = nccl_begin,
                                   .step = nccl_step,
                                   .again = nccl_again,
                                   .issued = nccl_issued,
                                   .watch = nccl_watch,
                                   .reached = nccl_reached,
                                   .abort = nccl_abort};

static tr_status allocate(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    size_t n = r->p->o.nbuckets, ranks = (size_t)r->c->topology.size;
    if (ranks == 1) return TR_OK;
    TR_TRY(tr_side_open(r, &s->side));
    s->after = tr_alloc(TR_MEM_OTHER, n, sizeof *s->after);
    s->all = s->after ? tr_alloc(TR_MEM_OTHER, n * ranks, sizeof *s->all) : NULL;
    if (!s->all) st = tr_last_status();
    const tr_params *p = r->p;
    if (st == TR_OK && r->o.shard)
        st = p->o.backend->training->squares_open(p->o.backend_ctx, p->grads, p->owned, p->nowned,
                                                  &s->squares);
    if (st == TR_OK && r->o.shard) st = tr_nccl_weights_open(r, &s->weights);
out:
    return st;
}

/* *Collective.* On all ranks or on none: NCCL allows no mixture. */
static tr_status register_arrays(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state;
    const tr_params *p = r->p;
    float *const *lent = tr_placement_of(p)->lent;
    const size_t counts[] = {tr_params_learned(&p->o), p->o.count};
    for (size_t i = 0; st == TR_OK && i < TR_COUNT(counts); i++)
        if (lent[i])
            st = tr_nccl_register(s->nccl, lent[i], counts[i] * sizeof(float), &s->registered[i]);
    st = tr_agree(r->c, st, NULL);
    if (st == TR_OK || tr_comm_broken(r->c)) return st;
    deregister(s);
    if (r->c->topology.rank == 0)
        tr_log(TR_LOG_INFO, "gradients are not registered with NCCL: %s", tr_last_error()->text);
    return TR_OK;
}

/* A node's ranks have the same local ranks in their group as in the job, so that s->watch knows
 * them. */
static tr_status use_link(tr_reducer *r, tr_nccl_link *l)
{
    tr_gpu_state *s = r->state;
    s->nccl = l->reduce;
    s->gatherers = l->gather;
    s->nccl->watch = s->watch;
    if (s->gatherers) s->gatherers->watch = s->watch;
    s->gathering = l->beside ? &s->beside : &s->side;
    snprintf(r->name, sizeof r->name, "NCCL %s", l->version);
    return l->beside ? tr_side_open(r, &s->beside) : TR_OK;
}

tr_status tr_reducer_nccl_init(tr_reducer *r)
{
    tr_status st = TR_OK;
    tr_gpu_state *s = r->state = TR_NEW(TR_MEM_OTHER, tr_gpu_state);
    tr_nccl_link *link = (tr_nccl_link *)r->o.link;
    r->ops = &ops;
    st = s ? allocate(r) : tr_last_status();
    TR_TRY(tr_agree(r->c, st, NULL));
    snprintf(r->name, sizeof r->name, "one rank");
    if (r->c->topology.size == 1) goto out;
    TR_NEED(link, TR_INTERNAL, "the GPUs are not connected");
    TR_TRY(tr_watch_open(r, &s->watch));
    TR_TRY(tr_agree(r->c, use_link(r, link), NULL));
    TR_TRY(register_arrays(r));
out:
    return st; /* tr_reducer_close frees what there is */
}
