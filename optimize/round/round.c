/* Which widths go together, and how wide they become. Values (the model's inputs, then the layers'
 * outputs) are joined where their widths must stay in proportion (union-find):
 *
 *     linear a --> layernorm --+
 *     linear b ----------------+--> add --> linear qkv --> attention --> linear c
 *
 * a, layernorm, b and add are one class, qkv (3 heads D wide) and attention (heads D) another, c a
 * third. What is joined from others side by side (concat, flatten) follows from these, unless
 * something else asks for its width: then they stay. */
#include "optimize/round/round.h"

#include <string.h>

#include "runtime/graph/facts.h"

typedef struct {
    const tr_model *m;
    size_t nvalues;
    int *up;         /* [nvalues] union-find; the root is the least */
    int64_t *size;   /* [nvalues] */
    int64_t *factor; /* [nvalues] its width is a multiple of so many */
    bool *makes;     /* [nvalues] an option of its layer says how wide it is */
    bool *follows;   /* [nvalues] it is what others make side by side */
    bool *locked;    /* [nvalues] */
    /* By root: what all widths of its class are multiples of, and what that becomes. */
    int64_t *unit, *next;
} widths;

static int root(const widths *w, int v)
{
    while (w->up[v] != v) v = w->up[v] = w->up[w->up[v]];
    return v;
}

static void join(const widths *w, int a, int b)
{
    const int x = root(w, a), y = root(w, b);
    w->up[x > y ? x : y] = x < y ? x : y;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

static int64_t lcm(int64_t a, int64_t b)
{
    return a / gcd(a, b) * b;
}

static int value_of(const widths *w, const tr_layer *l)
{
    return (int)w->m->ninputs + l->index;
}

/* ---- What goes together ---------------------------------------------------------------------- */

static void need(const widths *w, int value, int64_t factor)
{
    w->factor[value] = lcm(w->factor[value], factor);
}

static void lock_layer(const widths *w, const tr_layer *l)
{
    w->locked[value_of(w, l)] = true;
    for (int k = 0; k < l->nin; k++) w->locked[l->in[k]] = true;
}

/* Queries, keys and values keep their shares; of heads that are turned values go by pairs. */
static void relate_heads(const widths *w, const tr_layer *l)
{
    tr_heads h;
    tr_layer_heads(l, &h);
    const int inputs = h.kv_heads && !h.packed ? 3 : 1;
    for (int k = 0; k < inputs; k++) join(w, value_of(w, l), l->in[k]);
    need(w, value_of(w, l), h.heads * (h.turned && h.size % 2 == 0 ? 2 : 1));
}

static void relate_product(const widths *w, const tr_layer *l)
{
    tr_product p;
    if (!tr_layer_product(l, &p) || p.groups == 1) return;
    if (tr_shape_channels(&l->inputs[0]) == p.groups)
        join(w, value_of(w, l), l->in[0]); /* one channel a group */
    else {
        need(w, value_of(w, l), p.groups);
        need(w, l->in[0], p.groups);
    }
}

static void relate(const widths *w, const tr_layer *l)
{
    const tr_channels how = tr_layer_channels(l);
    const int64_t factor = tr_layer_keeps_width(l);
    if (tr_layer_width(l)) {
        w->makes[value_of(w, l)] = true;
        relate_product(w, l);
    } else if (how == TR_CHANNELS_HEADS) {
        relate_heads(w, l);
    } else if (how == TR_CHANNELS_JOINED || how == TR_CHANNELS_SPREAD) {
        w->follows[value_of(w, l)] = true;
    } else if (factor > 0) {
        for (int k = 0; k < l->nin; k++) join(w, value_of(w, l), l->in[k]);
        need(w, value_of(w, l), factor);
    } else
        lock_layer(w, l);
}

/* Two layers of one weight (out, in), or (num, dim) of an embedding. */
static void relate_tied(const widths *w, const tr_layer *a, const tr_layer *b)
{
    const bool products[] = {tr_layer_product(a, NULL), tr_layer_product(b, NULL)};
    const int ya = value_of(w, a), yb = value_of(w, b);
    if (products[0] && products[1]) {
        join(w, ya, yb);
        join(w, a->in[0], b->in[0]);
    } else if (!products[0] && !products[1]) {
        join(w, ya, yb);
    } else {
        join(w, products[0] ? a->in[0] : ya, products[1] ? b->in[0] : yb);
        w->locked[products[0] ? ya : yb] = true; /* the rows of the table */
    }
}

static void relate_rows(const widths *w)
{
    for (size_t i = 1; i < w->m->nlayers; i++)
        for (int k = 0; k < w->m->layers[i].nparams; k++) {
            const tr_param *p = &w->m->params[w->m->layers[i].params[k]];
            for (size_t o = 0; p->uses > 1 && o < i; o++)
                if (strcmp(w->m->layers[o].name, p->layer) == 0)
                    relate_tied(w, &w->m->layers[o], &w->m->layers[i]);
        }
}

/* ---- What stays ------------------------------------------------------------------------------ */

/* Whether anything but what stands side by side says how wide the class is. */
static bool asked(const widths *w, int class)
{
    int sources = 0;
    for (int v = 0; v < (int)w->nvalues; v++) {
        if (root(w, v) != class) continue;
        sources += w->follows[v];
        if (w->locked[v] || w->makes[v] || w->factor[v] > 1) return true;
    }
    return sources > 1;
}

static bool is_locked(const widths *w, int class)
{
    for (int v = 0; v < (int)w->nvalues; v++)
        if (w->locked[v] && root(w, v) == class) return true;
    return false;
}

/* Where that stays, so does what it is made of. */
static void lock_sources(const widths *w)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < w->m->nlayers; i++) {
            const tr_layer *l = &w->m->layers[i];
            const int y = value_of(w, l);
            if (!w->follows[y] || !asked(w, root(w, y))) continue;
            w->locked[y] = true;
            for (int k = 0; k < l->nin; k++) {
                changed = changed || !is_locked(w, root(w, l->in[k]));
                w->locked[l->in[k]] = true;
            }
        }
    }
}

