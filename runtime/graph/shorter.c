/* A model for sequences of fewer rows: made of the same layers, with the whole model's tables of
 * parameters, states and buckets in the place of its own, which must be the same ones. */
#include "runtime/graph/maker.h"
#include "runtime/graph/ops/registry.h"

#include <string.h>

bool tr_input_rows(const tr_model *m, const tr_input *in)
{
    return (in->ndim == 1 || in->ndim == 2) && !in->lengths && in->layout == TR_LAYOUT_PLAIN &&
           in->dims[0] == m->inputs[0].dims[0];
}

/* Row r, but for rows that go with those of a sample. */
static bool same_param(const tr_param *a, const tr_param *b)
{
    if (strcmp(a->layer, b->layer) != 0 || strcmp(a->name, b->name) != 0 || a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dims[i] != b->dims[i] && !(i == 0 && a->by_row && b->dims[i] < a->dims[i]))
            return false;
    return true;
}

static bool same_state(const tr_state *a, const tr_state *b)
{
    return strcmp(a->layer, b->layer) == 0 && strcmp(a->name, b->name) == 0 && a->count == b->count;
}

static tr_status other(const char *layer, const char *name)
{
    return TR_FAIL(TR_CONFIG, "layer \"%s\": its %s would be another one", layer, name);
}

static tr_status check_tables(const tr_model *m, const tr_model *s)
{
    if (m->nparams != s->nparams || m->nstates != s->nstates)
        return TR_FAIL(TR_INTERNAL, "a copy of a model has other tables");
    for (size_t r = 0; r < m->nparams; r++)
        if (!same_param(&m->params[r], &s->params[r]))
            return other(m->params[r].layer, m->params[r].name);
    for (size_t r = 0; r < m->nstates; r++)
        if (!same_state(&m->states[r], &s->states[r]))
            return other(m->states[r].layer, m->states[r].name);
    return TR_OK;
}

static bool takes_lengths(const tr_model *m, const tr_layer *l)
{
    for (int i = 0; i < l->nin; i++)
        if ((size_t)l->in[i] < m->ninputs && m->inputs[l->in[i]].lengths) return true;
    return false;
}

/* Rows behind a sample's end mean something to a layer that no lengths mask and that mixes rows, or
 * makes one of all: it would put out another value where they are fewer. held: by value, whether
 * its last row is each sample's own. */
static tr_status check_layer(const tr_model *m, const tr_model *s, size_t at, bool *held)
{
    const tr_layer *l = &m->layers[at], *t = &s->layers[at];
    const tr_op_def *def = l->def;
    const bool lengths = takes_lengths(m, l), apart = def->rows == TR_ROWS_APART;
    bool cut = false, hold = apart;
    for (int i = 0; i < l->nin; i++) {
        if (tr_shape_equal(&l->inputs[i], &t->inputs[i])) continue;
        cut = true;
        hold &= held[l->in[i]];
    }
    if (!cut) return TR_OK;
    const bool first = !tr_shape_equal(&l->inputs[0], &t->inputs[0]);
    const bool kept =
        l->output.dims[0] == l->inputs[0].dims[0] && t->output.dims[0] == t->inputs[0].dims[0];
    const char *why = def->together ? def->together(l) : NULL;
    held[m->ninputs + at] = hold || (def->holds && def->holds(l));
    if (def->cut ? def->cut(l, held[l->in[0]])
                 : kept && def->rows != TR_ROWS_TOGETHER && (lengths || (first && !why)))
        return TR_OK;
    return tr_layer_fail(
        l, TR_CONFIG,
        "%s takes in rows behind a sample's end%s%s, and fewer of them are left: expected layers "
        "to which they mean nothing",
        def->name, why ? ", for " : "", why ? why : "");
}

static tr_status check_layers(const tr_model *m, const tr_model *s)
{
    tr_status st = TR_OK;
    bool *held = tr_alloc(TR_MEM_OTHER, m->ninputs + m->nlayers, sizeof *held);
    if (!held) return tr_last_status();
    for (size_t i = 0; st == TR_OK && i < m->nlayers; i++) st = check_layer(m, s, i, held);
    tr_free(held);
    return st;
}

/* Targets of the rows that are left are the first ones, and those of others do not count. */
static tr_status check_targets(const tr_model *m, const tr_model *s)
{
    if (m->outputs == s->outputs) return TR_OK;
    if (!m->labels || m->ndim_target != 1)
        return TR_FAIL(TR_CONFIG, "the model's output would be another one, which its targets are "
                                  "not: expected one for a sample, or labels of rows");
    if (m->loss_config.ignore_index == TR_NO_LABEL)
        return TR_FAIL(TR_CONFIG, "labels behind a sample's end are not to count: set "
                                  "model.loss.cross_entropy.ignore_index");
    return TR_OK;
}

/* In place of its own. */
static void take_tables(const tr_model *m, tr_model *s)
{
    if (m->nparams > 0) memcpy(s->params, m->params, m->nparams * sizeof *m->params);
    if (m->nstates > 0) memcpy(s->states, m->states, m->nstates * sizeof *m->states);
    if (m->nbuckets > 0) memcpy(s->buckets, m->buckets, m->nbuckets * sizeof *m->buckets);
    if (m->nrounded > 0) memcpy(s->rounded, m->rounded, m->nrounded * sizeof *m->rounded);
    s->nbuckets = m->nbuckets;
    s->nrounded = m->nrounded;
    s->flat_count = m->flat_count;
    s->learned_count = m->learned_count;
    s->state_count = m->state_count;
    s->nparameters = m->nparameters;
}

static void close_all(tr_model *m)
{
    for (size_t i = 0; i < m->nshorter; i++) tr_model_close(m->shorter[i]);
    m->nshorter = 0;
}

static tr_status shorten(tr_model *m, int64_t rows)
{
    tr_status st;
    tr_model *s = NULL;
    TR_TRY(tr_model_copy_rows(m, rows, &s));
    m->shorter[m->nshorter++] = s;
    TR_TRY(check_layers(m, s));
    TR_TRY(check_tables(m, s));
    TR_TRY(check_targets(m, s));
    take_tables(m, s);
out:
    return st;
}

tr_status tr_model_shorten(tr_model *m, const tr_ints *rows)
{
    tr_status st = TR_OK;
    close_all(m);
    const tr_input *first = &m->inputs[0];
    for (size_t i = 0; i < rows->count; i++) {
        if (!tr_input_rows(m, first) || (first->ndim == 1 && first->ids == 0))
            st = TR_FAIL(TR_CONFIG,
                         "the model's input \"%s\" is no sequence: expected ids (rows), "
                         "or (rows, features)",
                         first->name);
        else if (rows->v[i] >= first->dims[0] || (i > 0 && rows->v[i] <= rows->v[i - 1]))
            st = TR_FAIL(TR_CONFIG,
                         "expected rising numbers below %lld, the rows of the input \"%s\"",
                         (long long)first->dims[0], first->name);
        else
            st = shorten(m, rows->v[i]);
        if (st == TR_OK) continue;
        close_all(m);
        return tr_fail_before(st == TR_SHAPE ? TR_CONFIG : st,
                              "%lld rows: ", (long long)rows->v[i]);
    }
    return TR_OK;
}
