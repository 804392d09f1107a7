/* Where the time of a network goes: each op of a plan timed, held against what this machine can do,
 * and written as tables, stacks and plots. All Local unless a comment says otherwise. */
#ifndef TR_PROFILE_H
#define TR_PROFILE_H

#include "collectives/collectives.h"
#include "optimize/network/network.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/plan/plan.h"
#include "runtime/store/store.h"

/* ---- What the machine can do ----------------------------------------------------------------- */

typedef enum { TR_PEAK_FP32, TR_PEAK_BF16, TR_PEAK_FP16, TR_PEAK_INT8, TR_PEAKS } tr_peak;
extern const char *const tr_peak_names[TR_PEAKS]; /* "fp32", ... */

/* The roofline of S. Williams, A. Waterman, D. Patterson, CACM 52(4), 2009, as measured: products
 * of large matrices by the backend's own kernels, and copies. */
typedef struct {
    char device[256]; /* the CPU or GPU, and what computes on it */
    int64_t threads;
    double peak[TR_PEAKS]; /* arithmetic a second, 2 a multiply-add; 0: it has none of this type */
    char by[TR_PEAKS][TR_NAME]; /* what reached it: "a product of 512 x 512 x 512"; "": not known */
    double cache,
        memory; /* bytes a second, read and written, of what fits the cache, and what does not */
    double cache_bytes; /* up to so many operand bytes count as in the cache */
} tr_machine;

/* Device and threads alone. */
void tr_machine_name(const tr_backend *b, void *ctx, int threads, tr_machine *out);
/* Takes about a second. */
tr_status tr_machine_measure(const tr_backend *b, void *ctx, int threads, tr_machine *out);
/* What the JSON file says, where it is of this device and as many threads; else measured, and the
 * file written: that it cannot be is no failure. NULL: measured. */
tr_status tr_machine_get(const char *file, const tr_backend *b, void *ctx, int threads,
                         tr_machine *out);
void tr_machine_write(const tr_machine *m, FILE *to);
/* Of each rate the higher one: what ran beside a probe makes it slower, nothing makes it faster. */
void tr_machine_raise(tr_machine *m, const tr_machine *other);
/* Where the rate is above the peak so far. */
void tr_machine_raise_peak(tr_machine *m, tr_peak type, double rate, const char *by);
/* *same false: the text is none of ours, or of another device or another number of threads than
 * wanted (NULL: any will do). */
void tr_machine_read(const char *text, const tr_machine *wanted, tr_machine *out, bool *same);

/* ---- A profile ------------------------------------------------------------------------------- */

typedef enum {
    TR_COUNTER_CYCLES,
    TR_COUNTER_INSTRUCTIONS,
    TR_COUNTER_MISSES,
    TR_COUNTERS
} tr_counter_kind;
extern const char *const tr_counter_names[TR_COUNTERS];

/* What holds an op up. Overhead: it takes more than three times what arithmetic or bytes would. */
typedef enum { TR_BOUND_OVERHEAD, TR_BOUND_COMPUTE, TR_BOUND_MEMORY } tr_bound;
extern const char *const tr_bound_names[];

typedef enum {
    TR_PART_FORWARD = TR_PHASE_FORWARD,
    TR_PART_LOSS = TR_PHASE_LOSS,
    TR_PART_BACKWARD = TR_PHASE_BACKWARD,
    TR_PART_UPDATE,
    TR_PART_WAIT, /* of a step of a training: for data, for other ranks */
    TR_PARTS
} tr_part;
extern const char *const tr_part_names[TR_PARTS];

/* An op that runs; the update of the weights is one, too. */
typedef struct {
    char layer[TR_NAME], op[TR_NAME], impl[TR_NAME];
    tr_part part;
    tr_peak type;          /* of its activations */
    double seconds, share; /* median of the runs; of the sum over rows */
    double least;          /* of the runs */
    double flops, bytes;   /* tr_op_flops; operands read and written */
    double times;          /* that it runs in those seconds; 0: once */
    double padding; /* of flops, the part with zeros around an image, which kernels leave out */
    double roof;    /* what the machine would need, as a fraction of what it took */
    tr_bound bound;
    bool bottleneck; /* it takes more than TR_BOTTLENECK of the time */
    double live;     /* bytes of the arena in use while it runs */
    double
        counters[TR_COUNTERS]; /* of the calling thread, the least of some runs; NaN: not known */
} tr_profile_row;
#define TR_BOTTLENECK 0.2
/* Of its flops, what must be computed: what rates and roofs go by. */
static inline double tr_profile_computed(const tr_profile_row *r)
{
    return r->flops * (1 - r->padding);
}

/* A tensor, or an op's scratch, that is in the arena when most is. */
typedef struct {
    char name[TR_NAME];
    double nbytes;
    int64_t first, last; /* ops of the graph; -1: before the run */
} tr_profile_tensor;

typedef struct {
    tr_mode mode;
    int64_t batch;
    int runs;
    bool mean;             /* seconds are means of steps of a training, in which ops were timed */
    double seconds, first; /* median of whole runs, without the timing of ops; the first run */
    size_t nrows;
    tr_profile_row *rows; /* in the order they run */
    double arena, peak;   /* bytes: of the arena; of all that lives when most does */
    size_t peak_row, ntensors;
    tr_profile_tensor *tensors; /* that live then, the largest first */
    bool counted;
    char not_counted[128]; /* why there are no counters */
} tr_profile;