/* ---- How wide -------------------------------------------------------------------------------- */

/* The least multiple of `step` from `from` on; 0: it adds more than the rule allows. */
static int64_t raised(const tr_round_rule *rule, int64_t from, int64_t step)
{
    const int64_t to = (from + step - 1) / step * step;
    return (double)(to - from) <= rule->slack * (double)from ? to : 0;
}

/* Of a class, in its units: all widths multiples of `multiple` and of what they must be anyway. */
static int64_t step_of(const widths *w, int class, int64_t multiple)
{
    int64_t step = 1;
    for (int v = 0; v < (int)w->nvalues && step < INT32_MAX; v++) {
        if (root(w, v) != class) continue;
        const int64_t times = w->size[v] / w->unit[class];
        step = lcm(step, multiple / gcd(multiple, times));
        step = lcm(step, w->factor[v] / gcd(w->factor[v], times));
    }
    return step;
}

/* The layer of that name there, if an option says its width there too. */
static const tr_layer *made_there(const tr_model *m, const char *name)
{
    const tr_layer *l = tr_model_layer(m, name);
    return l && tr_layer_width(l) ? l : NULL;
}

/* The unit that a layer of the class has there; 0: none of them is there. */
static int64_t unit_there(const widths *w, int class, const tr_model *there)
{
    for (size_t i = 0; i < w->m->nlayers; i++) {
        const tr_layer *l = &w->m->layers[i];
        const int v = value_of(w, l);
        if (root(w, v) != class || !w->makes[v]) continue;
        const tr_layer *other = made_there(there, l->name);
        const int64_t times = w->size[v] / w->unit[class];
        if (other) return tr_shape_channels(&other->output) / times;
    }
    return 0;
}

static tr_status refuse(const tr_layer *l, const char *option, int64_t from, int64_t to,
                        int64_t there)
{
    return TR_FAIL(
        TR_CONFIG,
        "%s%slayer \"%s\": model.round_dims: %s: %lld becomes %lld, but the run that is to "
        "go on has %lld: leave the layer and the key as they were, or start over "
        "(--force)",
        l->where ? l->where : "", l->where ? ": " : "", l->name, option, (long long)from,
        (long long)to, (long long)there);
}

/* The class's unit there, where an earlier rounding of this model may have made it. */
static tr_status keep(const widths *w, int class, const tr_round_rule *rule,
                      const tr_round_kept *kept)
{
    const int64_t unit = w->unit[class], by_rule = w->next[class];
    const int64_t there = unit_there(w, class, kept->model);
    bool held = there == unit && kept->most > 0;
    for (int64_t n = kept->most; !held && n >= kept->least && n > 0; n /= 2)
        held = raised(rule, unit, step_of(w, class, n)) == there;
    if (held && there > 0) w->next[class] = there;
    for (size_t i = 0; i < w->m->nlayers; i++) {
        const tr_layer *l = &w->m->layers[i];
        const int v = value_of(w, l);
        if (root(w, v) != class || !w->makes[v]) continue;
        const tr_layer *other = made_there(kept->model, l->name);
        const int64_t size = other ? tr_shape_channels(&other->output) : 0;
        if (other && size != w->size[v] / unit * w->next[class])
            return refuse(l, tr_layer_width(l), w->size[v], w->size[v] / unit * by_rule, size);
    }
    return TR_OK;
}

