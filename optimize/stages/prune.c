/* The stage `prune`: weights masked, or channels removed (optimize/prune), in rounds with training
 * between. */
#include "optimize/stages/stages.h"

#include <math.h>
#include <string.h>

#include "optimize/prune/prune.h"

enum { CHANNELS, WEIGHTS, PATTERN };
static const char *const kinds[] = {"channels", "weights", "pattern", NULL};
static const char *const criteria[] = {"l1", "l2", "random", "batchnorm", "taylor", NULL};
static const char *const measures[] = {"parameters", "multiply_adds", "latency", NULL};
static const char *const schedules[] = {"linear", "cubic", NULL};

typedef struct {
    tr_stage_common common;
    int kind, by, measure, schedule;
    double amount, most, sensitivity;
    bool global;
    tr_ints pattern;
    int64_t multiple, samples, rounds;
    const tr_node *keep, *train;
} prune_options;

#define AT(field) offsetof(prune_options, field)
static const tr_field fields[] = {
    TR_STAGE_COMMON(prune_options),
    TR_CHOICE(
        "kind", AT(kind), kinds, "channels",
        "channels: removed for good; weights: set to 0 and kept there; pattern: so many of as many "
        "weights along the inputs stay"),
    TR_REAL("amount", AT(amount), "0.5", 0, 1, NULL,
            "channels: part of `measure` that goes; weights: part of them that is 0"),
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
static tr_status check_idle(const tr_config *c, size_t place, const prune_options *o)
{
    static const char *const channels[] = {"pattern", NULL},
                             *const weights[] = {"measure", "multiple", "most", "pattern", NULL},
                             *const by_layer[] = {"measure", "multiple", "global", "pattern", NULL},
                             *const pattern[] = {"amount", "measure",     "global",   "multiple",
                                                 "most",   "sensitivity", "schedule", NULL};
    const bool apart = o->kind == WEIGHTS && o->sensitivity > 0;
    char why[48];
    snprintf(why, sizeof why, "with kind: %s%s", kinds[o->kind], apart ? " by sensitivity" : "");
    return tr_stage_idle(c, place, why,
                         o->kind == CHANNELS  ? channels
                         : o->kind == PATTERN ? pattern
                         : apart              ? by_layer
                                              : weights);
}

static tr_status check(const tr_config *c, size_t place)
{
    const prune_options *o = c->pipeline.items[place].options;
    const tr_status st = check_idle(c, place, o);
    if (st != TR_OK) return st;
    if (o->by == TR_PRUNE_BATCHNORM && o->kind != CHANNELS)
        return tr_stage_fail(c, place, "by", "batchnorm says nothing of single weights");
    if (o->kind == PATTERN && (o->pattern.count != 2 || o->pattern.v[0] >= o->pattern.v[1]))
        return tr_stage_fail(c, place, "pattern", "expected [n, m] with n below m");
    if (o->sensitivity > 0 && !tr_config_has_eval(c))
        return tr_stage_fail(c, place, "sensitivity", "there is no data.eval");
    if (o->kind == CHANNELS && o->amount >= 1)
        return tr_stage_fail(c, place, "amount", "1 would leave no channel");
    return tr_training_keys_check(c, place, o->train);
}

static bool trains_at_all(const prune_options *o)
{
    return o->rounds > 1 || o->train;
}

static tr_status check_model(const tr_stage_outlook *o)
{
    tr_status st;
    const prune_options *p = o->config->pipeline.items[o->place].options;
    TR_TRY(tr_stage_spared(o, "keep", p->keep));
    if (trains_at_all(p)) TR_TRY(tr_training_model_check(o, "train", p->train));
    if (p->by == TR_PRUNE_TAYLOR) TR_TRY(tr_training_model_check(o, "by", NULL));
out:
    return st;
}

/* What channels leave is known once they are gone; with its zeros a network is as large as before. */
static size_t trains(const void *options, const tr_node **train)
{
    const prune_options *o = options;
    *train = o->train;
    if (o->kind == CHANNELS || !trains_at_all(o)) return 0;
    return o->by == TR_PRUNE_TAYLOR ? 3 : 2; /* gradients */
}

static unsigned leaves(const void *options)
{
    const prune_options *o = options;
    const bool all =
        !o->keep || (o->keep->kind == TR_NODE_LIST ? o->keep->count == 0 : !o->keep->text[0]);
    return o->kind != CHANNELS && all && o->common.on_miss != TR_MISS_KEEP_PARENT ? TR_LEAVES_MASKS
                                                                                  : 0;
}

static bool milder(void *options, const tr_network *parent)
{
    (void)parent;
    prune_options *o = options;
    if (o->kind == PATTERN || o->amount < 0.02) return false;
    o->amount *= 0.75;
    return true;
}

/* ---- One round ------------------------------------------------------------------------------- */

typedef struct {
    const tr_stage_job *job;
    const prune_options *o;
    const char **keep;
    size_t nkeep;
    float *gradients; /* of the network as it stands; NULL: not asked for */
    tr_groups first;  /* channels: of the network that came in */
    double *shares;   /* of these, weights: of tr_mask_layers; NULL: all alike */
    double before;    /* what the measure was at first */
} work;

static tr_status loss_of(void *ctx, const tr_network *n, double *loss)
{
    const tr_stage_job *job = ctx;
    tr_evaluation e;
    const tr_status st = tr_evaluate(job->evaluator, n, job->parent_config, &e);
    *loss = e.loss;
    return st;
}

static tr_status latency_of(void *ctx, const tr_network *n, double *share)
{
    const tr_stage_job *job = ctx;
    return job->latency(job, n, share);
}

/* tr_structured_options.agree */
static tr_status agree(void *ctx, tr_status st)
{
    return tr_agree(((const tr_stage_job *)ctx)->comm, st, NULL);
}

/* *Collective.* */
static tr_status measure_of(const work *w, const tr_network *n, double *out)
{
    if (w->o->measure == TR_PRUNE_MEASURED) return latency_of((void *)w->job, n, out);
    *out = w->o->measure == TR_PRUNE_PARAMETERS ? (double)n->model->nparameters
                                                : tr_network_multiply_adds(n);
    return TR_OK;
}

enum { AMOUNTS = 4 };
static const double amounts[AMOUNTS] = {0.125, 0.25, 0.5, 0.75};

/* Of each group of channels, or layer: what it may lose. */
typedef struct {
    size_t count;
    const char **names; /* [count] */
    tr_sensitivity *v;  /* [count * AMOUNTS] */
} alone;

static void close_shares(alone *s)
{
    tr_free((void *)s->names);
    tr_free(s->v);
}

static tr_status open_shares(work *w, size_t count, alone *s)
{
    tr_status st = TR_OK;
    s->count = count;
    s->names = tr_alloc(TR_MEM_OTHER, count, sizeof *s->names);
    s->v = tr_alloc(TR_MEM_OTHER, count * AMOUNTS, sizeof *s->v);
    w->shares = tr_alloc(TR_MEM_OTHER, count, sizeof *w->shares);
    TR_HAVE(s->names && s->v && w->shares);
out:
    return st;
}

/* The table of what each alone would cost. */
static tr_status say_shares(const work *w, const alone *s)
{
    tr_status st = TR_OK;
    tr_findings *f = w->job->findings;
    double *column = tr_alloc(TR_MEM_OTHER, s->count, sizeof *column);
    TR_HAVE(column);
    TR_TRY(tr_findings_table(f, "sensitivity", s->count, s->names));
    for (size_t a = 0; a < AMOUNTS; a++) {
        char name[TR_NAME];
        snprintf(name, sizeof name, "loss_%g", amounts[a]);
        for (size_t k = 0; k < s->count; k++) column[k] = s->v[k * AMOUNTS + a].loss;
        TR_TRY(tr_findings_column(f, name, column));
    }
    TR_TRY(tr_findings_column(f, "share", w->shares));
out:
    tr_free(column);
    return st;
}

/* *Collective.* How much of each group of channels (`so`), or of the weights of each of `count` layers (`mo`), may go; found out
 * once, on the network that came in. */
static tr_status find_shares(work *w, const tr_structured_options *so, const tr_mask_options *mo,
                             const size_t *layers, size_t count)
{
    const tr_network *n = w->job->parent;
    const tr_prune_judge j = {.evaluate = loss_of, .agree = agree, .ctx = (void *)w->job};
    alone s = {0};
    double loss;
    tr_status st = so ? tr_groups_open(n->model, &w->first) : TR_OK;
    if (st == TR_OK) st = open_shares(w, so ? w->first.ngroups : count, &s);
    TR_TRY(agree(j.ctx, st));
    for (size_t k = 0; k < s.count; k++)
        s.names[k] = so ? w->first.name[k] : n->model->layers[layers[k]].name;
    TR_TRY(loss_of(j.ctx, n, &loss));
    st = so ? tr_prune_sensitivity(n, &w->first, so, amounts, AMOUNTS, &j, s.v)
            : tr_mask_sensitivity(n, mo, layers, count, amounts, AMOUNTS, &j, s.v);
    TR_TRY(st);
    tr_prune_shares(s.v, s.count, AMOUNTS, loss, w->o->sensitivity, w->shares);
    TR_TRY(agree(j.ctx, say_shares(w, &s)));
out:
    close_shares(&s);
    return st;
}

/* *Collective.* The same for the groups that the network has by now; of tr_alloc. */
static tr_status shares_now(work *w, const tr_network *n, const tr_structured_options *so,
                            double **out)
{
    tr_status st = TR_OK;
    tr_groups g = {0};
    if (!w->shares) TR_TRY(find_shares(w, so, NULL, NULL, 0));
    st = tr_groups_open(n->model, &g);
    if (st == TR_OK) {
        *out = tr_alloc(TR_MEM_OTHER, g.ngroups, sizeof **out);
        st = *out ? TR_OK : tr_last_status();
    }
    TR_TRY(agree((void *)w->job, st));
    tr_prune_shares_for(w->job->parent->model, &w->first, w->shares, n->model, &g, *out);
out:
    tr_groups_close(&g);
    return st;
}

static const char *const measured[] = {"parameters are", "multiply-adds are",
                                       "time that a sample takes is"};

/* Rank 0. Why less went than was asked for; `now`: what is left of the measure. */
static void warn(const work *w, const tr_network *n, const tr_groups *g, double left, double now)
{
    if (w->o->by == TR_PRUNE_BATCHNORM && !tr_groups_have_factors(n->model, g))
        tr_log(TR_LOG_WARN, "prune: by: batchnorm, but no channel that may go has a batchnorm "
                            "(`fold` takes them out): they go by l1");
    const double noise = w->o->measure == TR_PRUNE_MEASURED ? 0.05 : 1e-9;
    if (now > left + noise) {
        char held[400];
        tr_groups_held(n->model, g, held, sizeof held);
        char less[32] = "all";
        if (now < 1 - noise) snprintf(less, sizeof less, "%.3g", now);
        tr_log(TR_LOG_WARN, "prune: %s of the %s left (%.3g was asked for): %s%s%s", less,
               measured[w->o->measure], left,
               g->nunits ? "widths, `most` or `keep` allow no less" : "no channel can go",
               *held ? "; what keeps layers as wide as they are: " : "", held);
    }
}

/* *Collective.* What fails at the end on this rank alone, the caller has all ranks agree on. */
static tr_status remove_channels(work *w, const tr_network *n, double left, tr_network **out)
{
    tr_status st = TR_OK;
    double reached, now, *shares = NULL;
    void *job = (void *)w->job;
    tr_groups g = {0};
    TR_TRY(measure_of(w, n, &now));
    const double target = left * w->before / now;
    tr_structured_options so = {.cost = latency_of,
                                .agree = agree,
                                .ctx = job,
                                .by = (tr_prune_by)w->o->by,
                                .measure = (tr_prune_measure)w->o->measure,
                                .target = target < 1 ? target : 1,
                                .global = w->o->global,
                                .multiple = w->o->multiple,
                                .most = w->o->most,
                                .seed = (uint64_t)w->job->config->seed,
                                .gradients = w->gradients,
                                .keep = w->keep,
                                .nkeep = w->nkeep};
    if (w->o->sensitivity > 0) TR_TRY(shares_now(w, n, &so, &shares));
    so.shares = shares;
    TR_TRY(agree(job, tr_prune_channels(n, &so, out, &reached)));
    TR_TRY(measure_of(w, *out, &now));
    now /= w->before;
    TR_TRY(tr_attrs_add_real(&w->job->findings->values, "reached", now));
    TR_TRY(tr_groups_open(n->model, &g));
    if (tr_comm_topology(w->job->comm)->rank == 0) warn(w, n, &g, left, now);
out:
    tr_free(shares);
    tr_groups_close(&g);
    return st;
}

/* *Collective.* Weights of each layer go by how much it may lose: masks leave layers what they are, so that shares found on
 * the network that came in are those of each round. */
static tr_status mask_by_layer(work *w, const tr_network *n, tr_mask_options *mo, tr_network **out)
{
    tr_status st = TR_OK;
    size_t *layers = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof *layers);
    double *each = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof *each);
    TR_TRY(agree((void *)w->job, layers && each ? TR_OK : tr_last_status()));
    const size_t count = tr_mask_layers(n->model, mo, layers);
    if (!w->shares) TR_TRY(find_shares(w, NULL, mo, layers, count));
    const double reached =
        tr_mask_amounts(n->model, layers, count, w->shares, mo->amount, w->o->most, each);
    if (reached < mo->amount - 1e-6 && tr_comm_topology(w->job->comm)->rank == 0)
        tr_log(TR_LOG_WARN,
               "prune: %.3g of the weights become 0, not %.3g: `sensitivity`, `most` or `keep` "
               "allow no more",
               reached, mo->amount);
    mo->amounts = each;
    TR_TRY(tr_mask(n, mo, out));
