/* What the reducer's files share: the object and its table of functions, the index arithmetic, the
 * summing loops, the exchange between nodes. */
#ifndef TR_COLLECTIVES_REDUCER_H
#define TR_COLLECTIVES_REDUCER_H

#include "collectives/waiting/waiting.h"

#define TR_SLICE_UNIT 16u              /* elements: a cache line of float32 */
#define TR_SUM_CHUNK  ((size_t)32768)  /* elements summed in one poll: 128 KB */
#define TR_PIECE      ((size_t)262144) /* elements between nodes in one go: 1 MB */
#define TR_LANES      4                /* pieces under way at once */

typedef struct tr_exchange tr_exchange;

typedef struct {
    const char *name;
    tr_status (*ready)(tr_reducer *r, int bucket); /* buckets up to this one are ready here */
    tr_status (*poll)(tr_reducer *r, bool *moved); /* bounded work */
    bool (*done)(const tr_reducer *r);
    double (*squares)(const tr_reducer *r); /* this rank's share of the sum, in a fixed order */
    void (*rewind)(tr_reducer *r);          /* the step is over */
    tr_status (*publish)(tr_reducer *r);
    void (*close)(tr_reducer *r);
    bool (*arrived)(const void *r, int local_rank);      /* for tr_wait; NULL: not known */
    const tr_exchange *(*exchange)(const tr_reducer *r); /* NULL: has none */
    /* Of devices; NULL on the host. finish takes the place of squares and rewind; poll and done may
     * be NULL: then finish puts all that is left into the stream. */
    tr_status (*finish)(tr_reducer *r, double *tally, size_t ntally, double *sum_squares);
    tr_status (*sum)(tr_reducer *r, double *values, size_t count); /* over all ranks */
    tr_status (*gather)(tr_reducer *r, const void *send, void *recv, size_t nbytes);
    void (*begin)(tr_reducer *r); /* tr_reducer_ready(r, -1); may be NULL */
    tr_status (*step)(tr_reducer *r, uint64_t step, int micro); /* tr_reducer_step; may be NULL */
    void (*again)(tr_reducer *r);                               /* tr_reducer_again; may be NULL */
    void (*issued)(tr_reducer *r);                              /* may be NULL */
    /* While the host waits for the device, whose time `w` counts: looks for what failed there, and
     * how far it has come. reached: what it waited for is there. */
    tr_status (*watch)(tr_reducer *r, tr_wait *w);
    void (*reached)(tr_reducer *r);
    void (*abort)(
        tr_reducer *r); /* makes work that waits for peers on the device end; may be NULL */
} tr_reducer_ops;

/* How the reducers of devices are had without linking them into every program. All *Collective*,
 * but for the memory's; the reducers as tr_reducer_mpi_init. */
struct tr_gpu_reducers {
    tr_status (*nccl)(tr_reducer *r);
    tr_status (*staged)(tr_reducer *r);
    /* Memory that `nccl` works in best: tr_device_lender's, with the tr_job as its context. */
    void *(*alloc)(void *job, size_t nbytes);
    void (*free)(void *job, void *p);
    tr_status (*connect)(tr_comm *c, const tr_gpu_link_options *o, tr_gpu_link **out);
    void (*disconnect)(tr_gpu_link *l);
};

/* The head of what connect gives. */
struct tr_gpu_link {
    const tr_gpu_reducers *by;
    tr_comm *c;
};

/* ---- params.c: where a store's arrays lie ---- */

/* How the flat space is dealt: each bucket in slices over the ranks of a node; where the optimizer
 * is sharded, these in parts over nodes, or over ranks that share no memory. */
typedef struct {
    int slices, slice; /* slices 1: buckets are whole */
    int parts, part;   /* parts 1: slices are whole */
    bool even;         /* parts as NCCL deals a bucket; else as the exchange does its pieces */
} tr_ownership;

typedef struct {
    _Alignas(TR_CACHE_LINE) _Atomic uint64_t ready; /* buckets since open */
} tr_ready_flag;

