/* `trainer predict MODEL [key=value ...] -o OUT.h5|.npy|.csv`: what the model of a run file says of
 * each sample of data.predict, or of another block. Ranks run batches, rank 0 appends what they
 * give to OUT.part in the order of the samples, and from the whole of it makes OUT. A batch gives
 * the same bits on any rank, so neither how many there are nor where a killed prediction went on is
 * seen in OUT. */
#include "trainer/command/by_hand.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "optimize/predict/predict.h"
#include "runtime/base/numbers.h"
#include "trainer/loop/signals.h"
#include "trainer/pipeline/essence.h"
#include "trainer/pipeline/frame.h"

#define PART    ((size_t)4 << 20) /* bytes of outputs that are gathered at a time, about */
#define ROUNDS  16                /* or so many batches of each thread */
#define SECONDS 5.0               /* between two words on how far it is */

typedef struct {
    const tr_arguments *a;
    tr_comm *comm;
    bool root;
    const tr_config *config; /* the run file's */
    tr_over_source source;
    tr_frame frame;
    tr_over *over;
    size_t outputs, rows; /* of a sample */
    uint64_t batch, samples, batches;
    size_t nbytes; /* of a batch's outputs */
    char job[65];  /* SHA-256 of what decides about them */
    tr_part *part; /* rank 0's */
    uint64_t from; /* the first batch that is not in it yet */
} prediction;

/* What the file cannot hold. */
static tr_status check_format(const prediction *p)
{
    const int loss = p->config->model.loss.kind.which;
    const size_t outputs = p->outputs / p->rows, classes = tr_predict_classes(loss, outputs);
    tr_predict_format format;
    tr_status st;
    TR_TRY(tr_predict_format_of(p->a->output, &format));
    TR_NEED(p->rows == 1 || format != TR_PREDICT_CSV, TR_USAGE,
            "predict: the model of %s gives a class for each of %zu rows of a sample, which a .csv "
            "file has no columns for: expected .h5 or .npy",
            p->a->config, p->rows);
    TR_NEED(p->a->top == 0 || tr_predict_has_class(loss, outputs), TR_USAGE,
            "--top: the model's outputs are no classes that exclude each other");
    TR_NEED(p->a->top == 0 || format != TR_PREDICT_NPY, TR_USAGE,
            "--top: an .npy file holds one array, the outputs: expected .h5 or .csv");
    TR_NEED((size_t)p->a->top <= classes, TR_USAGE, "--top %" PRId64 ": the model has %zu classes",
            p->a->top, classes);
out:
    return st;
}

/* Which block is meant. */
static tr_status choose_data(prediction *p)
{
    const tr_config *c = p->config;
    const char *name = p->a->data ? p->a->data : c->data.predict.present ? "predict" : "eval";
    tr_status st = TR_OK;
    p->source = strcmp(name, "eval") == 0    ? TR_OVER_EVAL
                : strcmp(name, "train") == 0 ? TR_OVER_TRAIN
                                             : TR_OVER_PREDICT;
    TR_NEED(p->source == TR_OVER_EVAL ? tr_config_has_eval(c)
                                      : p->source == TR_OVER_TRAIN || c->data.predict.present,
            TR_CONFIG,
            "%s: its config has no data.%s: give the data (data.predict.path=..., "
            "data.predict.inputs=...)",
            p->a->config, name);
out:
    return st;
}

static tr_status take(void *ctx, const tr_plan *plan, const tr_batch *b, const double *tally,
                      void *result)
{
    const prediction *p = ctx;
    (void)tally;
    const tr_status st = tr_over_output(p->frame.evaluator, plan, result);
    if (st == TR_OK)
        tr_over_denormalize(p->config, tr_plan_graph(plan)->model, (size_t)b->count, result);
    return st;
}

/* *Local*, rank 0. The SHA-256 of all that the outputs' bits depend on: text, the data's
 * description, and what the config says but for where things lie. */
static tr_status identify(prediction *p)
{
    tr_status st;
    const tr_config *c = p->frame.chain.config;
    char *essence = NULL, *all = NULL;
    size_t n;
    FILE *to = open_memstream(&all, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "no memory to describe the job");
    TR_TRY(tr_config_essence(c, true, &essence));
    fprintf(to, "%s\n%s\n%s\n", TR_VERSION, p->frame.chain.sha256, p->frame.backend->name);
    TR_TRY(tr_over_describe(p->over, to));
    fprintf(to, "\n%" PRIu64 " %zu\n%s", p->batch, p->outputs, essence);
out:
    if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "no memory to describe the job");
    if (st == TR_OK) tr_sha256_hex(all, n, p->job);
    tr_free(essence);
    free(all);
    return st;
}