out:
    tr_free(layers);
    tr_free(each);
    return st;
}

static tr_status mask_weights(work *w, const tr_network *n, double left, tr_network **out)
{
    const bool pattern = w->o->kind == PATTERN;
    tr_mask_options mo = {.by = (tr_prune_by)w->o->by,
                          .amount = 1 - left,
                          .per_layer = !w->o->global,
                          .n = pattern ? w->o->pattern.v[0] : 0,
                          .m = pattern ? w->o->pattern.v[1] : 0,
                          .seed = (uint64_t)w->job->config->seed,
                          .gradients = w->gradients,
                          .keep = w->keep,
                          .nkeep = w->nkeep};
    return w->o->sensitivity > 0 ? mask_by_layer(w, n, &mo, out) : tr_mask(n, &mo, out);
}

static tr_status prune_once(work *w, const tr_network *n, double left, tr_network **out)
{
    tr_status st = TR_OK;
    if (w->o->by == TR_PRUNE_TAYLOR) {
        tr_free(w->gradients);
        w->gradients = tr_alloc(TR_MEM_OTHER, n->model->flat_count, sizeof *w->gradients);
        TR_TRY(tr_agree(w->job->comm, w->gradients ? TR_OK : tr_last_status(), NULL));
        TR_TRY(tr_gradients_over(w->job->evaluator, n, w->job->parent_config,
                                 (uint64_t)w->o->samples, w->gradients));
    }
    st = w->o->kind == CHANNELS ? remove_channels(w, n, left, out) : mask_weights(w, n, left, out);
out:
    return st;
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
static tr_status train(const work *w, int round, tr_network **network, bool *agreed)
{
    tr_status st;
    tr_network *trained = NULL;
    char **overrides = NULL, name[32];
    size_t n = 0;
    snprintf(name, sizeof name, "round-%d", round);
    st = tr_training_keys(w->o->train, &overrides, &n);
    TR_TRY(tr_agree(w->job->comm, st, NULL));
    const tr_training t = {.start = *network,
                           .overrides = (const char *const *)overrides,
                           .noverrides = n,
                           .name = name};
    TR_TRY(w->job->train(w->job, &t, &trained, agreed));
    tr_network_close(*network);
    *network = trained;
out:
    tr_training_keys_free(overrides);
    return st;
}

static bool has_layer(const tr_model *m, const char *name)
{
    size_t i = 0;
    while (i < m->nlayers && strcmp(m->layers[i].name, name) != 0) i++;
    return i < m->nlayers;
}

/* Those that are still there. */
static tr_status list_kept(work *w)
{
    const tr_node *keep = w->o->keep;
    const bool list = keep && keep->kind == TR_NODE_LIST;
    const size_t n = list ? keep->count : keep && keep->text[0] ? 1 : 0;
    w->keep = tr_alloc(TR_MEM_OTHER, n, sizeof *w->keep);
    for (size_t i = 0; w->keep && i < n; i++) {
        const char *name = list ? keep->values[i]->text : keep->text;
        if (has_layer(w->job->parent->model, name)) w->keep[w->nkeep++] = name;
    }
    return w->keep ? TR_OK : tr_last_status();
}

/* Kernels multiply by zeros as by anything else, and arrays hold them; that is told, as many expect otherwise. */
static tr_status say_of_zeros(const tr_stage_job *job, const tr_network *n)
{
    static const char text[] = "zeros save neither time nor memory here: kernels and files are "
                               "dense; kind: channels removes "
                               "for good";
    size_t zeros = 0;
    for (size_t i = 0; i < n->model->flat_count; i++) zeros += n->params[i] == 0;
    if (tr_comm_topology(job->comm)->rank == 0)
        tr_log(TR_LOG_INFO, "%zu of %zu values are 0; %s", zeros, n->model->flat_count, text);
    return tr_attrs_add_text(&job->findings->values, "zeros", text);
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    tr_status st = TR_OK;
    const prune_options *o = job->options;
    work w = {.job = job, .o = o};
    tr_network *network = NULL;
    *agreed = true;
    TR_TRY(tr_agree(job->comm, list_kept(&w), NULL));
    if (o->kind == CHANNELS) TR_TRY(measure_of(&w, job->parent, &w.before));
    for (int round = 1; round <= o->rounds; round++) {
        const double left =
            tr_prune_schedule(1 - o->amount, round, (int)o->rounds, o->schedule == 1);
        tr_network *made = NULL;
        st = prune_once(&w, network ? network : job->parent, left, &made);
        st = tr_agree(job->comm, st, NULL);
        if (st != TR_OK) tr_network_close(made);
        TR_TRY(st);
        tr_network_close(network);
        network = made;
        if (trains_at_all(o)) TR_TRY(train(&w, round, &network, agreed));
    }
    TR_TRY(tr_agree(job->comm, say(job->findings, job->parent, network), NULL));
    if (o->kind != CHANNELS) TR_TRY(tr_agree(job->comm, say_of_zeros(job, network), NULL));
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
    return ((const prune_options *)options)->measure == TR_PRUNE_MEASURED ? "measure: latency"
                                                                          : NULL;
}

const tr_stage tr_stage_prune = {
    .name = "prune",
    .makes = true,
    .doc =
        "Removes channels, or sets weights to 0 and keeps them there, where they count least; in "
        "rounds, with training between them in `stages/NN-prune/`",
    .fields = fields,
    .options_size = sizeof(prune_options),
    .check = check,
    .check_model = check_model,
    .leaves = leaves,
    .timed = timed,
    .trains = trains,
    .milder = milder,
    .run = run,
};