static tr_status choose(const widths *w, int class, const tr_round_rule *rule,
                        const tr_round_kept *kept)
{
    bool makes = false, follows = false;
    int64_t unit = 0, next = 0, largest = 0;
    for (int v = 0; v < (int)w->nvalues; v++) {
        if (root(w, v) != class) continue;
        makes = makes || w->makes[v];
        follows = follows || w->follows[v];
        unit = gcd(w->size[v], unit);
        if (w->size[v] > largest) largest = w->size[v];
    }
    w->unit[class] = w->next[class] = unit;
    if (!makes || follows || is_locked(w, class)) return TR_OK;
    for (int64_t n = rule->most; next == 0 && n >= rule->least && n > 0; n /= 2)
        next = raised(rule, unit, step_of(w, class, n));
    if (next > 0 && largest / unit <= INT32_MAX / next) w->next[class] = next;
    return kept ? keep(w, class, rule, kept) : TR_OK;
}

static int64_t width_of(const widths *w, int value)
{
    const int class = root(w, value);
    return w->size[value] / w->unit[class] * w->next[class];
}

/* What lies between the products of a sketch is as wide as 2 terms * rank, and half of it is
 * learned. 0: more than the rule allows. */
static int64_t raised_rank(const tr_round_rule *rule, const tr_sketch *s, int64_t multiple)
{
    return raised(rule, s->rank, multiple / gcd(multiple, s->terms));
}

/* By the rule, as long as a sketch takes less arithmetic than the dense (out, in). */
static int64_t rank_of(const tr_round_rule *rule, const tr_sketch *s, double out, double in)
{
    for (int64_t n = rule->most; n >= rule->least && n > 0; n /= 2) {
        const int64_t to = raised_rank(rule, s, n);
        if (to > 0 && 2 * (double)s->terms * (double)to * (in + out) < in * out) return to;
    }
    return s->rank;
}

/* *to: the rank there, where an earlier rounding may have made it of this one. */
static tr_status keep_rank(const tr_layer *l, const tr_round_rule *rule, const tr_sketch *s,
                           const tr_round_kept *kept, int64_t *to)
{
    const tr_layer *other = tr_model_layer(kept->model, l->name);
    tr_sketch_facts f;
    if (!other || !tr_layer_sketch(kept->model, other, &f)) return TR_OK;
    const int64_t there = kept->model->params[other->params[0]].sketch.rank;
    bool held = there == *to || (there == s->rank && kept->most > 0);
    for (int64_t n = kept->most; !held && n >= kept->least && n > 0; n /= 2)
        held = raised_rank(rule, s, n) == there;
    if (!held) return refuse(l, "rank", s->rank, *to, there);
    *to = there;
    return TR_OK;
}

/* ---- The model ------------------------------------------------------------------------------- */

enum { CHANGES = 3 };

typedef struct {
    widths *w;
    const tr_round_rule *rule;
    const tr_round_kept *kept;
    tr_round_row *rows;
    size_t nrows;
} rounding;

typedef struct {
    char text[CHANGES][48];
    const char *options[CHANGES];
    size_t count;
} changed;

static void change(changed *c, const char *option, int64_t from, int64_t to)
{
    if (from == to) return;
    snprintf(c->text[c->count], sizeof c->text[0], "%s=%lld", option, (long long)to);
    c->options[c->count] = c->text[c->count];
    c->count++;
}

static void say(rounding *r, const tr_layer *l, const char *option, int64_t from, int64_t to)
{
    if (from == to) return;
    tr_round_row *row = &r->rows[r->nrows++];
    *row = (tr_round_row){.option = option, .from = from, .to = to};
    snprintf(row->layer, sizeof row->layer, "%s", l->name);
}

/* `x`: what it reads in the model that is made. */
static tr_status change_rank(rounding *r, const tr_layer *l, const tr_shape *x, changed *c)
{
    const widths *w = r->w;
    tr_sketch_facts f;
    tr_status st = TR_OK;
    if (!tr_layer_sketch(w->m, l, &f)) return TR_OK;
    const tr_sketch *s = &w->m->params[l->params[0]].sketch;
    const double wider = (double)tr_shape_channels(x) / (double)tr_shape_channels(&l->inputs[0]);
    const double out = tr_layer_width(l) ? (double)width_of(w, value_of(w, l)) : (double)f.out;
    int64_t to = rank_of(r->rule, s, out, (double)f.in * wider);
    if (r->kept) TR_TRY(keep_rank(l, r->rule, s, r->kept, &to));
    change(c, "rank", s->rank, to);
    say(r, l, "rank", s->rank, to);
out:
    return st;
}

