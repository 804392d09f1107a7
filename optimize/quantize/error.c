/* What rounding does to the outputs of each product by itself: both ways of computing it stand
 * beside each other in one network, of the same values before it, and run over data once. */
#include "optimize/quantize/internal.h"

#include <math.h>
#include <string.h>

/* ---- Both beside each other ------------------------------------------------------------------ */

typedef struct {
    const tr_model *m;
    const bool *chosen;
    const tr_value_range *ranges;
    int *steps; /* [values] the value of the layer that rounds it; 0: there is none yet */
} making;

static tr_status make_layer(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    making *k = ctx;
    tr_status st = TR_OK;
    char name[TR_NAME], options[96];
    int other;
    if (!k->chosen[l->index]) return TR_OK;
    tr_maker_loose(mk);
    int *steps = &k->steps[l->in[0]];
    if (*steps == 0) {
        tr_steps_name(k->m, l->in[0], name);
        const tr_layer_given given = {
            .type = tr_steps_type(&k->ranges[l->in[0]], options, sizeof options),
            .name = name,
            .nin = 1,
            .in = in};
        TR_TRY(tr_maker_layer_text(mk, &given, options, steps));
    }
    snprintf(name, sizeof name, TR_ROUNDED_NAME, l->name, l->index);
    TR_TRY(tr_maker_copy(mk, l, &(tr_layer_changes){.name = name}, 1, steps, &other));
    st = tr_maker_copy(mk, l, NULL, 1, in, value);
out:
    return st;
}

static void take_rows(const tr_network *from, const char *layer, tr_network *to, const char *as)
{
    static const char *const rows[] = {"weight", "bias"};
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        const tr_param *p = tr_network_row(from, layer, rows[i]);
        if (p)
            memcpy(tr_network_param(to, as, rows[i]), from->params + p->offset,
                   p->count * sizeof(float));
    }
}

tr_status tr_quantize_beside(const tr_network *n, const tr_network *q, const bool *chosen,
                             const tr_value_range *ranges, tr_network **out)
{
    tr_status st = TR_OK;
    const tr_model *m = n->model;
    making k = {.m = m, .chosen = chosen, .ranges = ranges};
    char name[TR_NAME];
    TR_HAVE(k.steps = tr_alloc(TR_MEM_OTHER, m->ninputs + m->nlayers, sizeof *k.steps));
    TR_TRY(tr_network_edit(n, make_layer, &k, out));
    for (size_t i = 0; i < m->nlayers; i++) {
        if (!chosen[i]) continue;
        snprintf(name, sizeof name, TR_ROUNDED_NAME, m->layers[i].name, (int)i);
        take_rows(q, m->layers[i].name, *out, name);
    }
out:
    tr_free(k.steps);
    return st;
}

/* ---- Over data ------------------------------------------------------------------------------- */

enum {
    SIGNAL,
    NOISE,
    PLACES,
    MEANS
}; /* of a layer's sums; then a sum of errors for each channel */

typedef struct {
    const tr_evaluator *e;
    size_t count;
    const char **names;    /* [2 count] of outputs: as it is, rounded */
    char (*text)[TR_NAME]; /* [count] */
    size_t *at;            /* [count] of its sums in a batch's */
} looking;

static tr_status take(void *ctx, const tr_plan *p, const tr_batch *b, const double *tally,
                      void *result)
{
    const looking *k = ctx;
    const tr_graph *g = tr_plan_graph(p);
    tr_status st = TR_OK;
    tr_host_values as_is = {0}, steps = {0};
    (void)b, (void)tally;
    for (size_t i = 0; i < k->count; i++) {
        const int exact = g->outputs[2 * i], rounded = g->outputs[2 * i + 1];
        const tr_tensor *t = &g->tensors[exact];
        const void *y, *z;
        TR_TRY(tr_host_values_of(k->e, p, exact, &as_is, &y));
        TR_TRY(tr_host_values_of(k->e, p, rounded, &steps, &z));
        const size_t channels = (size_t)t->dims[tr_innermost(t)];
        double *sums = (double *)result + k->at[i];
        for (size_t e = 0; e < t->count; e++) {
            const double v = tr_value_at(t->dtype, y, e), d = tr_value_at(t->dtype, z, e) - v;
            sums[SIGNAL] += v * v;
            sums[NOISE] += d * d;
            sums[MEANS + e % channels] += d;
        }
        sums[PLACES] += (double)(t->count / channels);
    }
out:
    tr_free(as_is.buffer);
    tr_free(steps.buffer);
    return st;
}

static void close_looking(looking *k)
{
    tr_free(k->names);
    tr_free(k->text);
    tr_free(k->at);
}

