/* Networks over data: whole batches are dealt to all threads of all ranks, and what each gives is
 * gathered in the order of the batches. So results are the same for any number of ranks and
 * threads, bit for bit. */
#ifndef TR_EVALUATION_H
#define TR_EVALUATION_H

#include "collectives/collectives.h"
#include "optimize/network/network.h"
#include "runtime/data/data.h"
#include "runtime/plan/plan.h"

typedef struct {
    uint64_t samples;
    uint64_t targets;      /* that counted: samples, or rows of them */
    double loss;           /* mean over targets, weighted as in training */
    double accuracy, top5; /* fractions of targets; NaN where the loss has none */
} tr_evaluation;

/* Opens networks on a device and feeds them. Datasets are opened once, when they are first asked
 * for. */
typedef struct tr_evaluator tr_evaluator;

typedef struct {
    tr_comm *comm;           /* borrowed */
    const tr_config *config; /* borrowed: where data lies, the size of batches, precision */
} tr_evaluator_options;

tr_status tr_evaluator_open(const tr_evaluator_options *o, tr_evaluator **out);
void tr_evaluator_close(tr_evaluator *e);
tr_comm *tr_evaluator_comm(const tr_evaluator *e);
/* From now on it runs there; NULL: nowhere, until it is told again. */
void tr_evaluator_move(tr_evaluator *e, const tr_backend *backend, void *ctx, int threads);
/* From now on it computes in this, no longer in the config's train.precision; returns what it did
 * until now. */
tr_precision tr_evaluator_compute(tr_evaluator *e, tr_precision precision);
/* Where that is. */
void tr_evaluator_place(const tr_evaluator *e, const tr_backend **backend, void **ctx,
                        int *threads);

/* The mean over data.eval. *Collective.* `config`: of the network, for what is done to inputs
 * (data.normalize); NULL: the evaluator's. */
tr_status tr_evaluate(tr_evaluator *e, const tr_network *n, const tr_config *config,
                      tr_evaluation *out);

/* The same over the first so many samples (0: all) of data.eval or data.train. */
tr_status tr_evaluate_on(tr_evaluator *e, const tr_network *n, const tr_config *config,
                         bool train_data, uint64_t samples, tr_evaluation *out);

/* Which block of the config the samples are of. */
typedef enum { TR_OVER_EVAL, TR_OVER_TRAIN, TR_OVER_PREDICT, TR_OVER_SOURCES } tr_over_source;
const char *tr_over_source_name(tr_over_source s); /* "data.eval" */
const tr_source_config *tr_over_source_config(const tr_config *c, tr_over_source s);

/* *Collective.* tr_dataset_open on each rank, behind tr_dataset_look on the first of each node,
 * which hands on what it saw. All that reads samples over ranks opens them by this: files are each
 * rank's own, and TR_DIFFERENT where they do not hold the same, as far as tr_dataset_describe
 * looks. */
tr_status tr_same_data_open(tr_comm *comm, const tr_config *c, tr_over_source s, const tr_model *m,
                            tr_dataset **out);

/* *Collective.* The evaluator's own, opened once, by who first asks or runs over it, against the
 * model of that network: all have the same inputs. */
tr_status tr_evaluator_data(tr_evaluator *e, const tr_network *n, tr_over_source source,
                            tr_dataset **out);

/* *Collective*, where data could not be opened or read: whether that is their files' fault on each
 * rank that failed, so that all may go on without. Where not, all return what they have. The error
 * stays as it is. */
bool tr_evaluator_without(tr_evaluator *e, tr_status st);

