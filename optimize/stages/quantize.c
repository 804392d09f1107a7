/* The stage `quantize`: weights, or weights and activations, of fewer bits. */
#include <string.h>

#include "optimize/profile/profile.h"
#include "optimize/quantize/quantize.h"
#include "optimize/stages/quantize_told.h"
#include "optimize/stages/stages.h"

enum { KIND_INT8, KIND_FLOAT16, KIND_BFLOAT16 };
enum { STATIC, DYNAMIC };
enum { AUTO, ALL };
enum { PROVEN = 256 }; /* samples that passes over the graph are proven on, as `fold` has it */
static const char *const kinds[] = {"int8", "float16", "bfloat16", NULL};
static const char *const ranges[] = {"static", "dynamic", NULL};
static const char *const scales[] = {"per_channel", "per_tensor", NULL};
static const char *const roundings[] = {"nearest", "adaround", NULL};
static const char *const layers[] = {"auto", "all", NULL};
static const char *const calibrations[] = {"minmax", "percentile", "entropy", "mse", NULL};

typedef struct {
    tr_stage_common common;
    int kind, activations, calibrate, weights, rounding, layers;
    bool equalize, bias_correction;
    double percentile, seconds, bound;
    int64_t samples, batch, keep_float;
    const tr_node *skip;
    int step; /* of MILDER that was last taken; no field */
} quantize_options;

static const tr_field fields[] = {
    TR_STAGE_COMMON(quantize_options),
    TR_CHOICE(
        "kind", offsetof(quantize_options, kind), kinds, "int8",
        "int8: weights and what convolutions and linear layers read; float16, bfloat16: weights in "
        "the file alone"),
    TR_CHOICE(
        "activations", offsetof(quantize_options, activations), ranges, "static",
        "int8: how what layers read is rounded: static: by scales found on `samples`; dynamic: "
        "by the range of the data of each call, of each sample of images, else of each row, so "
        "that no data is needed beforehand and answers do not depend on the batch"),
    TR_CHOICE("calibrate", offsetof(quantize_options, calibrate), calibrations, "mse",
              "int8, static: what the range of a value covers: all that was seen, a share of it, "
              "or as much as "
              "gives the least divergence or squared error"),
    TR_REAL("percentile", offsetof(quantize_options, percentile), "99.99", 50, 100, NULL,
            "of calibrate: percentile"),
    TR_CHOICE("weights", offsetof(quantize_options, weights), scales, "per_channel",
              "int8: a scale for each output of a layer, or one for all"),
    TR_CHOICE("rounding", offsetof(quantize_options, rounding), roundings, "nearest",
              "int8: of weights; adaround: learned for each, so that outputs change least"),
    TR_BOOL("equalize", offsetof(quantize_options, equalize), "false",
            "int8: channels between two layers get the same range in both, where what lies between "
            "allows it"),
    TR_BOOL("bias_correction", offsetof(quantize_options, bias_correction), "false",
            "int8: the mean error of each output, on the samples, is taken off its bias"),
    TR_CHOICE(
        "layers", offsetof(quantize_options, layers), layers, "auto",
        "int8: auto: with which the network is measured to be fastest here, if with any, the worst "
        "left out while the loss on the samples rises by more than the budget allows (without one: "
        "accuracy falls by more than 0.005, or of a model without accuracy the loss rises by more "
        "than a twentieth; with activations: dynamic whatever they are); all: "
        "that can, however fast they are here"),
    TR_INT("batch", offsetof(quantize_options, batch), "1", 1, 65536, NULL,
           "samples of a call that is timed, to choose by (layers: auto) or to tell"),
    TR_REAL("seconds", offsetof(quantize_options, seconds), "300", 0, 1e9, "s",
            "of layers: auto: after so long no more layers are tried apart: what was found so far "
            "is held against the "
            "network in floats once more, and while the loss rises by too much half of the layers "
            "are left out"),
    TR_INT("samples", offsetof(quantize_options, samples), "512", 1, 1e12, NULL,
           "of data.train, the first so many, for calibration and what else goes by data"),
    TR_INT("keep_float", offsetof(quantize_options, keep_float), "0", 0, 1000000, "layers",
           "int8: so many layers keep float32, those whose outputs rounding changes most "
           "(the lowest output_sqnr_db, before refinements)"),
    TR_NODE("skip", offsetof(quantize_options, skip), "", "list of layers that keep float32"),
    TR_REAL("bound", offsetof(quantize_options, bound), "0.05", 0, 1, NULL,
            "int8: most that outputs may differ by with a pass over the graph (docs/passes.md) and "
            "without it, over the "
            "largest output or 1, on 256 samples; one that makes more is in model.skip_passes of "
            "the file"),
    TR_END,
};