typedef struct {
    int32_t node, local_rank;
} tr_seat;

typedef struct {
    tr_comm *c;
    tr_reducer_options r;
    tr_ownership own;
    tr_range *owned;
    size_t nowned;
    /* Where ranks of the node share memory; else bases is NULL. */
    tr_window window;
    tr_ready_flag *flags;         /* [local_size] */
    const float **bases;          /* [local_size] gradients of the node's ranks */
    float *slots[TR_PARAM_SLOTS]; /* of the node's first rank, the others' behind it */
    /* Arrays in memory of the link's library: gradients, weights; NULL: the backend's own. */
    tr_device_lender lender;
    const tr_backend *backend;
    void *backend_ctx;
    float *lent[2];
    size_t counted[TR_MEM_KINDS]; /* bytes told to the memory report */
    /* For collect.c. */
    tr_seat *seats;   /* [ranks] */
    tr_range *theirs; /* scratch: what another rank owns */
    float *buffer;    /* [TR_PIECE], where slots do not lie in memory that rank 0 reads */
} tr_placement;

const tr_placement *tr_placement_of(const tr_params *p);
tr_status tr_collect_open(tr_placement *l, const tr_params_options *o); /* *Collective* */
void tr_collect_close(tr_placement *l);
static inline bool tr_on_device(const tr_params_options *o)
{
    return o->backend && !o->backend->host;
}

struct tr_reducer {
    const tr_reducer_ops *ops;
    char name[64]; /* "": ops->name */
    void *state;   /* the implementation's */
    tr_comm *c;
    MPI_Comm comm; /* ranks that exchange with each other; MPI_COMM_NULL: none */
    tr_params *p;  /* borrowed */
    tr_reducer_options o;
    int ready;           /* last bucket marked, -1: none */
    int current;         /* bucket being reduced: all before it are done */
    uint64_t steps;      /* finished */
    uint64_t reductions; /* buckets since open: one a bucket a step; replayed steps are not seen */
    struct {
        uint64_t steps, reductions;
    } before;                               /* the micro-batch that is being issued */
    void (*reduced)(void *ctx, int bucket); /* tr_reducer_tell */
    void *reduced_ctx;
    tr_status failed; /* of ready() or poll(), reported by every poll after */
    tr_error failure;
};

/* For tests. Bytes that this rank's exchange sent since open; 0 without one. */
uint64_t tr_reducer_sent(const tr_reducer *r);

/* Who gathers together. */
static inline tr_comm *tr_reducer_gatherers(const tr_reducer *r)
{
    return r->o.gatherers ? r->o.gatherers : r->c;
}
/* *Collective* over the exchange's ranks: each one's parts of the weights, or of a copy, to all. */
tr_status tr_reducer_exchange_weights(tr_reducer *r, tr_exchange *x, float *weights);
tr_status tr_reducer_shared_init(tr_reducer *r);
tr_status tr_reducer_mpi_init(tr_reducer *r);

/* ---- slices.c: pure ---- */

/* Slice `i` of `n` of a range: multiples of 16 elements, gapless, sizes that differ by at most 16.
 * Empty for i >= n. */
tr_range tr_slice(tr_range whole, int i, int n);
size_t tr_pieces(size_t count, size_t piece); /* how many pieces of at most `piece` */
/* How rank t->rank takes part. */
tr_ownership tr_ownership_of(const tr_topology *t, const tr_params_options *p,
                             const tr_reducer_options *r);
/* A bucket over NCCL: equal shares, and what is left, less than 16 elements a rank, which is one
 * rank's: buckets take turns. */
tr_range tr_even_share(tr_range bucket, int rank, int ranks);
tr_range tr_even_rest(tr_range bucket, int ranks);
int tr_even_rest_owner(size_t bucket, int ranks);
/* Bytes of each rank's share of a bucket's weights on the wire: those of the largest, as all send
 * alike. As much as in float32 where some share has nothing to round. */