/* *Collective.* */
static tr_status open_all(prediction *p)
{
    tr_status st;
    const tr_arguments *a = p->a;
    TR_TRY(tr_chain_load(p->comm, a->config, a->overrides, a->noverrides, &p->frame.chain));
    const tr_model *m = p->frame.chain.network->model;
    p->outputs = (size_t)m->outputs;
    p->rows = (size_t)m->rows;
    TR_TRY(tr_agree(p->comm, check_format(p), NULL));
    TR_TRY(tr_frame_enter_device(&p->frame));
    const tr_over_data what = {.source = p->source,
                               .sample_nbytes = p->outputs * sizeof(float),
                               .infer = true,
                               .take = take,
                               .ctx = p};
    TR_TRY(tr_over_open(p->frame.evaluator, p->frame.chain.network, p->frame.chain.config, &what,
                        &p->over));
    p->samples = tr_over_samples(p->over);
    p->batch = (uint64_t)tr_over_batch(p->over);
    p->nbytes = tr_over_nbytes(p->over);
    p->batches = tr_over_batches(p->over);
out:
    return st;
}

/* ---- The run --------------------------------------------------------------------------------- */

/* *Local.* Rank 0 says how far it is, now and then: so many batches are done, the last one of all
 * perhaps short. */
static void tell(const prediction *p, uint64_t batches, double began, double *told)
{
    char left[32];
    const uint64_t whole = batches * p->batch, done = whole < p->samples ? whole : p->samples;
    const double now = tr_now(), rate = (double)(done - p->from * p->batch) / (now - began);
    if (p->a->quiet || now - *told < SECONDS || rate <= 0) return;
    *told = now;
    tr_log(TR_LOG_INFO, "predict: %" PRIu64 " of %" PRIu64 " sample%s, %.0f samples/s, %s to go",
           done, p->samples, tr_plural(p->samples), rate,
           tr_format_seconds((double)(p->samples - done) / rate, left, sizeof left));
}

/* *Local.* Outputs of batches, each `nbytes`, the last one of all perhaps short. */
static tr_status append(prediction *p, const char *results, uint64_t first, uint64_t count)
{
    tr_status st = TR_OK;
    for (uint64_t b = first; b < first + count; b++) {
        const uint64_t at = b * p->batch, left = p->samples - at;
        TR_TRY(tr_part_append(p->part, (const float *)(results + (b - first) * p->nbytes),
                              left < p->batch ? left : p->batch));
    }
out:
    return st;
}

/* *Collective.* From `from` on to the end, or until some rank is asked to stop. */
static tr_status run(prediction *p)
{
    tr_status st = TR_OK;
    const int threads = p->frame.threads > 0 ? p->frame.threads : 1;
    const uint64_t stride = (uint64_t)threads * (uint64_t)tr_comm_topology(p->comm)->size;
    const uint64_t fit = PART / p->nbytes / stride, rounds = fit < ROUNDS ? fit : ROUNDS;
    const uint64_t most = stride * (rounds > 0 ? rounds : 1);
    const double began = tr_now();
    double told = began;
    for (uint64_t b = p->from, n; b < p->batches; b += n) {
        char *results = NULL;
        double stop = tr_signals_ask_stop(p->comm);
        TR_TRY(tr_comm_all_reduce(p->comm, &stop, 1, TR_F64));
        TR_NEED(stop == 0, TR_STOPPED,
                "stopped on request after %" PRIu64 " of %" PRIu64
                " samples: the same command goes on from there",
                b * p->batch, p->samples);
        n = p->batches - b < most ? p->batches - b : most;
        TR_TRY(tr_over_run(p->over, b, n, (void **)&results));
        st = tr_agree(p->comm, p->root ? append(p, results, b, n) : TR_OK, NULL);
        tr_free(results);
        if (st != TR_OK) goto out;
        if (p->root) tell(p, b + n, began, &told);
    }
out:
    return st;
}

/* *Local*, rank 0. Whole batches that are there already. */
static tr_status open_part(prediction *p)
{
    tr_status st;
    TR_TRY(identify(p));
    TR_TRY(tr_part_open(p->a->output, p->job, p->samples, p->outputs, p->batch, p->a->force,
                        &p->part));
    const uint64_t rows = tr_part_rows(p->part);
    p->from = rows == p->samples ? p->batches : rows / p->batch;
    if (rows > 0 && !p->a->quiet)
        tr_log(TR_LOG_INFO, "predict: %s.part has %" PRIu64 " of %" PRIu64 " sample%s: goes on",
               p->a->output, rows, p->samples, tr_plural(p->samples));
out:
    return st;
}