/* What is found on data, or decided by it. */
static bool bounds_answers(const quantize_options *o)
{
    return o->common.budget.accuracy_drop >= 0 || o->common.budget.loss_rise >= 0;
}

static bool looks_at_loss(const quantize_options *o)
{
    return o->layers == AUTO && (o->activations == STATIC || bounds_answers(o));
}

static bool measures_outputs(const quantize_options *o)
{
    return o->activations == STATIC || o->bias_correction || o->rounding == 1 || looks_at_loss(o) ||
           o->keep_float > 0;
}

/* What means nothing with these others; a retry may come to what was not meant at first. */
static tr_status check_idle(const tr_config *c, size_t place, const quantize_options *o)
{
    static const char *const int8[] = {
        "activations", "calibrate",  "percentile", "weights",         "rounding",
        "equalize",    "layers",     "batch",      "bias_correction", "seconds",
        "samples",     "keep_float", "skip",       "bound",           NULL};
    static const char *const seconds[] = {"seconds", NULL},
                             *const percentile[] = {"percentile", NULL},
                             *const samples[] = {"samples", NULL};
    const bool retry = o->common.on_miss == TR_MISS_RETRY;
    tr_status st = TR_OK;
    if (o->kind != KIND_INT8) return tr_stage_idle(c, place, "with weights of 16 bits alone", int8);
    if (o->layers == ALL) TR_TRY(tr_stage_idle(c, place, "with layers: all", seconds));
    if (o->calibrate != TR_CALIBRATE_PERCENTILE && !retry)
        TR_TRY(tr_stage_idle(c, place, "but with calibrate: percentile", percentile));
    if (!measures_outputs(o) && !retry)
        TR_TRY(tr_stage_idle(c, place, "where nothing goes by data", samples));
out:
    return st;
}

static tr_status check(const tr_config *c, size_t place)
{
    const quantize_options *o = c->pipeline.items[place].options;
    if (o->kind == KIND_INT8 && o->activations == DYNAMIC && o->calibrate != TR_CALIBRATE_MSE)
        return tr_stage_fail(c, place, "calibrate",
                             "with activations: dynamic nothing is calibrated: leave one of them "
                             "out");
    const tr_status st = check_idle(c, place, o);
    if (st != TR_OK) return st;
    bool names = !o->skip || o->skip->kind == TR_NODE_LIST;
    for (size_t i = 0; names && o->skip && i < o->skip->count; i++)
        names = o->skip->values[i]->kind == TR_NODE_SCALAR;
    return names ? TR_OK : tr_stage_fail(c, place, "skip", "expected a list of layers");
}

static bool is_chosen(const tr_model *m, const tr_layer *l, const quantize_options *o)
{
    bool chosen = tr_quantizable(m, l);
    for (size_t k = 0; o->skip && k < o->skip->count; k++)
        chosen = chosen && strcmp(l->name, o->skip->values[k]->text) != 0;
    return chosen;
}

/* Which layers are to be computed in 8 bits; how many. */
static size_t choose(const tr_model *m, const quantize_options *o, bool *chosen)
{
    size_t count = 0;
    for (size_t i = 0; i < m->nlayers; i++) count += chosen[i] = is_chosen(m, &m->layers[i], o);
    return count;
}

/* How many of those are left by the stages before. */
static size_t still_there(const tr_stage_outlook *o, const bool *chosen, size_t count)
{
    if (o->left & (TR_LEAVES_16_BITS | TR_LEAVES_ALL_INT8)) return 0;
    for (size_t i = 0; i < o->model->nlayers; i++)
        count -= chosen[i] && tr_stage_sketched(o, &o->model->layers[i]);
    return count;
}

static tr_status check_model(const tr_stage_outlook *o)
{
    tr_status st;
    const quantize_options *q = o->config->pipeline.items[o->place].options;
    bool *chosen = tr_alloc(TR_MEM_OTHER, o->model->nlayers, sizeof *chosen);
    char why[TR_ERROR_TEXT];
    TR_HAVE(chosen);
    TR_TRY(tr_stage_spared(o, "skip", q->skip));
    if (q->kind != KIND_INT8) goto out;
    const size_t could = choose(o->model, q, chosen), count = still_there(o, chosen, could);
    if (count == 0)
        st = tr_stage_fail(o->config, o->place, "kind", "no layer can be computed in 8 bits%s",
                           tr_quantize_why_none(o, could, why));
    else if (q->keep_float >= (int64_t)count)
        st = tr_stage_fail(o->config, o->place, "keep_float",
                           "%lld layers of %zu that can be computed in 8 bits: expected fewer",
                           (long long)q->keep_float, count);
out:
    tr_free(chosen);
    return st;
}