size_t tr_even_nbytes(const tr_params_options *p, tr_range bucket, int ranks);
/* Ranges that it owns, ascending, neighbours merged; returns how many, at most tr_owned_most. */
size_t tr_owned(const tr_ownership *w, const tr_range *buckets, size_t nbuckets, tr_range *out);
size_t tr_owned_most(const tr_ownership *w, const tr_range *buckets, size_t nbuckets);
/* elements */
size_t tr_owned_count(const tr_ownership *w, const tr_range *buckets, size_t nbuckets);
/* The most elements one node sums of a piece. */
size_t tr_part_floats(int nodes);
/* Floats that the exchange between `nodes` keeps as buffers: float32 received, or bfloat16 received
 * and sent, which is as much. */
size_t tr_exchange_floats(int nodes);

/* ---- wire.c: weights on their way to ranks that do not own them ---- */

/* A range of the flat space (multiples of 16 elements, of the buckets): what is rounded takes two
 * bytes an element, all else four. Pack rounds as kernels do when they make their copies; unpack
 * widens, so that those copies have the same bits on every rank. */
size_t tr_wire_nbytes(const tr_params_options *p, tr_range range);
void tr_wire_pack(const tr_params_options *p, const float *weights, tr_range range, void *to);
void tr_wire_unpack(const tr_params_options *p, float *weights, tr_range range, const void *from);
/* Calls `f` with the runs of a range that go alike, ascending. */
typedef void tr_wire_run(void *ctx, tr_range run, bool rounded);
void tr_wire_runs(const tr_params_options *p, tr_range range, tr_wire_run *f, void *ctx);

/* ---- sum.c ---- */

/* dst[i] = ((src[0][i] + src[1][i]) + ...): dst may be one of the sources (and is src[0] when there
 * is one only). Returns the sum of the squares of the results: not finite iff one of them is
 * not. */
double tr_sum_sources(float *dst, const float *const *src, int sources, size_t n);
double tr_sum_squares(const float *v, size_t n);
void tr_sum_add(float *dst, const float *src, size_t n);
void tr_sum_add_bf16(float *dst, const tr_bf16 *src, size_t n);
void tr_sum_to_bf16(tr_bf16 *dst, const float *src, size_t n);
void tr_sum_from_bf16(float *dst, const tr_bf16 *src, size_t n);

/* ---- exchange.c: all-reduce, or its halves, between counterparts, in the background of polls
 * ---- */

/* *Collective* over `comm` (owned by the caller): ranges of `base`, in the order they will be
 * submitted; the same lengths on every rank. */
typedef struct {
    bool bf16;    /* on the wire */
    bool scatter; /* each rank ends with the sums of its own parts alone: reduce-scatter */
    const tr_params_options *weights; /* how what is gathered goes; borrowed. NULL: as float32 */
} tr_exchange_options;
tr_status tr_exchange_open(MPI_Comm comm, float *base, const tr_range *ranges, size_t nranges,
                           tr_exchange_options o, tr_exchange **out);
void tr_exchange_close(tr_exchange *x, bool broken);
void tr_exchange_submit(tr_exchange *x, size_t ranges); /* the first `ranges` ranges may go */
tr_status tr_exchange_poll(tr_exchange *x, bool *moved);
size_t tr_exchange_done(const tr_exchange *x);   /* ranges finished: all before are, too */
bool tr_exchange_all(const tr_exchange *x);      /* every range */
uint64_t tr_exchange_sent(const tr_exchange *x); /* bytes since open */
/* Between steps: every rank's parts of `array`, which is as `base` is, go to all. Done
 * with all ranges when polls have brought tr_exchange_done there; then rewind. */
void tr_exchange_gather(tr_exchange *x, float *array);
/* Sum of squares over the parts that this rank summed (each element counts on one rank only). */
double tr_exchange_squares(const tr_exchange *x);
void tr_exchange_rewind(tr_exchange *x);

#endif