/* *words: of a batch. */
static tr_status open_looking(const tr_model *m, const bool *chosen, looking *k, size_t *words)
{
    tr_status st = TR_OK;
    *words = 0;
    TR_HAVE(k->names = tr_alloc(TR_MEM_OTHER, 2 * m->nlayers, sizeof *k->names));
    TR_HAVE(k->text = tr_alloc(TR_MEM_OTHER, m->nlayers, sizeof *k->text));
    TR_HAVE(k->at = tr_alloc(TR_MEM_OTHER, m->nlayers, sizeof *k->at));
    for (size_t i = 0; i < m->nlayers; i++) {
        if (!chosen[i]) continue;
        snprintf(k->text[k->count], TR_NAME, TR_ROUNDED_NAME, m->layers[i].name, (int)i);
        k->names[2 * k->count] = m->layers[i].name;
        k->names[2 * k->count + 1] = k->text[k->count];
        k->at[k->count++] = *words;
        *words += MEANS + (size_t)tr_shape_channels(&m->layers[i].output);
    }
out:
    return st;
}

/* The sums of all batches, in their order, in those of the first. */
static tr_status conclude(const tr_model *m, const bool *chosen, const looking *k, double *sums,
                          size_t words, uint64_t batches, tr_output_error *errors)
{
    tr_status st = TR_OK;
    for (uint64_t b = 1; b < batches; b++)
        for (size_t i = 0; i < words; i++) sums[i] += sums[b * words + i];
    for (size_t i = 0, n = 0; i < m->nlayers; i++) {
        if (!chosen[i]) continue;
        const double *s = sums + k->at[n++];
        const size_t channels = (size_t)tr_shape_channels(&m->layers[i].output);
        tr_output_error *e = &errors[i];
        *e = (tr_output_error){.signal = s[SIGNAL], .noise = s[NOISE], .places = s[PLACES]};
        TR_HAVE(e->mean = tr_alloc(TR_MEM_OTHER, channels, sizeof *e->mean));
        for (size_t c = 0; c < channels; c++) e->mean[c] = s[MEANS + c] / s[PLACES];
    }
out:
    return st;
}

tr_status tr_quantize_errors(tr_evaluator *e, const tr_network *n, const tr_network *q,
                             const tr_config *config, uint64_t samples, const bool *chosen,
                             const tr_value_range *ranges, tr_output_error *errors)
{
    looking k = {.e = e};
    tr_network *both = NULL;
    double *sums = NULL;
    uint64_t batches;
    size_t words = 0;
    tr_status st = open_looking(n->model, chosen, &k, &words);
    if (st == TR_OK) st = tr_quantize_beside(n, q, chosen, ranges, &both);
    TR_TRY(tr_agree(tr_evaluator_comm(e), st, NULL));
    const tr_over_data what = {.source = TR_OVER_TRAIN,
                               .samples = samples,
                               .nbytes = words * sizeof *sums,
                               .take = take,
                               .ctx = &k,
                               .infer = true,
                               .outputs = k.names,
                               .noutputs = 2 * k.count};
    TR_TRY(tr_run_over(e, both, config, &what, (void **)&sums, &batches));
    st = tr_agree(tr_evaluator_comm(e),
                  conclude(n->model, chosen, &k, sums, words, batches, errors), NULL);
out:
    tr_network_close(both);
    close_looking(&k);
    tr_free(sums);
    return st;
}

void tr_output_errors_free(tr_output_error *errors, size_t count)
{
    for (size_t i = 0; errors && i < count; i++) tr_free(errors[i].mean);
    tr_free(errors);
}

/* ---- Bias correction ------------------------------------------------------------------------- */

static tr_status add_bias(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    static const char *const with[] = {"bias=true"};
    const bool *chosen = ctx;
    const tr_layer_changes changes = {.options = with, .noptions = 1};
    return chosen[l->index] ? tr_maker_copy(mk, l, &changes, l->nin, in, value) : TR_OK;
}

tr_status tr_quantize_with_biases(const tr_network *n, const bool *chosen, tr_network **out)
{
    tr_status st;
    bool *has = tr_alloc(TR_MEM_OTHER, n->model->nlayers, sizeof *has);
    TR_HAVE(has);
    memcpy(has, chosen, n->model->nlayers * sizeof *has);
    TR_TRY(tr_network_edit(n, add_bias, has, out));
    for (size_t i = 0; i < n->model->nlayers; i++) {
        const char *name = n->model->layers[i].name;
        if (!chosen[i] || tr_network_row(n, name, "bias")) continue;
        const tr_param *p = tr_network_row(*out, name, "bias");
        memset((*out)->params + p->offset, 0, p->count * sizeof(float));
    }
out:
    tr_free(has);
    return st;
}

void tr_quantize_correct(tr_network *q, const tr_layer *l, tr_output_error *e)
{
    const tr_param *p = tr_network_row(q, l->name, "bias");
    for (size_t c = 0; c < p->count; c++) {
        q->params[p->offset + c] -= (float)e->mean[c];
        e->noise -= e->places * e->mean[c] * e->mean[c];
    }
    e->noise = fmax(e->noise, 0);
}
