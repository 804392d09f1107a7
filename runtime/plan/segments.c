/* The forward ops are a list; between two layers only what later ops read crosses (a residual's
 * shortcut, too). Where little crosses it can be cut. A stretch between cut points either keeps
 * what its backward ops read, or becomes a segment with its neighbours: then only what others read
 * stays, and the rest is made again (Chen et al. 2016; Beaumont et al. 2021, "Efficient Combination
 * of Rematerialization and Offloading", for the general case).
 *
 *     bytes while a backward op of a segment runs = kept by all before it + its own, kept or made
 *     again, up to this op
 *                                                   + gradients
 *
 * for what was made behind it is free by then. So one walk from front to back with the bytes kept
 * so far decides: best[cut][bytes] = the least cost. Labels of a cut hold exact bytes, one for each
 * of LABELS ranges of them. O(cuts^2 * LABELS); of more than MOST cut points those count that the
 * fewest bytes cross. */
#include "runtime/plan/segments.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 192, LABELS = 128, HALVINGS = 14 };

/* Stretches i..j-1 as one segment. */
typedef struct {
    double cost, kept, inner, peak; /* inner: bytes that are made again */
} part;

typedef struct {
    double kept, cost;
    int from, label; /* the cut and label before; from -1: none */
    bool used, segment;
} label;

struct tr_cuts {
    const tr_graph *g;
    int loss;      /* ops before it are forward ops */
    int n;         /* stretches */
    int *at;       /* [n + 1] where they begin: ops */
    double *alone; /* [n] what a stretch keeps where it is not recomputed */
    double *work;  /* [n] the most beside what is kept, while ops of it run */
    part *parts;   /* [n * n], i and j - 1 */
    label *labels; /* [(n + 1) * LABELS], scratch */
    double end;    /* bytes beside what is kept while the losses run */
    double most, least;
};

/* What is looked up while it is made. */
typedef struct {
    const tr_plan *p;
    const tr_graph *g;
    const double *cost;
    int loss;
    int *owner,
        *last;     /* by tensor: the forward op that makes it, -1; the last of them that reads it */
    bool *back;    /* by tensor: backward ops read it */
    double *bytes; /* by tensor: of its group's root */
    double *beside; /* by op: bytes live there that are not kept for the backward pass */
    double *work;   /* by forward op: the most of that at its layer's backward ops */
    int *seen;      /* by root: the last count that it was in */
    bool *need;     /* by tensor */
    int count;
} survey;

static void close_survey(survey *s)
{
    void *all[] = {s->owner, s->last, s->back, s->bytes, s->beside, s->work, s->seen, s->need};
    for (size_t i = 0; i < TR_COUNT(all); i++) tr_free(all[i]);
}

static void find_uses(survey *s)
{
    const tr_graph *g = s->g;
    for (size_t t = 0; t < g->ntensors; t++) {
        s->owner[t] = s->last[t] = -1;
        s->bytes[t] = (double)tr_plan_life_at(s->p, (size_t)tr_root(g, (int)t)).nbytes;
    }
    for (int i = 0; i < (int)g->nops; i++) {
        const tr_op *op = &g->ops[i];
        for (int k = 0; k < op->nin; k++) {
            if (op->in[k] < 0) continue;
            if (op->phase == TR_PHASE_BACKWARD)
                s->back[op->in[k]] = true;
            else
                s->last[op->in[k]] = i; /* a loss's reads lie behind all cuts */
        }
        for (int k = 0; k < op->nout && i < s->loss; k++)
            if (op->out[k] >= 0) s->owner[op->out[k]] = i;
    }
}

/* Bytes of the arena at each op, but for what the forward pass keeps. */
static tr_status find_beside(survey *s)
{
    const size_t nops = s->g->nops;
    double *change = tr_alloc(TR_MEM_OTHER, nops + 1, sizeof *change), now = 0;
    if (!change) return tr_last_status();
    for (size_t i = 0; i < tr_plan_lives(s->p); i++) {
        const tr_plan_life l = tr_plan_life_at(s->p, i);
        if (l.nbytes == 0 || (l.first < s->loss && l.last > s->loss)) continue;
        const size_t last = l.last >= (int)nops ? nops - 1 : (size_t)(l.last < 0 ? 0 : l.last);
        change[l.first < 0 ? 0 : l.first] += (double)l.nbytes;
        change[last + 1] -= (double)l.nbytes;
    }
    for (size_t i = 0; i < nops; i++) s->beside[i] = now += change[i];
    tr_free(change);
    return TR_OK;
}

