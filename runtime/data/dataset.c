/* A dataset: the arrays of a source, checked against the model and each other, and held in memory
 * as far as data.cache_mb goes (targets first: they are small and every batch needs them). */
#include "runtime/data/source.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/numbers.h"

static size_t product(int ndim, const int64_t *dims)
{
    size_t n = 1;
    for (int d = 0; d < ndim; d++) n *= (size_t)dims[d];
    return n;
}

/* The same dims, but for dimensions of 1 in front, or one of the two flat. */
static bool same_shape(int an, const int64_t *a, int bn, const int64_t *b)
{
    if (product(an, a) != product(bn, b)) return false;
    while (an > 0 && a[0] == 1) a++, an--;
    while (bn > 0 && b[0] == 1) b++, bn--;
    if (an <= 1 || bn <= 1) return true;
    return an == bn && memcmp(a, b, (size_t)an * sizeof *a) == 0;
}

static tr_status check_input(const tr_array *a, const tr_input *in)
{
    char have[128], want[128];
    if (same_shape(a->ndim, a->dims, in->ndim, in->dims)) return TR_OK;
    bool last = a->ndim == in->ndim && in->layout == TR_LAYOUT_CHANNELS_LAST &&
                a->dims[2] == in->dims[0] && a->dims[0] == in->dims[1] && a->dims[1] == in->dims[2];
    return TR_FAIL(TR_DATA, "%s: a sample's shape is %s, expected %s, the model's input \"%s\"%s",
                   a->name, tr_format_dims(a->ndim, a->dims, have, sizeof have),
                   tr_format_dims(in->ndim, in->dims, want, sizeof want), in->name,
                   last ? ": the file is channels-last, store it channels first" : "");
}

static tr_status check_targets(const tr_array *a, const tr_model *m)
{
    char have[128], want[128];
    if (m->labels && m->rows == 1 && a->count != 1)
        return TR_FAIL(TR_DATA, "%s: a label's shape is %s, expected one class number a sample",
                       a->name, tr_format_dims(a->ndim, a->dims, have, sizeof have));
    if (m->labels && !same_shape(a->ndim, a->dims, m->ndim_target, m->target_dims))
        return TR_FAIL(TR_DATA,
                       "%s: a sample's labels have the shape %s, expected %s, a class number for "
                       "each row of the model's output",
                       a->name, tr_format_dims(a->ndim, a->dims, have, sizeof have),
                       tr_format_dims(m->ndim_target, m->target_dims, want, sizeof want));
    if (!m->labels && !same_shape(a->ndim, a->dims, m->ndim_target, m->target_dims))
        return TR_FAIL(TR_DATA, "%s: a target's shape is %s, expected %s, the model's output",
                       a->name, tr_format_dims(a->ndim, a->dims, have, sizeof have),
                       tr_format_dims(m->ndim_target, m->target_dims, want, sizeof want));
    return TR_OK;
}

/* The array whose name stands for the samples. */
static const tr_array *first_array(const tr_dataset *d)
{
    return d->targets ? d->targets : d->inputs[0];
}

const char *tr_dataset_name(const tr_dataset *d)
{
    return first_array(d)->name;
}

static tr_status check_count(const tr_dataset *d, const tr_array *a)
{
    const tr_array *first = first_array(d);
    if (a->samples == first->samples) return TR_OK;
    return TR_FAIL(TR_DATA, "%s: has %" PRIu64 " sample%s, expected %" PRIu64 " as in %s", a->name,
                   a->samples, tr_plural(a->samples), first->samples, first->name);
}