/* A retry may end with weights of 16 bits where they were to be int8: which is not certain. */
static unsigned leaves(const void *options)
{
    const quantize_options *o = options;
    const bool all = o->layers == ALL && (!o->skip || o->skip->count == 0) && o->keep_float == 0 &&
                     o->common.on_miss == TR_MISS_FAIL;
    return o->kind == KIND_INT8 ? TR_LEAVES_INT8 | TR_LEAVES_NAMES | (all ? TR_LEAVES_ALL_INT8 : 0)
           : o->common.on_miss != TR_MISS_KEEP_PARENT ? TR_LEAVES_16_BITS
                                                      : 0;
}

/* ---- Milder: from what costs nothing when the model answers to what does --------------------- */

static bool cut_ranges(quantize_options *o, size_t products)
{
    (void)products;
    if (o->activations == DYNAMIC || o->calibrate == TR_CALIBRATE_PERCENTILE) return false;
    o->calibrate = TR_CALIBRATE_PERCENTILE;
    o->percentile = o->percentile < 99.9 ? o->percentile : 99.9;
    return true;
}

static bool fit_ranges(quantize_options *o, size_t products)
{
    enum { MORE = 4 };
    (void)products;
    if (o->activations == DYNAMIC || o->samples > INT64_MAX / MORE) return false;
    o->calibrate = TR_CALIBRATE_MSE;
    o->samples *= MORE;
    return true;
}

static bool correct_biases(quantize_options *o, size_t products)
{
    (void)products;
    const bool more = !o->bias_correction || o->weights == 1;
    o->bias_correction = true;
    o->weights = 0;
    return more;
}

static bool learn_rounding(quantize_options *o, size_t products)
{
    (void)products;
    const bool more = o->rounding == 0;
    o->rounding = 1;
    return more;
}

/* At least one more, at least one left. */
static bool keep_worst(quantize_options *o, size_t share, size_t products)
{
    const int64_t now = (int64_t)(products / share > 0 ? products / share : 1);
    if (now <= o->keep_float || now >= (int64_t)products) return false;
    o->keep_float = now;
    return true;
}

static bool keep_eighth(quantize_options *o, size_t products)
{
    return keep_worst(o, 8, products);
}

static bool keep_half(quantize_options *o, size_t products)
{
    return keep_worst(o, 2, products);
}

static bool weights_alone(quantize_options *o, size_t products)
{
    (void)products;
    o->kind = KIND_FLOAT16;
    return true;
}

/* False: the options are that already. */
static bool (*const milder_steps[])(quantize_options *o, size_t products) = {
    cut_ranges, fit_ranges, correct_biases, learn_rounding, keep_eighth, keep_half, weights_alone,
};

static bool milder(void *options, const tr_network *parent)
{
    quantize_options *o = options;
    const tr_model *m = parent->model;
    size_t products = 0; /* that can be computed in 8 bits, and are to be */
    for (size_t i = 0; i < m->nlayers; i++) products += is_chosen(m, &m->layers[i], o);
    if (o->kind == KIND_FLOAT16) return false;
    if (o->kind == KIND_BFLOAT16) return weights_alone(o, products);
    while (o->step < (int)TR_COUNT(milder_steps))
        if (milder_steps[o->step++](o, products)) return true;
    return false;
}

/* Rank 0. Networks are timed in pairs, of which each takes as much as the float one at the most. */
static tr_status look_for_room(const tr_stage_job *job)
{
    const quantize_options *o = job->options;
    tr_profile_options p = {.network = job->parent,
                            .precision = (tr_precision)job->config->train.precision,
                            .mode = TR_MODE_INFER,
                            .batch = o->batch,
                            .skip_passes = tr_graph_skip(job->config)};
    size_t nbytes;
    tr_evaluator_place(job->evaluator, &p.backend, &p.backend_ctx, &p.threads);
    const tr_status st = tr_profile_needs(&p, &nbytes);
    return st == TR_OK ? tr_stage_fits(job, "batch", o->batch, 2 * nbytes) : st;
}

/* Whether data.train is opened at all. */
static bool reads_samples(const quantize_options *o)
{
    return o->kind == KIND_INT8 && measures_outputs(o);
}

