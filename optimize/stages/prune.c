/* The stage `prune`: weights masked, or channels removed (optimize/prune), in rounds with training
 * between. */
#include "optimize/stages/prune_round.h"

#include <math.h>
#include <string.h>

static const char *const kinds[] = {"channels", "weights", "pattern", NULL};
static const char *const criteria[] = {"l1", "l2", "random", "batchnorm", "taylor", NULL};
static const char *const measures[] = {"parameters", "multiply_adds", "latency", NULL};
static const char *const schedules[] = {"linear", "cubic", NULL};

#define AT(field) offsetof(tr_prune_options, field)
static const tr_field fields[] = {
    TR_STAGE_COMMON(tr_prune_options),
    TR_CHOICE(
        "kind", AT(kind), kinds, "channels",
        "channels: removed for good; weights: set to 0 and kept there; pattern: so many of as many "
        "weights along the inputs stay"),
    TR_REAL("amount", AT(amount), "0.5", 0, 1, NULL,
            "channels: part of `measure` that goes; weights: part of those of linear layers and "
            "convolutions that is 0"),
    TR_CHOICE("by", AT(by), criteria, "l1",
              "what says how little a channel or weight counts: sums of absolute values or of "
              "squares, chance, factors of "
              "the batchnorm behind it, of weight times gradient"),
    TR_CHOICE(
        "measure", AT(measure), measures, "multiply_adds",
        "of channels: what is to be less; latency: what one sample takes, measured by one rank "
        "at each step of the search, so that runs differ"),
    TR_BOOL("global", AT(global), "true",
            "all layers compete; else each loses the same part of its own"),
    TR_INTS("pattern", AT(pattern), "[2, 4]", 1, 64, NULL, "[n, m]: of m weights n stay"),
    TR_INT("multiple", AT(multiple), "1", 1, 4096, "channels",
           "widths that are a multiple of this stay one: 8 or 16 suit kernels"),
    TR_REAL("most", AT(most), "0.9", 0.01, 1, NULL,
            "of a layer's channels, by sensitivity of its weights, at most this part goes"),
    TR_REAL("sensitivity", AT(sensitivity), "0", 0, 1e6, NULL,
            "channels, weights: each group of channels, or layer, first loses parts alone, and "
            "then goes by how much it may lose before "
            "the loss on data.eval rises by this; 0: all alike"),
    TR_NODE("keep", AT(keep), "", "list of layers that are left alone"),
    TR_INT("rounds", AT(rounds), "1", 1, 1000, NULL, "so many times, with training after each"),
    TR_CHOICE("schedule", AT(schedule), schedules, "cubic",
              "how the amount grows over the rounds; cubic: most at the beginning"),
    TR_NODE(
        "train", AT(train), "",
        "keys of `train` for the training after each round; absent, and one round: no training"),
    TR_INT("samples", AT(samples), "1024", 1, 1e9, "samples", "of data.train, for by: taylor"),
    TR_END,
};

/* ---- Options --------------------------------------------------------------------------------- */

/* What means nothing with this kind. */
static tr_status check_idle(const tr_config *c, size_t place, const tr_prune_options *o)
{
    static const char *const channels[] = {"pattern", NULL},
                             *const weights[] = {"measure", "multiple", "most", "pattern", NULL},
                             *const by_layer[] = {"measure", "multiple", "global", "pattern", NULL},
                             *const pattern[] = {"amount", "measure",     "global",   "multiple",
                                                 "most",   "sensitivity", "schedule", NULL};
    const bool apart = o->kind == TR_PRUNE_WEIGHTS && o->sensitivity > 0;
    char why[48];
    snprintf(why, sizeof why, "with kind: %s%s", kinds[o->kind], apart ? " by sensitivity" : "");
    return tr_stage_idle(c, place, why,
                         o->kind == TR_PRUNE_CHANNELS  ? channels
                         : o->kind == TR_PRUNE_PATTERN ? pattern
                         : apart                       ? by_layer
                                                       : weights);
}