static const char *file_of(const void *over, uint64_t i)
{
    return tr_over_file(over, i);
}

/* What a sample's outputs are, as the file has them. */
static void shape(const prediction *p, tr_predictions *o)
{
    const tr_model *m = p->frame.chain.network->model;
    o->outputs = p->outputs;
    o->rows = p->rows;
    o->planes = m->rows > 1 && !tr_is_sequence(m);
    if (!m->labels && m->ndim_target > 0) { /* targets have the outputs' shape */
        o->ndim = m->ndim_target;
        memcpy(o->dims, m->target_dims, sizeof o->dims);
        return;
    }
    /* labels have that of the rows */
    if (m->rows > 1) {
        o->ndim = m->ndim_target;
        memcpy(o->dims + o->planes, m->target_dims, (size_t)o->ndim * sizeof *o->dims);
    }
    o->dims[o->planes ? 0 : o->ndim] = (int64_t)(p->outputs / p->rows);
    o->ndim++;
}

/* *Local*, rank 0. */
static tr_status write_out(prediction *p)
{
    tr_status st = TR_OK;
    tr_output_names names = {0};
    const int loss = p->config->model.loss.kind.which;
    const size_t row = p->outputs / p->rows;
    tr_predict_format format;
    tr_predict_nonfinite bad;
    tr_predictions o = {.path = p->a->output,
                        .loss = loss,
                        .raw = p->a->raw,
                        .samples = p->samples,
                        .model = p->frame.chain.sha256};
    TR_TRY(tr_predict_format_of(o.path, &format));
    shape(p, &o);
    o.top = p->a->top > 0 ? (size_t)p->a->top
                          : tr_predict_has_class(loss, row) && format != TR_PREDICT_NPY;
    TR_TRY(tr_output_names_of(p->frame.chain.config, row, tr_predict_classes(loss, row), &names));
    *(names.targets ? &o.targets : &o.names) = names.of;
    if (tr_over_file(p->over, 0)) {
        o.file = file_of;
        o.files = p->over;
    }
    TR_TRY(tr_predict_write(&o, p->part, &bad));
    TR_TRY(tr_part_remove(p->part));
    if (bad.count > 0)
        tr_log(TR_LOG_WARN,
               "predict: %s: outputs of %" PRIu64 " of %" PRIu64
               " samples are not finite, first of sample %" PRIu64
               ": look at the data, and at the weights (trainer inspect)",
               o.path, bad.count, p->samples, bad.first);
    if (!p->a->quiet)
        tr_log(TR_LOG_INFO, "predict: %s: %" PRIu64 " sample%s", o.path, p->samples,
               tr_plural(p->samples));
out:
    tr_free(names.of);
    return st;
}

/* *Collective.* What rank 0 does by itself, however long the others wait for it. */
static tr_status alone(prediction *p, tr_status (*work)(prediction *))
{
    if (p->root) tr_comm_busy(p->comm, TR_BUSY_WRITES);
    const tr_status st = tr_agree(p->comm, p->root ? work(p) : TR_OK, NULL);
    tr_comm_busy(p->comm, TR_BUSY_NOT);
    return st;
}

static tr_status predict(prediction *p)
{
    tr_status st;
    TR_NEED(p->a->output, TR_USAGE, "predict: expected -o and a file (.h5, .npy, .csv)");
    TR_TRY(choose_data(p));
    TR_TRY(tr_output_is_free_of(p->a, p->comm, p->config));
    TR_TRY(open_all(p));
    TR_TRY(alone(p, open_part));
    TR_TRY(tr_comm_broadcast(p->comm, &p->from, sizeof p->from, 0));
    TR_TRY(run(p));
    st = alone(p, write_out);
out:
    return st;
}

tr_status tr_predict_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c, bool *agreed)
{
    *agreed = true;
    prediction *p = TR_NEW(TR_MEM_OTHER, prediction);
    tr_status st = tr_agree(comm, p ? TR_OK : tr_last_status(), NULL);
    if (st != TR_OK) goto out;
    p->a = a;
    p->comm = comm;
    p->root = tr_comm_topology(comm)->rank == 0;
    p->config = c;
    p->frame = (tr_frame){.comm = comm, .config = c, .quiet = a->quiet, .by_hand = true};
    st = predict(p);
    const tr_error why = *tr_last_error();
    tr_over_close(p->over);
    tr_part_close(p->part);
    tr_frame_close(&p->frame);
    tr_set_error(&why);
out:
    tr_free(p);
    return st;
}
