/* Prompts, and what a model makes of them. All but the last id of each prompt fills what layers
 * hold; from then on each step puts one id a sequence in and chooses the next. Ids that may be the
 * beginning of a stop are told when it is known that they are not.
 *
 * What decides is drawn by Philox with the seed, a hash of the prompt, which of equal prompts it
 * is, and the place: so a continuation does not depend on what is generated beside it. */
#include "optimize/sample/sample.h"

#include <string.h>

typedef struct {
    size_t prompt;
    uint64_t key;   /* a hash of the prompt */
    uint32_t equal; /* prompts like it before it */
    int32_t next;   /* to be put in */
    int64_t made, place;
    size_t kept; /* at the end of `tail`, not told yet */
    bool live;
} sequence;

typedef struct {
    tr_decoder *d;
    const tr_generation *g;
    tr_generated *out;
    size_t sequences, longest; /* longest stop */
    int64_t rows;
    size_t choices; /* ids that are chosen from */
    sequence *s;    /* [sequences] */
    int32_t *tails; /* [sequences][longest]: ids that are kept */
    int32_t *next;  /* [sequences] */
    bool *live;     /* [sequences] */
    const int32_t **ids;
    size_t *counts;
    tr_candidate *room;   /* [choices] */
    const int32_t **from; /* [sequences]: `ids` that are not put in yet */
    size_t *some;         /* [sequences]: of these, that go in at once */
    bool untold;          /* who is told failed: nothing more is */
    bool bad;             /* a row was not finite, as `why` says */
    tr_error why;
} work;

/* FNV-1a, of 32 bits at a time. */
static uint64_t hash(const tr_ids *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < p->count; i++) h = (h ^ (uint32_t)p->ids[i]) * 0x100000001b3u;
    return h;
}

static bool same(const tr_ids *a, const tr_ids *b)
{
    return a->count == b->count && memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0;
}

static double uniform_of(const work *w, const sequence *s)
{
    const tr_philox r =
        tr_philox_at(w->g->seed, TR_RNG_SAMPLE, s->equal, s->key, (uint32_t)s->place);
    return ((double)(r.v[0] >> 5) * 67108864.0 + (double)(r.v[1] >> 6)) * 0x1p-53;
}

/* ---- What is told ---------------------------------------------------------------------------- */

static tr_status finish(work *w, sequence *s, tr_end why)
{
    tr_status st = TR_OK;
    s->live = false;
    if (w->g->end) st = w->g->end(w->g->ctx, s->prompt, why);
    w->untold |= st != TR_OK;
    return st;
}

static tr_status tell_one(work *w, const sequence *s, int32_t id)
{
    const tr_status st = w->g->emit(w->g->ctx, s->prompt, id);
    w->untold |= st != TR_OK;
    return st;
}

/* The first `count` of those that are kept. */
static tr_status tell(work *w, sequence *s, size_t count)
{
    int32_t *tail = w->tails + (size_t)(s - w->s) * w->longest;
    tr_status st = TR_OK;
    for (size_t i = 0; i < count; i++) TR_TRY(tell_one(w, s, tail[i]));
    memmove(tail, tail + count, (s->kept - count) * sizeof *tail);
    s->kept -= count;
out:
    return st;
}

/* It was interrupted or failed: no stop will come that what is kept could begin. The error
 * stays. */
static void tell_kept(work *w)
{
    const tr_error why = *tr_last_error();
    for (size_t i = 0; i < w->sequences && !w->untold; i++)
        if (w->s[i].live) (void)tell(w, &w->s[i], w->s[i].kept);
    tr_set_error(&why);
}

/* How many of the last ids kept may be the beginning of a stop; *whole: of the longest stop that is
 * there, how many. */
static size_t may_stop(const work *w, const sequence *s, size_t *whole)
{
    const int32_t *tail = w->tails + (size_t)(s - w->s) * w->longest;
    size_t most = 0;
    *whole = 0;
    for (size_t k = 0; k < w->g->nstops; k++) {
        const tr_ids *stop = &w->g->stops[k];
        for (size_t n = s->kept < stop->count ? s->kept : stop->count; n > 0; n--) {
            if (memcmp(tail + s->kept - n, stop->ids, n * sizeof *tail) != 0) continue;
            if (n == stop->count && n > *whole) *whole = n;
            if (n > most) most = n;
            break;
        }
    }
    return most;
}

/* The id that comes next. */
static tr_status take(work *w, sequence *s, int32_t id)
{
    size_t whole;
    tr_status st = TR_OK;
    w->out->ids++;
    s->next = id;
    s->made++;
    s->place++;
    if (w->longest == 0) {
        TR_TRY(tell_one(w, s, id));
    } else {
        w->tails[(size_t)(s - w->s) * w->longest + s->kept++] = id;
        const size_t keep = may_stop(w, s, &whole);
        TR_TRY(tell(w, s, s->kept - (whole > 0 ? whole : keep)));
        if (whole > 0) return finish(w, s, TR_END_STOP);
    }
    if (s->made < w->g->tokens && s->place <= w->rows) return TR_OK;
    TR_TRY(tell(w, s, s->kept));
    st = finish(w, s, s->made < w->g->tokens ? TR_END_POSITIONS : TR_END_TOKENS);
out:
    return st;
}

/* It alone ends: the others are nothing the worse for it. */
static tr_status end_bad(work *w, sequence *s)
{
    tr_status st = TR_OK;
    if (!w->bad) {
        (void)TR_FAIL(TR_NONFINITE,
                      "prompt %zu: what the model gives behind %lld ids is not finite",
                      s->prompt + 1, (long long)s->place);
        w->why = *tr_last_error();
    }
    w->bad = true;
    TR_TRY(tell(w, s, s->kept));
    st = finish(w, s, TR_END_NONFINITE);
out:
    return st;
}