/* Samples [offset, offset + samples) of all arrays. */
static tr_status take_range(const tr_opening *o, tr_dataset *d)
{
    tr_status st = TR_OK;
    const tr_source_config *s = o->s;
    const uint64_t offset = (uint64_t)s->offset, all = first_array(d)->samples;
    if (all == 0) return TR_FAIL(TR_DATA, "%s: has no samples", tr_dataset_name(d));
    if (offset >= all)
        return tr_opening_fail(o, "offset", "%" PRIu64 ", but %s has %" PRIu64 " sample%s", offset,
                               tr_dataset_name(d), all, tr_plural(all));
    if (s->samples > 0 && all - offset < (uint64_t)s->samples)
        return tr_opening_fail(o, "samples", "%" PRId64 ", but %s has %" PRIu64 " sample%s%s",
                               s->samples, tr_dataset_name(d), all - offset,
                               tr_plural(all - offset), offset ? " from `offset` on" : "");
    d->samples = s->samples > 0 ? (uint64_t)s->samples : all - offset;
    if (offset == 0) goto out;
    if (d->targets) TR_TRY(tr_array_select(&d->targets, NULL, offset, d->samples));
    if (d->weights) TR_TRY(tr_array_select(&d->weights, NULL, offset, d->samples));
    for (size_t k = 0; k < d->ninputs; k++)
        TR_TRY(tr_array_select(&d->inputs[k], NULL, offset, d->samples));
out:
    return st;
}

/* Every target once, in blocks: bad ones are found before the first step. */
static tr_status scan_targets(const tr_dataset *d)
{
    const tr_array *a = d->targets;
    size_t out_bytes = d->target_count * sizeof(float); /* or int32_t */
    uint64_t block = 65536 / (a->nbytes > out_bytes ? a->nbytes : out_bytes) + 1;
    tr_status st = TR_OK;
    char *raw = tr_alloc(TR_MEM_OTHER, (size_t)block, a->nbytes);
    char *out = tr_alloc(TR_MEM_OTHER, (size_t)block, out_bytes);
    TR_HAVE(raw && out);
    for (uint64_t i = 0; i < d->samples; i += block) {
        uint64_t n = d->samples - i < block ? d->samples - i : block;
        const void *from = raw;
        if (a->held)
            from = (const char *)a->held + i * a->nbytes;
        else
            TR_TRY(d->targets->read(d->targets, i, n, raw));
        TR_TRY(tr_targets_convert(d, from, i, n, out));
    }
out:
    tr_free(raw);
    tr_free(out);
    return st;
}

/* Weights likewise: not all 0. */
static tr_status scan_weights(const tr_dataset *d)
{
    char scratch[8]; /* an element */
    const void *raw;
    double sum = 0;
    tr_status st = TR_OK;
    for (uint64_t i = 0; i < d->samples; i++) {
        float w = 0;
        TR_TRY(tr_array_at(d->weights, i, scratch, &raw));
        TR_TRY(tr_weights_convert(d, raw, i, 1, &w));
        sum += (double)w;
    }
    TR_NEED(sum > 0, TR_DATA, "%s: all weights are 0", d->weights->name);
out:
    return st;
}

static tr_status check_weights(const tr_opening *o, const tr_dataset *d)
{
    char have[128];
    const tr_array *a = d->weights;
    if (!d->weighted)
        return tr_opening_fail(o, "weights",
                               "%s, but the model was made without weights of samples: leave them "
                               "out, or train it again with them",
                               a->name);
    if (a->count != 1)
        return TR_FAIL(TR_DATA, "%s: a weight's shape is %s, expected one number a sample", a->name,
                       tr_format_dims(a->ndim, a->dims, have, sizeof have));
    return check_count(d, a);
}

/* Samples in memory come off the budget of the arrays behind them; what others are read through
 * does not. */
static tr_status hold(tr_dataset *d, tr_array *a, uint64_t *budget)
{
    tr_status st = TR_OK;
    if (a->computed) return TR_OK;
    if (a->lazy) {
        for (uint64_t i = 0; i < d->samples; i++) a->use(a, i);
        TR_TRY(a->keep(a, *budget, &a->cache));
    } else if (!a->held) { /* unpacked arrays are held whole; of others only the samples in use */
        a->samples = d->samples;
        if (a->samples * a->nbytes <= *budget) TR_TRY(tr_array_hold(a));
    }
    const uint64_t values = a->held ? a->samples * a->nbytes : 0,
                   kept = a->lazy ? a->cache : values;
    *budget -= kept < *budget ? kept : *budget;
    d->held += (size_t)values + a->cache;
out:
    return st;
}