static tr_status find_work(survey *s)
{
    const tr_graph *g = s->g;
    double *most = tr_alloc(TR_MEM_OTHER, g->model->nlayers + 1, sizeof *most);
    if (!most) return tr_last_status();
    for (size_t i = (size_t)s->loss; i < g->nops; i++) {
        double *m = &most[g->ops[i].layer_index];
        if (s->beside[i] > *m) *m = s->beside[i];
    }
    for (int i = 0; i < s->loss; i++) s->work[i] = most[g->ops[i].layer_index];
    tr_free(most);
    return TR_OK;
}

static double once(survey *s, int tensor)
{
    const int root = tr_root(s->g, tensor);
    if (s->seen[root] == s->count) return 0;
    s->seen[root] = s->count;
    return s->bytes[tensor];
}

/* ---- Cut points ------------------------------------------------------------------------------ */

typedef struct {
    int at;
    double bytes;
} place;

static int by_bytes(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : x->at - y->at;
}

static int by_at(const void *a, const void *b)
{
    return ((const place *)a)->at - ((const place *)b)->at;
}

static double crossing(survey *s, int at)
{
    double sum = 0;
    s->count++;
    for (size_t t = 0; t < s->g->ntensors; t++)
        if (s->owner[t] >= 0 && s->owner[t] < at && s->last[t] >= at) sum += once(s, (int)t);
    return sum;
}

/* Layers whose ops stand among others' are not cut apart. */
static tr_status find_cuts(survey *s, tr_cuts *c)
{
    tr_status st = TR_OK;
    const tr_op *ops = s->g->ops;
    int n = 0, before = -1;
    place *places = tr_alloc(TR_MEM_OTHER, (size_t)s->loss + 1, sizeof *places);
    int *after = tr_alloc(TR_MEM_OTHER, (size_t)s->loss + 1, sizeof *after);
    TR_HAVE(places && after);
    after[s->loss] = (int)s->g->model->nlayers + 1;
    for (int i = s->loss; i-- > 0;)
        after[i] = ops[i].layer_index < after[i + 1] ? ops[i].layer_index : after[i + 1];
    for (int i = 0; i < s->loss; i++) {
        if (i > 0 && before < after[i]) places[n++] = (place){i, crossing(s, i)};
        if (ops[i].layer_index > before) before = ops[i].layer_index;
    }
    qsort(places, (size_t)n, sizeof *places, by_bytes);
    if (n > MOST) n = MOST;
    qsort(places, (size_t)n, sizeof *places, by_at);
    TR_HAVE(c->at = tr_alloc(TR_MEM_OTHER, (size_t)n + 2, sizeof *c->at));
    for (int i = 0; i < n; i++) c->at[i + 1] = places[i].at;
    c->n = s->loss > 0 ? n + 1 : 0;
    c->at[c->n] = s->loss;
out:
    tr_free(places);
    tr_free(after);
    return st;
}

/* ---- What stretches take --------------------------------------------------------------------- */

static void measure_alone(survey *s, tr_cuts *c, int i)
{
    s->count++;
    for (int o = c->at[i]; o < c->at[i + 1]; o++)
        for (int k = 0; k < s->g->ops[o].nout; k++) {
            const int t = s->g->ops[o].out[k];
            if (t >= 0 && s->back[t]) c->alone[i] += once(s, t);
        }
}

static bool is_kept(const survey *s, int t, int end)
{
    return s->last[t] >= end || tr_op_made_once(&s->g->ops[s->owner[t]]);
}

/* While the op runs for the first time: what is kept so far, its own operands, its scratch. */
static double forward_peak(survey *s, int o, int begin, int end, double kept)
{
    const tr_op *op = &s->g->ops[o];
    double own = 0;
    for (int k = 0; k < op->nin + op->nout; k++) {
        const int t = k < op->nin ? op->in[k] : op->out[k - op->nin];
        if (t >= 0 && s->owner[t] >= begin && !is_kept(s, t, end)) own += s->bytes[t];
    }
    return kept + own + s->beside[o];
}

/* Backward ops come from the last to the first; when one runs, what was made behind it is free
 * again. What is made again is made from the first to the last. */