typedef struct {
    const tr_network *network;
    const tr_backend *backend;
    void *backend_ctx;
    int threads;
    tr_precision precision;
    tr_mode mode; /* TR_MODE_INFER, or TR_MODE_TRAIN: a step of one rank */
    int64_t batch;
    int runs;                  /* at least 1 */
    bool counters;             /* wanted, where the system allows it */
    const tr_config *training; /* whose update the step ends with; NULL: with none */
    int recompute;             /* of training: tr_recompute_kind */
    int64_t recompute_every;
    const int *recompute_segments;
    unsigned skip_passes;    /* of the graph: a set of TR_PASS_IS */
    bool (*stop)(void *ctx); /* asked between runs: TR_STOPPED; NULL: never */
    void *stop_ctx;
} tr_profile_options;

/* Bytes that tr_profile_measure takes while it runs, planned dry; of a device 0: it says itself
 * what it cannot give. */
tr_status tr_profile_needs(const tr_profile_options *o, size_t *nbytes);
/* Runs the network on random samples. Its values stay as they are. `m` NULL: nothing is said of
 * roofs. *out is to be freed by tr_profile_free, also after a failure. */
tr_status tr_profile_measure(const tr_profile_options *o, const tr_machine *m, tr_profile *out);
typedef struct {
    int turns;      /* at least, of each network */
    double seconds; /* likewise, of all */
    double limit;   /* no further turn once so many seconds went by; one is always taken */
} tr_profile_turns;
/* Several networks side by side, to compare them: each op's least time, of runs in turns. What
 * else the machine does meets all alike, and leaves short ops some runs of their own.
 * out[i].seconds: the sum of its rows'. o[i].runs: 1. Nothing is said of roofs and memory. out:
 * [count], to be freed as above. */
tr_status tr_profile_in_turns(const tr_profile_options *o, size_t count, const tr_profile_turns *t,
                              tr_profile *out);
/* What a plan says of an op, and of a step's update of so many weights: all of a row but its
 * times. */
void tr_profile_row_of(const tr_plan *plan, const tr_model *m, size_t op, tr_profile_row *r);
void tr_profile_row_of_update(const tr_config *training, const tr_backend *b, size_t weights,
                              tr_profile_row *r);
void tr_profile_free(tr_profile *p);
/* Of what was measured, memory alone; p->rows are there. */
tr_status tr_profile_memory(const tr_plan *plan, const tr_session *session, tr_profile *p);
/* Sets share, roof, bound and bottleneck of all rows from seconds, flops and bytes. */
void tr_profile_judge(tr_profile *p, const tr_machine *m);
/* An op that computes faster than the peak of its type by more than this shows that the probe was
 * made beside other work. Bandwidths are not looked at: what lies in a cache other than the probe's
 * may be faster. */
#define TR_ROOF_SLACK 0.05
/* NULL: there is none. *rate: as a part of the peak. */
const tr_profile_row *tr_profile_above_peak(const tr_profile *p, size_t n, const tr_machine *m,
                                            double *rate);
/* Where there is one, the machine is measured again, the higher rates are kept, also in the file
 * (NULL: there is none), and all profiles judged by them; said in the log. */
tr_status tr_machine_correct(const char *file, const tr_backend *b, void *ctx, tr_profile *p,
                             size_t n, tr_machine *m);
/* *Collective.* Rank 0's becomes everybody's. */
tr_status tr_profile_share(tr_profile *p, tr_comm *c);
tr_status tr_machine_share(tr_machine *m, tr_comm *c);
/* "inference, batch 32", "training step, batch 8". Returns buf. */
const char *tr_profile_title(const tr_profile *p, char *buf, size_t size);

/* ---- Hardware counters (counters.c) ---------------------------------------------------------- */

typedef struct {
    int fd[TR_COUNTERS];
    char why[128]; /* none could be opened */
} tr_counters;
/* Of the calling thread, in user space; those that cannot be had are NaN when read. False: none. */
bool tr_counters_open(tr_counters *c);
/* The same of other events, perf_event_open's `type` and `config`: a machine that shows no counters
 * has those of the kernel. */
bool tr_counters_open_as(tr_counters *c, uint32_t type, const uint64_t what[TR_COUNTERS]);
void tr_counters_read(const tr_counters *c, double out[TR_COUNTERS]); /* since they were opened */
void tr_counters_close(tr_counters *c);

/* ---- Writers --------------------------------------------------------------------------------- */

/* At most `most` rows, those that take longest, then sums and memory. */
void tr_profile_table(const tr_profile *p, const tr_machine *m, size_t most, FILE *to);
/* Folded stacks, "inference, batch 32;forward;conv2d1;conv2d 12345" with nanoseconds, as
 * flamegraph.pl, speedscope and inferno read them. */
void tr_profile_folded(const tr_profile *p, size_t n, FILE *to);
/* The same as a picture, one profile below the other, each over the whole width. */
void tr_profile_flame(const tr_profile *p, size_t n, FILE *to);
void tr_profile_roofline(const tr_profile *p, size_t n, const tr_machine *m, FILE *to);
/* PREFIX.txt, .folded, .flame.svg and .roofline.svg, each whole or absent. `m` NULL: without roofs.
 * `wrote`: told of each; may be NULL. */
tr_status tr_profile_files(const char *prefix, const tr_profile *p, size_t n, const tr_machine *m,
                           tr_status (*wrote)(const void *ctx, const char *path), const void *ctx);
/* A table named `name` with a row an op. */
tr_status tr_profile_findings(const tr_profile *p, const char *name, tr_findings *f);
#endif