/* Of outputs, too, where there are no targets. */
static tr_status check_stats(const tr_config *c, const tr_model *m)
{
    const tr_normalize_config *stats = &c->data.normalize_targets.stats;
    const size_t places = tr_dataset_target_places(m);
    tr_status st = TR_OK;
    for (int which = 0; which < 2; which++) {
        const size_t have = (which ? stats->std : stats->mean).count;
        TR_REQUIRE(have <= 1 || have == places,
                   which ? "data.normalize_targets.std" : "data.normalize_targets.mean",
                   "%zu values, expected 1 or one for each of the %zu %s", have, places,
                   m->target_layout == TR_LAYOUT_CHANNELS_LAST ? "channels" : "outputs");
    }
out:
    return st;
}

static tr_status take_stats(const tr_config *c, const tr_model *m, tr_dataset *d)
{
    tr_status st = TR_OK;
    const tr_reals *mean = &c->data.normalize_targets.stats.mean;
    const tr_reals *std = &c->data.normalize_targets.stats.std;
    const size_t n = mean->count > std->count ? mean->count : std->count;
    if (n == 0 || m->labels) return TR_OK;
    TR_TRY(check_stats(c, m));
    if (!d->targets) goto out;
    d->mean = tr_alloc(TR_MEM_OTHER, n, sizeof *d->mean);
    d->std = tr_alloc(TR_MEM_OTHER, n, sizeof *d->std);
    TR_HAVE(d->mean && d->std);
    for (size_t k = 0; k < n; k++) {
        d->mean[k] = mean->count ? mean->v[mean->count > 1 ? k : 0] : 0;
        d->std[k] = std->count ? (float)std->v[std->count > 1 ? k : 0] : 1;
    }
    d->nstats = n;
    d->run = tr_dataset_target_run(m);
out:
    return st;
}

/* Of a text that is evaluated, each token once, of those that are held out where data.split says
 * so: other windows than training has. Their labels may be such that do not count. */
static tr_status take_once(const tr_config *c, bool held_out, tr_dataset *d)
{
    tr_status st = TR_OK;
    const tr_split_config *split = &c->data.split;
    if (held_out) TR_TRY(tr_split_check(d));
    const uint64_t all = d->samples, first = held_out ? all - tr_split_part(split, all) : 0;
    uint64_t stride = 0;
    if (held_out) stride = split->stride > 0 ? (uint64_t)split->stride : d->inputs[0]->count;
    for (size_t k = 0; k < d->ninputs; k++) d->inputs[k]->once(d->inputs[k], first, all, stride);
    if (d->targets) d->targets->once(d->targets, first, all, stride);
    d->samples = d->inputs[0]->samples;
    if (!d->ignores) d->ignore_index = TR_FILLED_LABEL;
    d->ignores = true;
out:
    return st;
}

static const char *block_of(const tr_config *c, const tr_source_config *s)
{
    return s == &c->data.predict ? "data.predict" : s == &c->data.eval ? "data.eval" : "data.train";
}

/* Without data.eval, what data.split holds out of data.train is opened in its place. */
static tr_opening opening_of(const tr_config *c, const tr_source_config *s, const tr_model *m)
{
    const bool evaluated = s == &c->data.eval;
    if (evaluated && !s->present && c->data.split.present) s = &c->data.train;
    return (tr_opening){.c = c,
                        .s = s,
                        .m = m,
                        .block = block_of(c, s),
                        .unlabeled = s == &c->data.predict,
                        .evaluated = evaluated};
}