/* *Collective.* What the passes over the graph make of it, `int8` above all. Where no data is asked
 * for none is read. */
static tr_status prove(const tr_stage_job *job, tr_network *made)
{
    const quantize_options *o = job->options;
    if (!tr_config_has_eval(job->config) && !reads_samples(o)) return TR_OK;
    return tr_stage_prove_graph(job, job->parent_config, PROVEN, o->bound, made);
}

static tr_status run_int8(const tr_stage_job *job, tr_network **out)
{
    const quantize_options *o = job->options;
    const tr_model *m = job->parent->model;
    const tr_budget *b = &o->common.budget;
    const tr_int8_options q = {.calibration = {.kind = (tr_calibration_kind)o->calibrate,
                                               .percentile = o->percentile,
                                               .samples = (uint64_t)o->samples},
                               .dynamic = o->activations == DYNAMIC,
                               .per_tensor = o->weights == 1,
                               .equalize = o->equalize,
                               .bias_correction = o->bias_correction,
                               .adaround = o->rounding == 1,
                               .choose = o->layers == AUTO,
                               .by_loss = looks_at_loss(o),
                               .batch = o->batch,
                               .accuracy_drop = bounds_answers(o) ? b->accuracy_drop : 0.005,
                               .loss_rise = b->loss_rise,
                               .loss_share = 0.05,
                               .seconds = o->seconds,
                               .stop = job->stop,
                               .stop_ctx = job->trainer,
                               .keep_float = (size_t)o->keep_float};
    const tr_quantize_asked asked = {.all = o->layers == ALL,
                                     .refined =
                                         o->equalize || o->bias_correction || o->rounding == 1,
                                     .equalize = o->equalize,
                                     .dynamic = o->activations == DYNAMIC,
                                     .outputs = measures_outputs(o),
                                     .batch = o->batch};
    tr_int8_story story;
    bool *chosen = tr_alloc(TR_MEM_OTHER, m->nlayers, sizeof *chosen);
    tr_int8_layer *found = tr_alloc(TR_MEM_OTHER, m->nlayers, sizeof *found);
    tr_status st = chosen && found ? TR_OK : tr_last_status();
    if (st == TR_OK && tr_comm_topology(job->comm)->rank == 0) st = look_for_room(job);
    TR_TRY(tr_agree(job->comm, st, NULL));
    choose(m, o, chosen);
    TR_TRY(tr_quantize_int8(job->evaluator, job->parent, job->parent_config, &q, chosen, found,
                            &story, out));
    TR_TRY(tr_agree(job->comm, tr_quantize_tell(job, &asked, found, &story, *out != NULL), NULL));
    if (*out) st = prove(job, *out);
out:
    tr_free(chosen);
    tr_free(found);
    return st;
}

/* What is wrong with a weight is told of the file that has it. */
static tr_status blame_file(const tr_stage_job *job, tr_status st)
{
    if (tr_last_error()->hearsay) return st;
    (void)tr_fail_before(st, "%s: ", job->file);
    return st == TR_CONFIG ? tr_stage_blame(job->config, job->place, "kind", st) : st;
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    const quantize_options *o = job->options;
    const tr_dtype stored = o->kind == KIND_FLOAT16 ? TR_F16 : TR_BF16;
    (void)agreed;
    tr_quantize_tell_floats(job, o->kind == KIND_INT8);
    if (o->kind == KIND_INT8) {
        const tr_status st = run_int8(job, &out->network);
        return st == TR_FILE ? blame_file(job, st) : st;
    }
    tr_status st = tr_quantize_weights(job->parent, stored, &out->network);
    if (st == TR_CONFIG || st == TR_FILE) st = blame_file(job, st);
    return tr_agree(job->comm, st, NULL);
}

static const char *timed(const void *options)
{
    const quantize_options *o = options;
    return o->kind == KIND_INT8 && o->layers == AUTO ? "layers: auto" : NULL;
}

const tr_stage tr_stage_quantize = {
    .name = "quantize",
    .makes = true,
    .doc =
        "Weights and activations of 8 bits, with ranges found on samples of data.train or from the "
        "data of each call, or weights of 16 bits. Batchnorm is to be folded before. Milder: "
        "ranges "
        "of a percentile; of the least squared error, on four times the samples; bias_correction; "
        "adaround; an eighth, then half of the layers float; weights alone, float16",
    .fields = fields,
    .options_size = sizeof(quantize_options),
    .check = check,
    .check_model = check_model,
    .leaves = leaves,
    .timed = timed,
    .milder = milder,
    .run = run,
};