static double peak_of(survey *s, int begin, int end)
{
    double all = 0, kept = 0, peak = 0;
    s->count++;
    for (int o = begin; o < end; o++) {
        bool again = false;
        for (int k = 0; k < s->g->ops[o].nout; k++) {
            const int t = s->g->ops[o].out[k];
            if (t < 0) continue;
            const bool stays = is_kept(s, t, end);
            const double nbytes = stays || s->need[t] ? once(s, t) : 0;
            all += nbytes;
            kept += stays ? nbytes : 0;
            again |= !stays && s->need[t];
        }
        const double first = forward_peak(s, o, begin, end, kept);
        const double then = all + (again && s->beside[o] > s->work[o] ? s->beside[o] : s->work[o]);
        if (first > peak) peak = first;
        if (then > peak) peak = then;
    }
    return peak;
}

/* From the last op to the first, as the pass finds what is needed. */
static part measure(survey *s, const tr_cuts *c, int i, int j)
{
    const int begin = c->at[i], end = c->at[j];
    part p = {0};
    s->count++;
    for (int o = begin; o < end; o++)
        for (int k = 0; k < s->g->ops[o].nout; k++) {
            const int t = s->g->ops[o].out[k];
            if (t < 0) continue;
            s->need[t] = s->back[t] && !is_kept(s, t, end);
            if (is_kept(s, t, end)) p.kept += once(s, t);
        }
    for (int o = end; o-- > begin;) {
        const tr_op *op = &s->g->ops[o];
        bool wanted = false;
        for (int k = 0; k < op->nout; k++) {
            if (op->out[k] < 0 || !s->need[op->out[k]]) continue;
            wanted = true;
            p.inner += once(s, op->out[k]);
        }
        if (!wanted) continue;
        p.cost += s->cost[o];
        for (int k = 0; k < op->nin; k++) {
            const int t = op->in[k];
            if (t >= 0 && s->owner[t] >= begin && !is_kept(s, t, end)) s->need[t] = true;
        }
    }
    p.peak = peak_of(s, begin, end);
    return p;
}

static tr_status measure_all(survey *s, tr_cuts *c)
{
    tr_status st = TR_OK;
    const size_t n = (size_t)c->n;
    c->alone = tr_alloc(TR_MEM_OTHER, n, sizeof *c->alone);
    c->work = tr_alloc(TR_MEM_OTHER, n, sizeof *c->work);
    c->parts = tr_alloc(TR_MEM_OTHER, n * n, sizeof *c->parts);
    c->labels = tr_alloc(TR_MEM_OTHER, (n + 1) * LABELS, sizeof *c->labels);
    TR_HAVE(c->alone && c->work && c->parts && c->labels);
    double kept = 0;
    for (int i = 0; i < c->n; i++) {
        measure_alone(s, c, i);
        for (int j = i + 1; j <= c->n; j++)
            c->parts[(size_t)i * n + (size_t)j - 1] = measure(s, c, i, j);
        kept += c->alone[i];
        for (int o = c->at[i]; o < c->at[i + 1]; o++) {
            const double most = s->work[o] > s->beside[o] ? s->work[o] : s->beside[o];
            if (most > c->work[i]) c->work[i] = most;
        }
        const double now = kept + c->work[i];
        if (now > c->most) c->most = now;
    }
    for (size_t i = (size_t)c->loss; i < s->g->nops; i++)
        if (s->g->ops[i].phase == TR_PHASE_LOSS && s->beside[i] > c->end) c->end = s->beside[i];
    if (kept + c->end > c->most) c->most = kept + c->end;
out:
    return st;
}

/* ---- Choosing -------------------------------------------------------------------------------- */

static void relax(const tr_cuts *c, int cut, double most, const label *l)
{
    const double share = most > 0 ? l->kept / most : 0;
    label *to = &c->labels[(size_t)cut * LABELS + (size_t)(share * (LABELS - 1))];
    if (!to->used || l->cost < to->cost || (l->cost <= to->cost && l->kept < to->kept)) *to = *l;
}

static void extend(const tr_cuts *c, int i, int k, double most)
{
    const label l = c->labels[(size_t)i * LABELS + (size_t)k];
    const part *own = &c->parts[(size_t)i * (size_t)c->n];
    label next = {
        .kept = l.kept + c->alone[i], .cost = l.cost, .from = i, .label = k, .used = true};
    if (next.kept + c->work[i] <= most) relax(c, i + 1, most, &next);
    next.segment = true;
    for (int j = i + 1; j <= c->n; j++) {
        const part *p = &own[j - 1];
        if (p->inner <= 0 || l.kept + p->peak > most) continue;
        next.kept = l.kept + p->kept;
        next.cost = l.cost + p->cost;
        relax(c, j, most, &next);
    }
}