static tr_status make_layer(void *ctx, tr_maker *mk, const tr_layer *l, const int *in, int *value)
{
    rounding *r = ctx;
    const widths *w = r->w;
    const char *option = tr_layer_width(l);
    const int y = value_of(w, l);
    const tr_shape x = tr_value_shape(mk, in[0]);
    changed c = {.count = 0};
    tr_product p;
    tr_heads h;
    if (option) {
        change(&c, option, w->size[y], width_of(w, y));
        say(r, l, option, w->size[y], width_of(w, y));
    }
    if (tr_layer_product(l, &p) && p.groups > 1 && p.groups == w->size[l->in[0]])
        change(&c, "groups", p.groups, width_of(w, l->in[0]));
    if (tr_layer_heads(l, &h) && h.turned == h.size)
        change(&c, "dim", h.size, width_of(w, y) / h.heads);
    tr_status st = change_rank(r, l, &x, &c);
    if (st != TR_OK || c.count == 0) return st;
    const tr_layer_changes changes = {.options = c.options, .noptions = c.count};
    return tr_maker_copy(mk, l, &changes, l->nin, in, value);
}

static tr_status find(widths *w, const tr_round_rule *rule, const tr_round_kept *kept)
{
    const tr_model *m = w->m;
    tr_status st = TR_OK;
    for (size_t v = 0; v < w->nvalues; v++) {
        const tr_layer *l = v < m->ninputs ? NULL : &m->layers[v - m->ninputs];
        tr_shape s = {.ndim = l ? 0 : m->inputs[v].ndim, .layout = l ? 0 : m->inputs[v].layout};
        if (!l) memcpy(s.dims, m->inputs[v].dims, sizeof s.dims);
        w->up[v] = (int)v;
        w->size[v] = tr_shape_channels(l ? &l->output : &s);
        w->factor[v] = 1;
        w->locked[v] = !l || v + 1 == w->nvalues;
    }
    for (size_t i = 0; i < m->nlayers; i++) relate(w, &m->layers[i]);
    relate_rows(w);
    lock_sources(w);
    for (int v = 0; v < (int)w->nvalues; v++)
        if (root(w, v) == v) TR_TRY(choose(w, v, rule, kept));
out:
    return st;
}

static tr_status open_widths(const tr_model *m, widths *w)
{
    tr_status st = TR_OK;
    const size_t n = m->ninputs + m->nlayers;
    *w = (widths){.m = m, .nvalues = n};
    w->up = tr_alloc(TR_MEM_OTHER, n, sizeof *w->up);
    w->size = tr_alloc(TR_MEM_OTHER, n, sizeof *w->size);
    w->factor = tr_alloc(TR_MEM_OTHER, n, sizeof *w->factor);
    w->makes = tr_alloc(TR_MEM_OTHER, n, sizeof *w->makes);
    w->follows = tr_alloc(TR_MEM_OTHER, n, sizeof *w->follows);
    w->locked = tr_alloc(TR_MEM_OTHER, n, sizeof *w->locked);
    w->unit = tr_alloc(TR_MEM_OTHER, n, sizeof *w->unit);
    w->next = tr_alloc(TR_MEM_OTHER, n, sizeof *w->next);
    TR_HAVE(w->up && w->size && w->factor && w->makes && w->follows && w->locked && w->unit &&
            w->next);
out:
    return st;
}

static void close_widths(widths *w)
{
    tr_free(w->up);
    tr_free(w->size);
    tr_free(w->factor);
    tr_free(w->makes);
    tr_free(w->follows);
    tr_free(w->locked);
    tr_free(w->unit);
    tr_free(w->next);
}

tr_status tr_round_widths(const tr_model *m, const tr_round_rule *rule, const tr_round_kept *kept,
                          tr_model **out, tr_round_row **rows, size_t *nrows)
{
    tr_status st = TR_OK;
    widths w = {0};
    rounding r = {.w = &w, .rule = rule, .kept = kept};
    tr_model *made = NULL;
    *out = NULL;
    TR_TRY(open_widths(m, &w));
    TR_TRY(find(&w, rule, kept));
    r.rows = tr_alloc(TR_MEM_OTHER, 2 * m->nlayers + 1, sizeof *r.rows);
    TR_HAVE(r.rows);
    TR_TRY(tr_model_copy(m, make_layer, &r, 0, &made));
    *rows = r.rows;
    *nrows = r.nrows;
    r.rows = NULL;
    if (*nrows > 0) {
        *out = made;
        made = NULL;
    }
out:
    tr_model_close(made);
    tr_free(r.rows);
    close_widths(&w);
    return st;
}