static tr_status check(const tr_config *c, size_t place)
{
    const tr_prune_options *o = c->pipeline.items[place].options;
    const tr_status st = check_idle(c, place, o);
    if (st != TR_OK) return st;
    if (o->by == TR_PRUNE_BATCHNORM && o->kind != TR_PRUNE_CHANNELS)
        return tr_stage_fail(c, place, "by", "batchnorm says nothing of single weights");
    if (o->kind == TR_PRUNE_PATTERN &&
        (o->pattern.count != 2 || o->pattern.v[0] >= o->pattern.v[1]))
        return tr_stage_fail(c, place, "pattern", "expected [n, m] with n below m");
    if (o->sensitivity > 0 && !tr_config_has_eval(c))
        return tr_stage_fail(c, place, "sensitivity", "there is no data.eval");
    if (o->kind == TR_PRUNE_CHANNELS && o->amount >= 1)
        return tr_stage_fail(c, place, "amount", "1 would leave no channel");
    return tr_training_keys_check(c, place, &(tr_overrides){.train = o->train});
}

static bool trains_at_all(const tr_prune_options *o)
{
    return o->rounds > 1 || o->train;
}

static tr_status check_model(const tr_stage_outlook *o)
{
    tr_status st;
    const tr_prune_options *p = o->config->pipeline.items[o->place].options;
    TR_TRY(tr_stage_spared(o, "keep", p->keep));
    if (trains_at_all(p)) TR_TRY(tr_training_model_check(o, "train", p->train));
    if (p->by == TR_PRUNE_TAYLOR) TR_TRY(tr_training_model_check(o, "by", NULL));
out:
    return st;
}

/* What channels leave is known once they are gone; with its zeros a network is as large as
 * before. */
static size_t trains(const void *options, const tr_node **train)
{
    const tr_prune_options *o = options;
    *train = o->train;
    if (o->kind == TR_PRUNE_CHANNELS || !trains_at_all(o)) return 0;
    return o->by == TR_PRUNE_TAYLOR ? 3 : 2; /* gradients */
}

static unsigned leaves(const void *options)
{
    const tr_prune_options *o = options;
    const bool all =
        !o->keep || (o->keep->kind == TR_NODE_LIST ? o->keep->count == 0 : !o->keep->text[0]);
    return o->kind != TR_PRUNE_CHANNELS && all && o->common.on_miss != TR_MISS_KEEP_PARENT
               ? TR_LEAVES_MASKS
               : 0;
}