static tr_status open_source(const tr_opening *o, uint64_t budget, tr_array **inputs,
                             tr_array **targets, tr_array **weights)
{
    const tr_status st = tr_source_open(o, budget, inputs, targets, weights);
    return st == TR_OK ? TR_OK : tr_source_failed(o->c, o->s, o->block, st);
}

tr_status tr_dataset_look(const tr_config *c, const tr_source_config *s, const tr_model *m)
{
    tr_array *inputs[TR_MAX_IN], *targets, *weights;
    tr_opening o = opening_of(c, s, m);
    o.looks = true;
    return open_source(&o, 0, inputs, &targets, &weights);
}

tr_status tr_dataset_open(const tr_config *c, const tr_source_config *s, const tr_model *m,
                          tr_dataset **out)
{
    tr_status st = TR_OK;
    uint64_t budget = c->data.cache_mb > 0 ? (uint64_t)c->data.cache_mb * 1000000 : 0;
    const tr_opening o = opening_of(c, s, m);
    const bool evaluated = o.evaluated, held_out = o.s != s;
    s = o.s;
    tr_dataset *d = TR_NEW(TR_MEM_OTHER, tr_dataset);
    if (!d) return tr_last_status();
    d->ninputs = m->ninputs;
    d->labels = m->labels;
    d->classes = m->classes;
    d->whole = tr_loss_soft(&c->model.loss);
    d->unit = d->whole || tr_loss_binary(c->model.loss.kind.which);
    d->ignores = m->labels && c->model.loss.ignore_index != TR_NO_LABEL;
    if (d->ignores) d->ignore_index = (int32_t)c->model.loss.ignore_index;
    d->weighted = m->loss_config.weighted;
    st = open_source(&o, budget, d->inputs, &d->targets, &d->weights);
    tr_hdf5_forget_new();
    TR_TRY(st);
    if (d->targets) {
        TR_TRY(check_targets(d->targets, m));
        d->target_count = d->targets->count;
        d->target_channels = !m->labels && m->target_layout == TR_LAYOUT_CHANNELS_LAST
                                 ? (size_t)m->target_dims[0]
                                 : 1;
    }
    for (size_t k = 0; k < d->ninputs; k++) {
        TR_TRY(check_input(d->inputs[k], &m->inputs[k]));
        TR_TRY(check_count(d, d->inputs[k]));
    }
    if (d->weights) TR_TRY(check_weights(&o, d));
    TR_TRY(take_range(&o, d));
    if (evaluated && d->inputs[0]->once)
        TR_TRY(take_once(c, held_out, d));
    else if (c->data.split.present && s == &c->data.train)
        TR_TRY(tr_split_take(c, d, held_out));
    TR_TRY(take_stats(c, m, d));
    if (d->targets) TR_TRY(hold(d, d->targets, &budget));
    if (d->weights) TR_TRY(hold(d, d->weights, &budget));
    for (size_t k = 0; k < d->ninputs; k++) TR_TRY(hold(d, d->inputs[k], &budget));
    /* labels that stay in the file are its tokens, which may be many: each is checked as it is
     * read */
    const bool later = d->targets && d->targets->follows && !d->targets->kept;
    if (d->targets && !d->targets->computed && !later) TR_TRY(scan_targets(d));
    if (d->weights) TR_TRY(scan_weights(d));
    if (s == &c->data.train && !held_out) tr_coarse_warn(d, c, m);

out:
    if (st != TR_OK) {
        tr_dataset_close(d);
        return st;
    }
    *out = d;
    return TR_OK;
}

void tr_dataset_close(tr_dataset *d)
{
    if (!d) return;
    for (size_t k = 0; k < d->ninputs; k++) tr_array_close(d->inputs[k]);
    tr_array_close(d->targets);
    tr_array_close(d->weights);
    tr_free(d->mean);
    tr_free(d->std);
    tr_free(d);
}

uint64_t tr_dataset_samples(const tr_dataset *d)
{
    return d->samples;
}

size_t tr_dataset_held(const tr_dataset *d)
{
    return d->held;
}
