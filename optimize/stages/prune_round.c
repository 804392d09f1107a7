/* One round of the stage `prune`: the shares of layers by sensitivity, channels removed, weights
 * masked. */
#include "optimize/stages/prune_round.h"

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
tr_status tr_prune_measure_of(const tr_prune_work *w, const tr_network *n, double *out)
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

static tr_status open_shares(tr_prune_work *w, size_t count, alone *s)
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
static tr_status say_shares(const tr_prune_work *w, const alone *s)
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

/* *Collective.* How much of each group of channels (`so`), or of the weights of each of `count`
 * layers (`mo`), may go; found out once, on the network that came in. */
static tr_status find_shares(tr_prune_work *w, const tr_structured_options *so,
                             const tr_mask_options *mo, const size_t *layers, size_t count)
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
static tr_status shares_now(tr_prune_work *w, const tr_network *n, const tr_structured_options *so,
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
static void warn(const tr_prune_work *w, const tr_network *n, const tr_groups *g, double left,
                 double now)
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
static tr_status remove_channels(tr_prune_work *w, const tr_network *n, double left,
                                 tr_network **out)
{
    tr_status st = TR_OK;
    double reached, now, *shares = NULL;
    void *job = (void *)w->job;
    tr_groups g = {0};
    TR_TRY(tr_prune_measure_of(w, n, &now));
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
    TR_TRY(tr_prune_measure_of(w, *out, &now));
    now /= w->before;
    TR_TRY(tr_attrs_add_real(&w->job->findings->values, "reached", now));
    TR_TRY(tr_groups_open(n->model, &g));
    if (tr_comm_topology(w->job->comm)->rank == 0) warn(w, n, &g, left, now);
out:
    tr_free(shares);
    tr_groups_close(&g);
    return st;
}

/* *Collective.* Weights of each layer go by how much it may lose: masks leave layers what they are,
 * so that shares found on the network that came in are those of each round. */
static tr_status mask_by_layer(tr_prune_work *w, const tr_network *n, tr_mask_options *mo,
                               tr_network **out)
{
    tr_status st = TR_OK;
    size_t *layers = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof *layers);
    double *each = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof *each);
    TR_TRY(agree((void *)w->job, layers && each ? TR_OK : tr_last_status()));
    const size_t count = tr_mask_layers(n->model, mo, layers);
    if (count == 0) { /* which is said: there is nothing to find out */
        TR_TRY(tr_mask(n, mo, out));
        goto out;
    }
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

static tr_mask_options mask_options(const tr_prune_work *w, double left)
{
    const bool pattern = w->o->kind == TR_PRUNE_PATTERN;
    return (tr_mask_options){.by = (tr_prune_by)w->o->by,
                             .amount = 1 - left,
                             .per_layer = !w->o->global,
                             .n = pattern ? w->o->pattern.v[0] : 0,
                             .m = pattern ? w->o->pattern.v[1] : 0,
                             .seed = (uint64_t)w->job->config->seed,
                             .gradients = w->gradients,
                             .keep = w->keep,
                             .nkeep = w->nkeep};
}

void tr_prune_say_left_out(const tr_prune_work *w, const tr_model *m)
{
    char left[600];
    const tr_mask_options mo = mask_options(w, 1);
    const tr_mask_reach reach = tr_mask_reaches(m, &mo, left, sizeof left);
    if (reach.taken == 0)
        tr_log(TR_LOG_WARN, "prune: no weight can become 0%s%s",
               *left ? "; left as they are: " : ": the model has none", left);
    else if (reach.taken < reach.all)
        tr_log(TR_LOG_INFO, "prune: %zu of %zu weights may become 0; left as they are: %s",
               reach.taken, reach.all, left);
}

static tr_status mask_weights(tr_prune_work *w, const tr_network *n, double left, tr_network **out)
{
    tr_mask_options mo = mask_options(w, left);
    return w->o->sensitivity > 0 ? mask_by_layer(w, n, &mo, out) : tr_mask(n, &mo, out);
}

tr_status tr_prune_once(tr_prune_work *w, const tr_network *n, double left, tr_network **out)
{
    tr_status st = TR_OK;
    if (w->o->by == TR_PRUNE_TAYLOR) {
        tr_free(w->gradients);
        w->gradients = tr_alloc(TR_MEM_OTHER, n->model->flat_count, sizeof *w->gradients);
        TR_TRY(tr_agree(w->job->comm, w->gradients ? TR_OK : tr_last_status(), NULL));
        TR_TRY(tr_gradients_over(w->job->evaluator, n, w->job->parent_config,
                                 (uint64_t)w->o->samples, w->gradients));
    }
    st = w->o->kind == TR_PRUNE_CHANNELS ? remove_channels(w, n, left, out)
                                         : mask_weights(w, n, left, out);
out:
    return st;
}
