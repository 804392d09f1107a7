/* Networks with fewer bits: which values are rounded, and the weights. */
#include "optimize/quantize/internal.h"

#include <math.h>
#include <string.h>

const tr_param *tr_own_weight(const tr_model *m, const tr_layer *l)
{
    const tr_param *p = l->nparams > 0 ? &m->params[l->params[0]] : NULL;
    return p && p->uses == 1 && p->stored == TR_F32 ? p : NULL;
}

bool tr_quantizable(const tr_model *m, const tr_layer *l)
{
    tr_product p;
    return tr_layer_product(l, &p) && tr_own_weight(m, l);
}

/* ---- Weights alone --------------------------------------------------------------------------- */

typedef struct {
    const tr_model *m;
    const char *option; /* "stored=float16" */
} rounding;

bool tr_quantize_stores(const tr_model *m, const tr_layer *l)
{
    const tr_channels c = tr_layer_channels(l);
    return (c == TR_CHANNELS_PRODUCT || c == TR_CHANNELS_ROWS) && tr_own_weight(m, l);
}

static tr_status round_layer(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    const rounding *r = ctx;
    const tr_layer_changes changes = {.options = &r->option, .noptions = 1};
    return tr_quantize_stores(r->m, l) ? tr_maker_copy(mk, l, &changes, l->nin, in, value) : TR_OK;
}

tr_status tr_quantize_weights(const tr_network *n, tr_dtype stored, tr_network **out)
{
    tr_status st = TR_OK;
    const bool half = stored == TR_F16;
    rounding r = {.m = n->model, .option = half ? "stored=float16" : "stored=bfloat16"};
    tr_network *made = NULL;
    TR_TRY(tr_network_finite(n));
    TR_TRY(tr_network_edit(n, round_layer, &r, &made));
    for (size_t i = 0; i < made->model->nparams; i++) {
        const tr_param *p = &made->model->params[i];
        float *v = made->params + p->offset;
        for (size_t k = 0; p->stored == stored && k < p->count; k++) {
            const float was = v[k];
            v[k] = half ? tr_f16_to_f32(tr_f32_to_f16(was)) : tr_bf16_to_f32(tr_f32_to_bf16(was));
            TR_NEED(isfinite(v[k]), TR_CONFIG, "layer \"%s\": a weight of %g does not fit %s, %s",
                    p->layer, (double)was, tr_dtype_name(stored),
                    half ? "which ends at 65504: bfloat16 goes as far as float32"
                         : "which ends at 3.39e+38: leave it float32");
        }
    }
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    return st;
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* A sum of two goes into the product that makes one of them, the later one; the operand that the
 * other one is, -1: it does not. As the graph's pass does it. */
static int added(const tr_model *m, const bool *chosen, const tr_layer *l)
{
    int best = -1;
    if (!tr_layer_sums(l) || l->nin != 2) return -1;
    for (int k = 0; k < 2; k++) {
        const int mine = l->in[k] - (int)m->ninputs, other = l->in[1 - k] - (int)m->ninputs;
        if (mine < 0 || !chosen[mine] || mine <= other) continue;
        size_t readers = 0;
        for (size_t i = 0; i < m->nlayers; i++)
            for (int j = 0; j < m->layers[i].nin; j++) readers += m->layers[i].in[j] == l->in[k];
        if (readers == 1) best = 1 - k;
    }
    return best;
}

/* The only layer that reads the value; NULL: none, or several do. */
static const tr_layer *reader_of(const tr_model *m, int value)
{
    const tr_layer *reader = NULL;
    for (size_t i = 0; i < m->nlayers; i++)
        for (int j = 0; j < m->layers[i].nin; j++) {
            if (m->layers[i].in[j] != value) continue;
            if (reader && reader != &m->layers[i]) return NULL;
            reader = &m->layers[i];
        }
    return reader;
}

static const tr_layer *maker_of(const tr_model *m, int value)
{
    return (size_t)value < m->ninputs ? NULL : &m->layers[(size_t)value - m->ninputs];
}

/* It is rounded, itself or behind what moves it. */
static bool is_rounded(const tr_model *m, const bool *wanted, int value)
{
    const tr_layer *l;
    while (!wanted[value] && (l = reader_of(m, value)) && tr_layer_moves(l))
        value = (int)m->ninputs + l->index;
    return wanted[value];
}

/* A product in 8 bits makes it, with what goes into that; it is rounded anyway; or it is carried on
 * from such values. */
static bool can_be_steps(const tr_model *m, const bool *chosen, const bool *wanted, int value,
                         int depth)
{
    const tr_layer *l = maker_of(m, value);
    bool any = wanted[value];
    if (any || !l || depth == 0) return any;
    if (chosen[l->index] || added(m, chosen, l) >= 0) return true;
    if (!tr_layer_nonnegative(l) && !tr_layer_moves(l) && !tr_layer_carries_steps(l)) return false;
    for (int k = 0; k < l->nin && !any; k++)
        any = can_be_steps(m, chosen, wanted, l->in[k], depth - 1);
    return any;
}

/* It is computed in 8 bits: all that it reads is rounded, and what it makes. */
static bool carries(const tr_model *m, const bool *wanted, const tr_layer *l)
{
    bool all = tr_layer_carries_steps(l) && is_rounded(m, wanted, (int)m->ninputs + l->index);
    for (int k = 0; k < l->nin && all; k++) all = wanted[l->in[k]];
    return all;
}

enum { DEEP = 8 };

/* Layers between products that can carry steps on get rounded inputs. */
static void add_carriers(const tr_model *m, const bool *chosen, bool *wanted)
{
    for (size_t i = m->nlayers; i-- > 0;) {
        const tr_layer *l = &m->layers[i];
        bool any = false;
        if (!tr_layer_carries_steps(l) || !is_rounded(m, wanted, (int)m->ninputs + l->index))
            continue;
        for (int k = 0; k < l->nin; k++) any |= can_be_steps(m, chosen, wanted, l->in[k], DEEP);
        for (int k = 0; k < l->nin && any; k++) wanted[l->in[k]] = true;
    }
}

void tr_quantize_share_ranges(const tr_network *n, const bool *wanted, tr_value_range *ranges)
{
    const tr_model *m = n->model;
    for (size_t i = m->nlayers; i-- > 0;) {
        const tr_layer *l = &m->layers[i];
        const int y = (int)m->ninputs + (int)i;
        if (tr_layer_channels(l) != TR_CHANNELS_JOINED || !wanted[y] || !carries(m, wanted, l))
            continue;
        for (int k = 0; k < l->nin; k++)
            if (reader_of(m, l->in[k]) == l) ranges[l->in[k]] = ranges[y];
    }
}

void tr_quantize_places(const tr_network *n, const bool *chosen, bool *wanted)
{
    const tr_model *m = n->model;
    memset(wanted, 0, (m->ninputs + m->nlayers) * sizeof *wanted);
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        const int other = added(m, chosen, l);
        if (chosen[i]) wanted[l->in[0]] = true;
        if (other >= 0) wanted[l->in[other]] = true;
    }
    add_carriers(m, chosen, wanted);
}