/* Three quarters of the amount, in whole thousandths. */
static bool milder(void *options, const tr_network *parent)
{
    (void)parent;
    tr_prune_options *o = options;
    if (o->kind == TR_PRUNE_PATTERN || o->amount < 0.02) return false;
    o->amount = round(o->amount * 750) / 1000;
    return true;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static tr_status say(tr_findings *f, const tr_network *before, const tr_network *after)
{
    tr_status st = TR_OK;
    tr_prune_row *rows = NULL;
    size_t n = 0;
    TR_TRY(tr_prune_report(before, after, &rows, &n));
    const char **names = tr_alloc(TR_MEM_OTHER, n, sizeof *names);
    double *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    st = names && v ? TR_OK : tr_last_status();
    for (size_t i = 0; st == TR_OK && i < n; i++) names[i] = rows[i].layer;
    if (st == TR_OK) st = tr_findings_table(f, "layers", n, names);
    for (int which = 0; st == TR_OK && which < 2; which++) {
        for (size_t i = 0; i < n; i++) v[i] = (double)rows[i].parameters[which];
        st = tr_findings_column(f, which ? "parameters" : "parameters_before", v);
        for (size_t i = 0; i < n; i++) v[i] = rows[i].multiply_adds[which];
        if (st == TR_OK)
            st = tr_findings_column(f, which ? "multiply_adds" : "multiply_adds_before", v);
        for (size_t i = 0; i < n; i++)
            v[i] = (double)rows[i].zeros[which] / fmax(1, (double)rows[i].parameters[which]);
        if (st == TR_OK) st = tr_findings_column(f, which ? "sparsity" : "sparsity_before", v);
    }
    tr_free(names);
    tr_free(v);
out:
    tr_free(rows);
    return st;
}

/* *Collective.* */
static tr_status train(const tr_prune_work *w, int round, tr_network **network, bool *agreed)
{
    tr_status st;
    tr_network *trained = NULL;
    char name[32];
    snprintf(name, sizeof name, "round-%d", round);
    const tr_training t = {.start = *network, .train = w->o->train, .name = name};
    TR_TRY(tr_training_run(w->job, &t, &trained, agreed));
    tr_network_close(*network);
    *network = trained;
out:
    return st;
}

/* Those that are still there. */
static tr_status list_kept(tr_prune_work *w)
{
    const tr_node *keep = w->o->keep;
    const bool list = keep && keep->kind == TR_NODE_LIST;
    const size_t n = list ? keep->count : keep && keep->text[0] ? 1 : 0;
    w->keep = tr_alloc(TR_MEM_OTHER, n, sizeof *w->keep);
    for (size_t i = 0; w->keep && i < n; i++) {
        const char *name = list ? keep->values[i]->text : keep->text;
        if (tr_model_layer(w->job->parent->model, name)) w->keep[w->nkeep++] = name;
    }
    return w->keep ? TR_OK : tr_last_status();
}

/* Kernels multiply by zeros as by anything else, and arrays hold them; that is told, as many expect
 * otherwise. */
static tr_status say_of_zeros(const tr_stage_job *job, const tr_network *n)
{
    static const char text[] = "zeros save neither time nor memory here: kernels and files are "
                               "dense; kind: channels removes "
                               "for good";
    const tr_model *m = n->model;
    size_t zeros = 0;
    for (size_t r = 0; r < m->nparams; r++)
        for (size_t i = 0; i < m->params[r].count; i++)
            zeros += n->params[m->params[r].offset + i] == 0;
    if (tr_comm_topology(job->comm)->rank == 0)
        tr_log(TR_LOG_INFO, "%zu of %zu values are 0; %s", zeros, m->nparameters, text);
    return tr_attrs_add_text(&job->findings->values, "zeros", text);
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    tr_status st = TR_OK;
    const tr_prune_options *o = job->options;
    tr_prune_work w = {.job = job, .o = o};
    tr_network *network = NULL;
    *agreed = true;
    TR_TRY(tr_agree(job->comm, list_kept(&w), NULL));
    if (o->kind == TR_PRUNE_CHANNELS)
        TR_TRY(tr_prune_measure_of(&w, job->parent, &w.before));
    else if (tr_comm_topology(job->comm)->rank == 0)
        tr_prune_say_left_out(&w, job->parent->model);
    for (int round = 1; round <= o->rounds; round++) {
        const double left =
            tr_prune_schedule(1 - o->amount, round, (int)o->rounds, o->schedule == 1);
        tr_network *made = NULL;
        st = tr_prune_once(&w, network ? network : job->parent, left, &made);
        st = tr_agree(job->comm, st, NULL);
        if (st != TR_OK) tr_network_close(made);
        TR_TRY(st);
        tr_network_close(network);
        network = made;
        if (trains_at_all(o)) TR_TRY(train(&w, round, &network, agreed));
    }
    TR_TRY(tr_agree(job->comm, say(job->findings, job->parent, network), NULL));
    if (o->kind != TR_PRUNE_CHANNELS) TR_TRY(tr_agree(job->comm, say_of_zeros(job, network), NULL));
    out->network = network;
    network = NULL;
out:
    tr_network_close(network);
    tr_free(w.keep);
    tr_free(w.gradients);
    tr_free(w.shares);
    tr_groups_close(&w.first);
    return st;
}

static const char *timed(const void *options)
{
    return ((const tr_prune_options *)options)->measure == TR_PRUNE_MEASURED ? "measure: latency"
                                                                             : NULL;
}

const tr_stage tr_stage_prune = {
    .name = "prune",
    .makes = true,
    .doc =
        "Removes channels, or sets weights to 0 and keeps them there, where they count least; in "
        "rounds, with training between them in `stages/NN-prune/`",
    .fields = fields,
    .options_size = sizeof(tr_prune_options),
    .check = check,
    .check_model = check_model,
    .leaves = leaves,
    .timed = timed,
    .trains = trains,
    .milder = milder,
    .run = run,
};