/* Which label of the end is the cheapest; -1: none. */
static int search(const tr_cuts *c, double most)
{
    memset(c->labels, 0, ((size_t)c->n + 1) * LABELS * sizeof *c->labels);
    c->labels[0] = (label){.from = -1, .used = true};
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < LABELS; k++)
            if (c->labels[(size_t)i * LABELS + (size_t)k].used) extend(c, i, k, most);
    int best = -1;
    const label *end = &c->labels[(size_t)c->n * LABELS];
    for (int k = 0; k < LABELS; k++)
        if (end[k].used && end[k].kept + c->end <= most &&
            (best < 0 || end[k].cost < end[best].cost))
            best = k;
    return best;
}

bool tr_cuts_choose(const tr_cuts *c, double nbytes, int *segments, double *cost)
{
    const size_t layers = c->g->model->nlayers;
    int number = 0, k = c->n > 0 ? search(c, nbytes) : -1;
    if (k < 0) return false;
    for (size_t l = 0; l <= layers; l++) segments[l] = -1;
    const label *at = &c->labels[(size_t)c->n * LABELS + (size_t)k];
    *cost = at->cost;
    for (int end = c->n; at->from >= 0;
         end = at->from, at = &c->labels[(size_t)at->from * LABELS + (size_t)at->label]) {
        if (!at->segment) continue;
        int first = (int)layers, last = -1;
        for (int o = c->at[at->from]; o < c->at[end]; o++) {
            const int l = c->g->ops[o].layer_index;
            if (l < first) first = l;
            if (l > last) last = l;
        }
        for (int l = first; l <= last; l++) segments[l] = number;
        number++;
    }
    return true;
}

static double find_least(const tr_cuts *c)
{
    double low = 0, high = c->most;
    for (int i = 0; i < HALVINGS; i++) {
        const double middle = (low + high) / 2;
        *(search(c, middle) >= 0 ? &high : &low) = middle;
    }
    return high;
}

double tr_cuts_most(const tr_cuts *c)
{
    return c->most;
}

double tr_cuts_least(const tr_cuts *c)
{
    return c->least;
}

static tr_status open_survey(survey *s)
{
    tr_status st = TR_OK;
    const tr_graph *g = s->g;
    while ((size_t)s->loss < g->nops && g->ops[s->loss].phase != TR_PHASE_LOSS) s->loss++;
    s->owner = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s->owner);
    s->last = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s->last);
    s->back = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s->back);
    s->bytes = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s->bytes);
    s->seen = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s->seen);
    s->need = tr_alloc(TR_MEM_OTHER, g->ntensors, sizeof *s->need);
    s->beside = tr_alloc(TR_MEM_OTHER, g->nops, sizeof *s->beside);
    s->work = tr_alloc(TR_MEM_OTHER, g->nops, sizeof *s->work);
    TR_HAVE(s->owner && s->last && s->back && s->bytes && s->seen && s->need && s->beside &&
            s->work);
    find_uses(s);
    TR_TRY(find_beside(s));
    TR_TRY(find_work(s));
out:
    return st;
}

tr_status tr_cuts_open(const tr_plan *p, const double *cost, tr_cuts **out)
{
    tr_status st = TR_OK;
    survey s = {.p = p, .g = tr_plan_graph(p), .cost = cost};
    tr_cuts *c = TR_NEW(TR_MEM_OTHER, tr_cuts);
    TR_HAVE(c);
    TR_TRY(open_survey(&s));
    c->g = s.g;
    c->loss = s.loss;
    TR_TRY(find_cuts(&s, c));
    TR_TRY(measure_all(&s, c));
    c->least = find_least(c);
out:
    close_survey(&s);
    if (st != TR_OK) {
        tr_cuts_close(c);
        return st;
    }
    *out = c;
    return TR_OK;
}

void tr_cuts_close(tr_cuts *c)
{
    if (!c) return;
    tr_free(c->at);
    tr_free(c->alone);
    tr_free(c->work);
    tr_free(c->parts);
    tr_free(c->labels);
    tr_free(c);
}