/* What is done with each batch once a network has run on it. */
typedef struct {
    tr_over_source source; /* in the file's order and not augmented */
    uint64_t samples;      /* the first so many; 0: all */
    int64_t batch;         /* samples at once; 0: the config's; as many as there are, at most */
    unsigned skip_passes;  /* of the graphs, beside the config's: a set of TR_PASS_IS */
    size_t nbytes;         /* of a batch's result */
    size_t sample_nbytes;  /* and for each of its samples */
    /* In mode infer (the only one of data.predict, which has no targets), with these layers'
     * outputs (tr_graph.outputs; none: the last one's). Else evaluate. */
    bool infer;
    const char *const *outputs;
    size_t noutputs;
    /* *Local*, in any thread: `p` has run on the batch. `result` starts as zeros. */
    tr_status (*take)(void *ctx, const tr_plan *p, const tr_batch *b, const double tally[TR_TALLY],
                      void *result);
    void *ctx;
} tr_over_data;

/* *Collective.* Runs `n` over the data. *results: of all batches, in their order, each of
 * tr_over_nbytes, the same on every rank; to be freed by tr_free. */
tr_status tr_run_over(tr_evaluator *e, const tr_network *n, const tr_config *config,
                      const tr_over_data *what, void **results, uint64_t *batches);

/* The same a part at a time: sessions stay open between parts. `e`, `n` and `config` are borrowed
 * until close. */
typedef struct tr_over tr_over;
/* *Collective.* */
tr_status tr_over_open(tr_evaluator *e, const tr_network *n, const tr_config *config,
                       const tr_over_data *what, tr_over **out);
void tr_over_close(tr_over *o); /* *Local.* NULL is fine */
uint64_t tr_over_batches(const tr_over *o);
int64_t tr_over_batch(const tr_over *o);                /* samples of a whole batch */
size_t tr_over_nbytes(const tr_over *o);                /* of a batch's result: a multiple of 8 */
uint64_t tr_over_samples(const tr_over *o);             /* of all batches */
const char *tr_over_file(const tr_over *o, uint64_t i); /* tr_dataset_file */
/* *Local.* tr_dataset_describe of its data. */
tr_status tr_over_describe(tr_over *o, FILE *to);
/* *Collective.* Batches [first, first + count), behind those of the run before; *results of these,
 * else as tr_run_over. */
tr_status tr_over_run(tr_over *o, uint64_t first, uint64_t count, void **results);

/* *Local*, once `p` has run: the last layer's output as float32, channels first. out: room for a
 * whole batch. */
tr_status tr_plan_output(const tr_backend *backend, void *ctx, const tr_plan *p, float *out);
/* *Local*, in tr_over_data.take: the last layer's output as float32, channels first. out: room for
 * a whole batch. */
tr_status tr_over_output(const tr_evaluator *e, const tr_plan *p, float *out);

/* *Local.* Outputs or targets of `m`, channels first, as data.normalize_targets has them, back in
 * the file's units. */
void tr_over_denormalize(const tr_config *c, const tr_model *m, size_t samples, float *v);
/* The same less the mean, for what only distances count of: beside a large mean float32 would have
 * little of them. */
void tr_over_denormalize_but_mean(const tr_config *c, const tr_model *m, size_t samples, float *v);

/* *Collective.* What `n` puts out for the first so many samples (0: all), as float32; a short batch
 * is filled up with zeros. Two networks of one shape of output compare element by element. *out:
 * [*count], the same on every rank, to be freed by tr_free. */
tr_status tr_outputs_over(tr_evaluator *e, const tr_network *n, const tr_config *config,
                          bool train_data, uint64_t samples, float **out, size_t *count);
/* The same as `how` says it: source, samples, batch, skip_passes, infer; its other fields do not
 * count. */
tr_status tr_outputs_how(tr_evaluator *e, const tr_network *n, const tr_config *config,
                         const tr_over_data *how, float **out, size_t *count);

/* The most that outputs are apart, over the largest of `a` or 1, whichever is more; NaN where one
 * is none. */
double tr_outputs_apart(const float *a, const float *b, size_t count);

/* *Collective.* The gradient of the sum of losses over the first so many samples (0: all) of
 * data.train, in batches of train.batch, in float32, as training computes it. out: [flat_count], 0
 * of frozen rows. */
tr_status tr_gradients_over(tr_evaluator *e, const tr_network *n, const tr_config *config,
                            uint64_t samples, float *out);

#endif