/* ---- A group of prompts ---------------------------------------------------------------------- */

static void begin(work *w, size_t first)
{
    for (size_t i = 0; i < w->sequences; i++) {
        sequence *s = &w->s[i];
        *s = (sequence){.prompt = first + i, .live = first + i < w->g->nprompts};
        w->counts[i] = 0;
        if (!s->live) continue;
        const tr_ids *p = &w->g->prompts[s->prompt];
        s->key = hash(p);
        for (size_t k = 0; k < s->prompt; k++) s->equal += same(&w->g->prompts[k], p);
        s->next = p->ids[p->count - 1];
        s->place = (int64_t)p->count;
        w->ids[i] = p->ids;
        w->counts[i] = p->count - 1;
    }
}

static tr_status step(work *w, bool *any)
{
    const size_t vocabulary = (size_t)tr_decoder_vocabulary(w->d);
    const float *logits;
    tr_status st = TR_OK;
    for (size_t i = 0; i < w->sequences; i++) {
        w->live[i] = w->s[i].live;
        w->next[i] = w->s[i].next;
    }
    TR_TRY(tr_decoder_step(w->d, w->next, w->live, &logits));
    *any = false;
    for (size_t i = 0; i < w->sequences; i++) {
        sequence *s = &w->s[i];
        if (!s->live) continue;
        const int32_t id = tr_choose(&w->g->choice, logits + i * vocabulary, w->choices,
                                     uniform_of(w, s), w->room);
        if (id >= 0)
            TR_TRY(take(w, s, id));
        else
            TR_TRY(end_bad(w, s));
        *any |= s->live;
    }
out:
    return st;
}

static tr_status ask(const work *w)
{
    if (!w->g->stop || !w->g->stop(w->g->ctx)) return TR_OK;
    return TR_FAIL(TR_STOPPED, "stopped on request");
}

/* The prompts go in by chunks, between which it is asked whether to stop. */
static tr_status feed(work *w)
{
    const size_t chunk = (size_t)tr_decoder_chunk(w->d);
    tr_status st = TR_OK;
    for (size_t from = 0;; from += chunk) {
        size_t all = 0;
        for (size_t i = 0; i < w->sequences; i++) {
            const size_t left = w->counts[i] > from ? w->counts[i] - from : 0;
            w->some[i] = left < chunk ? left : chunk;
            w->from[i] = left > 0 ? w->ids[i] + from : NULL;
            all += left > 0 ? w->some[i] : 0;
        }
        if (all == 0) break;
        TR_TRY(ask(w));
        TR_TRY(tr_decoder_feed(w->d, w->from, w->some));
        w->out->prompt_ids += all;
    }
    for (size_t i = 0; i < w->sequences; i++) w->out->prompt_ids += w->s[i].live;
out:
    return st;
}

static tr_status run_group(work *w, size_t first)
{
    tr_status st = TR_OK;
    const double began = tr_now();
    double fed = began;
    begin(w, first);
    TR_TRY(tr_decoder_reset(w->d));
    st = feed(w);
    fed = tr_now();
    w->out->prompt_seconds += fed - began;
    for (bool any = true; any && st == TR_OK;) {
        TR_TRY(ask(w));
        TR_TRY(step(w, &any));
    }
out:
    w->out->seconds += tr_now() - fed;
    if (st != TR_OK) tell_kept(w);
    return st;
}

static tr_status make_room(work *w)
{
    const size_t n = w->sequences;
    tr_status st = TR_OK;
    for (size_t k = 0; k < w->g->nstops; k++)
        if (w->g->stops[k].count > w->longest) w->longest = w->g->stops[k].count;
    TR_HAVE(w->s = tr_alloc(TR_MEM_OTHER, n, sizeof *w->s));
    TR_HAVE(w->tails = tr_alloc(TR_MEM_OTHER, n * (w->longest + 1), sizeof *w->tails));
    TR_HAVE(w->next = tr_alloc(TR_MEM_OTHER, n, sizeof *w->next));
    TR_HAVE(w->live = tr_alloc(TR_MEM_OTHER, n, sizeof *w->live));
    TR_HAVE(w->ids = tr_alloc(TR_MEM_OTHER, n, sizeof *w->ids));
    TR_HAVE(w->counts = tr_alloc(TR_MEM_OTHER, n, sizeof *w->counts));
    TR_HAVE(w->from = tr_alloc(TR_MEM_OTHER, n, sizeof *w->from));
    TR_HAVE(w->some = tr_alloc(TR_MEM_OTHER, n, sizeof *w->some));
    TR_HAVE(w->room = tr_alloc(TR_MEM_OTHER, w->choices, sizeof *w->room));
out:
    return st;
}

tr_status tr_generate(tr_decoder *d, const tr_generation *g, tr_generated *out)
{
    tr_status st = TR_OK;
    work w = {.d = d,
              .g = g,
              .out = out,
              .sequences = (size_t)tr_decoder_sequences(d),
              .rows = tr_decoder_rows(d)};
    *out = (tr_generated){0};
    w.choices = (size_t)tr_decoder_vocabulary(d);
    if (g->below > 0 && (size_t)g->below < w.choices) w.choices = (size_t)g->below;
    TR_TRY(make_room(&w));
    for (size_t first = 0; first < g->nprompts; first += w.sequences) TR_TRY(run_group(&w, first));
    if (w.bad) {
        tr_set_error(&w.why);
        st = TR_NONFINITE;
    }
out:
    tr_free(w.s);
    tr_free(w.tails);
    tr_free(w.next);
    tr_free(w.live);
    tr_free(w.ids);
    tr_free(w.counts);
    tr_free(w.from);
    tr_free(w.some);
    tr_free(w.room);
    return st;
}