typedef struct {
    const tr_model *m;
    const bool *chosen;
    bool *wanted; /* [values] what is rounded */
    const tr_value_range *ranges;
    bool per_tensor; /* weights */
    int *steps;      /* [values] the value of the layer that rounds it */
} making;

void tr_steps_name(const tr_model *m, int value, char name[TR_NAME])
{
    const char *of = (size_t)value < m->ninputs ? m->inputs[value].name
                                                : m->layers[(size_t)value - m->ninputs].name;
    enum { WHOLE = 40, CUT = 31 };
    char hash[65];
    if (strlen(of) <= WHOLE) {
        snprintf(name, TR_NAME, "%.*s.steps", WHOLE, of);
        return;
    }
    tr_sha256_hex(of, strlen(of), hash); /* two that differ behind the cut stay two */
    snprintf(name, TR_NAME, "%.*s-%.8s.steps", CUT, of, hash);
}

const char *tr_steps_type(const tr_value_range *r, char *text, size_t size)
{
    const char *is_signed = r->is_signed ? "true" : "false";
    if (r->dynamic)
        snprintf(text, size, "{signed: %s}", is_signed);
    else
        snprintf(text, size, "{scale: %.9g, signed: %s}", r->scale, is_signed);
    return r->dynamic ? tr_layer_dynamic_rounder() : tr_layer_rounder();
}

/* It is a choice or an average of what is not negative, or a sum. */
static bool keeps_signs(const tr_layer *l)
{
    return tr_layer_sums(l) || tr_layer_commutes(l) & (TR_COMMUTES_SHIFT | TR_COMMUTES_SCALE);
}

void tr_quantize_dynamic(const tr_network *n, tr_value_range *ranges)
{
    const tr_model *m = n->model;
    for (size_t v = 0; v < m->ninputs + m->nlayers; v++) {
        const tr_layer *l = v < m->ninputs ? NULL : &m->layers[v - m->ninputs];
        bool is_signed = !l || (!tr_layer_nonnegative(l) && !keeps_signs(l));
        for (int i = 0; l && !tr_layer_nonnegative(l) && i < l->nin; i++)
            is_signed |= ranges[l->in[i]].is_signed;
        ranges[v] = (tr_value_range){.dynamic = true, .is_signed = is_signed};
    }
}

/* `now`: the value's number in the new model. */
static tr_status round_value(making *k, tr_maker *mk, int value, int now)
{
    const tr_model *m = k->m;
    const tr_value_range *r = &k->ranges[value];
    char name[TR_NAME], options[96];
    tr_steps_name(m, value, name);
    const tr_layer_given given = {
        .type = tr_steps_type(r, options, sizeof options), .name = name, .nin = 1, .in = &now};
    return tr_maker_layer_text(mk, &given, options, &k->steps[value]);
}

/* A value is rounded where it is made, so that it is there before whatever reads it. */
static tr_status make_layer(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    making *k = ctx;
    tr_status st = TR_OK;
    static const char *const stored[] = {"stored=int8", "stored=int8_tensor"};
    const bool chosen = k->chosen[l->index];
    const int which = chosen ? 0 : added(k->m, k->chosen, l), inputs = (int)k->m->ninputs;
    const bool rounded = chosen || (which >= 0 && !k->ranges[l->in[which]].dynamic);
    int now[TR_MAX_IN];
    for (int v = 0; l->index == 0 && v < inputs; v++)
        if (k->wanted[v]) TR_TRY(round_value(k, mk, v, v));
    const bool all =
        !chosen && l->nin > 0 && !k->ranges[l->in[0]].dynamic && carries(k->m, k->wanted, l);
    for (int i = 0; i < l->nin; i++)
        now[i] = all || (i == which && rounded) ? k->steps[l->in[i]] : in[i];
    const tr_layer_changes changes = {.options = &stored[k->per_tensor], .noptions = chosen};
    TR_TRY(tr_maker_copy(mk, l, &changes, l->nin, now, value));
    if (k->wanted[inputs + l->index]) st = round_value(k, mk, inputs + l->index, *value);
out:
    return st;
}

static tr_status round_weight(const tr_network *made, const char *layer, double *sqnr)
{
    tr_status st = TR_OK;
    const tr_param *p = tr_network_row(made, layer, "weight");
    float *w = made->params + p->offset, *was = NULL;
    double energy = 0, error = 0;
    TR_TRY(tr_values_finite(layer, "weight", w, p->count));
    for (size_t i = 0; i < p->count; i++) energy += (double)w[i] * (double)w[i];
    TR_HAVE(was = tr_alloc(TR_MEM_OTHER, p->count, sizeof *was));
    memcpy(was, w, p->count * sizeof *was);
    tr_param_quantize(p, w, made->states + made->model->states[p->scale].offset, NULL);
    for (size_t i = 0; i < p->count; i++)
        error += ((double)was[i] - (double)w[i]) * ((double)was[i] - (double)w[i]);
    *sqnr = error > 0 ? 10 * log10(energy / error) : INFINITY;
out:
    tr_free(was);
    return st;
}

tr_status tr_quantize_static(const tr_network *n, const bool *chosen, const tr_value_range *ranges,
                             bool per_tensor, double *sqnr, tr_network **out)
{
    tr_status st = TR_OK;
    const tr_model *m = n->model;
    const size_t values = m->ninputs + m->nlayers;
    making k = {.m = m, .chosen = chosen, .ranges = ranges, .per_tensor = per_tensor};
    tr_network *made = NULL;
    TR_HAVE(k.steps = tr_alloc(TR_MEM_OTHER, values, sizeof *k.steps));
    TR_HAVE(k.wanted = tr_alloc(TR_MEM_OTHER, values, sizeof *k.wanted));
    tr_quantize_places(n, chosen, k.wanted);
    for (size_t v = 0; v < values; v++)
        if (ranges[v].dynamic) k.wanted[v] = false;
    for (size_t i = 0; i < m->nlayers; i++)
        if (chosen[i]) k.wanted[m->layers[i].in[0]] = true;
    TR_TRY(tr_network_edit(n, make_layer, &k, &made));
    for (size_t i = 0; i < m->nlayers; i++) {
        double ignored;
        if (chosen[i]) TR_TRY(round_weight(made, m->layers[i].name, sqnr ? &sqnr[i] : &ignored));
    }
    *out = made;
    made = NULL;
out:
    tr_network_close(made);
    tr_free(k.steps);
    tr_free(k.wanted);
    return st;
}
