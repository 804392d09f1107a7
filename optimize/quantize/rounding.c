/* AdaRound of outputs, some side by side: their errors are rows of a matrix, so that H, which no
 * cache near a core holds, is read once for all of them, and H d is a product of matrices. A sum of
 * it goes the same way whichever rows are beside, and nothing else of an output depends on another:
 * so bits do not depend on how outputs are dealt to threads.
 *
 * Most of what a step computes for a weight (a logistic function, a power) is needed only where h
 * is neither 0 nor 1, which becomes rarer as beta falls. */
#include "optimize/quantize/adaround.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { STEPS = 127, WARM = 100, ITERATIONS = 500, SIDE_BY_SIDE = 16, ASK_EVERY = 16 };
#define RATE     0.02f
#define STRENGTH 1.0f
#define WIDE     1.2f
#define LOW      (-0.1f)
/* Of the variable, beyond which h is 0 or 1: log((1 - LOW) / (WIDE - 1 + LOW)). */
#define EDGE 2.3978953f

typedef struct {
    const tr_rounding *r;
    size_t each, count; /* outputs side by side; of all of this rank */
    _Atomic size_t next;
    _Atomic bool stopped;
} shared;

/* Outputs side by side, of a thread. Rows of all arrays are a pitch apart. */
typedef struct {
    shared *s;
    bool asks;
    pthread_t thread;
    bool started;
    float *room;               /* the arrays below, in one */
    float *low;                /* floor(w / scale) */
    float *v, *first, *second; /* the variable, Adam's moments */
    float *h, *slope, *pull;   /* h(v), its derivative, that of what pulls it to 0 or 1 */
    float *d, *g;              /* errors, H d */
    size_t n, which[SIDE_BY_SIDE];
    double nearest[SIDE_BY_SIDE]; /* the error of rounding to nearest */
} block;
enum { ARRAYS = 9 };

static size_t pitch_of(const block *b)
{
    return tr_reading_pitch(b->s->r->K);
}

/* The step that a weight becomes; `up`: in [0, 1], of floor. */
static float step_of(float low, float up)
{
    const float step = low + up;
    return step > STEPS ? STEPS : step < -STEPS ? -STEPS : step;
}

/* g = H d of all. */
static void multiply(block *b)
{
    const tr_rounding *r = b->s->r;
    const size_t pitch = pitch_of(b);
    tr_cpu_multiply(b->n, pitch, r->K, b->d, pitch, r->H, pitch, b->g, pitch);
}

/* d' H d of output o. */
static double spread(const block *b, size_t o)
{
    const float *d = b->d + o * pitch_of(b), *g = b->g + o * pitch_of(b);
    double sum = 0;
    for (size_t i = 0; i < b->s->r->K; i++) sum += (double)d[i] * (double)g[i];
    return sum;
}

/* ---- Descending ------------------------------------------------------------------------------ */

/* h of v, and, of those that are neither 0 nor 1, what the rest needs. */
static void look_at(block *b, size_t o, bool warm, float beta)
{
    const size_t K = b->s->r->K, at = o * pitch_of(b);
    const float much = STRENGTH / (float)K * 2 * beta;
    float *h = b->h + at, *slope = b->slope + at, *pull = b->pull + at;
    for (size_t i = 0; i < K; i++) {
        const float v = b->v[at + i];
        slope[i] = pull[i] = 0;
        h[i] = v > 0;
        if (!(fabsf(v) < EDGE)) continue;
        const float sigmoid = 1 / (1 + expf(-v)), between = 2 * (WIDE * sigmoid + LOW) - 1;
        h[i] = WIDE * sigmoid + LOW;
        slope[i] = WIDE * sigmoid * (1 - sigmoid);
        if (!warm) pull[i] = much * copysignf(powf(fabsf(between), beta - 1), between);
    }
}

static void find_errors(block *b, size_t o)
{
    const tr_rounding *r = b->s->r;
    const size_t K = r->K, at = o * pitch_of(b);
    const float *w = r->w + b->which[o] * r->row, scale = r->scale[b->which[o]];
    for (size_t i = 0; i < K; i++)
        b->d[at + i] = step_of(b->low[at + i], b->h[at + i]) * scale - w[i];
}

/* c1, c2: Adam's corrections. */
static void move(block *b, size_t o, float c1, float c2)
{
    const tr_rounding *r = b->s->r;
    const size_t K = r->K, at = o * pitch_of(b);
    const double nearest = b->nearest[o]; /* 0: whole steps, of which there is nothing to learn */
    const float much = nearest > 0 ? (float)(2 * (double)r->scale[b->which[o]] / nearest) : 0;
    float *restrict v = b->v + at, *restrict first = b->first + at,
                    *restrict second = b->second + at;
    const float *restrict slope = b->slope + at, *restrict pull = b->pull + at,
                          *restrict sum = b->g + at;
    for (size_t i = 0; i < K; i++) {
        const float g = (sum[i] * much - pull[i]) * slope[i];
        first[i] += 0.1f * (g - first[i]);
        second[i] += 0.001f * (g * g - second[i]);
        v[i] -= RATE * (first[i] * c1) / (sqrtf(second[i] * c2) + 1e-12f);
    }
}

static void descend(block *b, int t)
{
    const bool warm = t < WARM;
    const double along = warm ? 0 : (double)(t - WARM) / (ITERATIONS - WARM),
                 beta = 2 + 18 * (0.5 + 0.5 * cos(3.14159265358979323846 * along));
    const double c1 = 1 / (1 - pow(0.9, t + 1)), c2 = 1 / (1 - pow(0.999, t + 1));
    for (size_t o = 0; o < b->n; o++) {
        look_at(b, o, warm, (float)beta);
        find_errors(b, o);
    }
    multiply(b);
    for (size_t o = 0; o < b->n; o++) move(b, o, (float)c1, (float)c2);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static bool stopped(block *b)
{
    const tr_rounding *r = b->s->r;
    if (atomic_load(&b->s->stopped)) return true;
    if (!b->asks || !r->stop || !r->stop(r->stop_ctx)) return false;
    atomic_store(&b->s->stopped, true);
    return true;
}

/* The next ones; false: none is left. */
static bool take_outputs(block *b)
{
    const tr_rounding *r = b->s->r;
    const size_t first = atomic_fetch_add(&b->s->next, b->s->each);
    for (b->n = 0; b->n < b->s->each && first + b->n < b->s->count; b->n++)
        b->which[b->n] = r->first + (first + b->n) * r->stride;
    return b->n > 0;
}

/* From rounding to nearest, whose errors are found. */
static void begin(block *b, size_t o)
{
    const tr_rounding *r = b->s->r;
    const size_t K = r->K, at = o * pitch_of(b);
    const float *w = r->w + b->which[o] * r->row, *rounded = r->rounded + b->which[o] * r->row;
    const double scale = (double)r->scale[b->which[o]];
    for (size_t i = 0; i < K; i++) {
        const double steps = (double)w[i] / scale, up = steps - floor(steps);
        b->low[at + i] = (float)floor(steps);
        b->v[at + i] = (float)-log((double)WIDE / (up - (double)LOW) - 1);
        b->first[at + i] = b->second[at + i] = 0;
        b->d[at + i] = rounded[i] - w[i];
    }
}

/* What was learned, where it is better. */
static void end(block *b)
{
    const tr_rounding *r = b->s->r;
    const size_t K = r->K, pitch = pitch_of(b);
    for (size_t o = 0; o < b->n; o++) {
        for (size_t i = 0; i < K; i++) b->h[o * pitch + i] = b->v[o * pitch + i] >= 0;
        find_errors(b, o);
    }
    multiply(b);
    for (size_t o = 0; o < b->n; o++) {
        float *rounded = r->rounded + b->which[o] * r->row;
        const float scale = r->scale[b->which[o]], *low = b->low + o * pitch, *h = b->h + o * pitch;
        if (!(spread(b, o) < b->nearest[o])) continue;
        for (size_t i = 0; i < K; i++) rounded[i] = step_of(low[i], h[i]) * scale;
    }
}

static void round_block(block *b)
{
    for (size_t o = 0; o < b->n; o++) begin(b, o);
    multiply(b);
    for (size_t o = 0; o < b->n; o++) b->nearest[o] = spread(b, o);
    for (int t = 0; t < ITERATIONS; t++) {
        if (t % ASK_EVERY == 0 && stopped(b)) return;
        descend(b, t);
    }
    end(b);
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *work(void *arg)
{
    block *b = arg;
    while (!stopped(b) && take_outputs(b)) round_block(b);
    return NULL;
}

static tr_status open_block(shared *s, block *b)
{
    const size_t n = s->each * tr_reading_pitch(s->r->K);
    float **arrays[ARRAYS] = {&b->low,   &b->v,    &b->first, &b->second, &b->h,
                              &b->slope, &b->pull, &b->d,     &b->g};
    b->s = s;
    b->room = tr_alloc(TR_MEM_OTHER, ARRAYS * n, sizeof *b->room); /* zeros: of columns beyond K */
    if (!b->room) return tr_last_status();
    for (size_t k = 0; k < ARRAYS; k++) *arrays[k] = b->room + k * n;
    return TR_OK;
}

tr_status tr_round_outputs(const tr_rounding *r)
{
    tr_status st = TR_OK;
    const size_t count =
        r->outputs > r->first ? (r->outputs - r->first + r->stride - 1) / r->stride : 0;
    const size_t threads = (size_t)(r->threads > 1 ? r->threads : 1),
                 share = (count + threads - 1) / threads;
    shared s = {.r = r, .count = count, .each = share < SIDE_BY_SIDE ? share : SIDE_BY_SIDE};
    block *b = NULL;
    if (count == 0) return TR_OK;
    TR_HAVE(b = tr_alloc(TR_MEM_OTHER, threads, sizeof *b));
    for (size_t i = 0; i < threads; i++) TR_TRY(open_block(&s, &b[i]));
    for (size_t i = 1; i < threads; i++)
        b[i].started = pthread_create(&b[i].thread, NULL, work, &b[i]) == 0;
    b[0].asks = true;
    work(&b[0]);
    for (size_t i = 1; i < threads; i++)
        if (b[i].started) pthread_join(b[i].thread, NULL);
    TR_NEED(!s.stopped, TR_STOPPED,
            "stopped while roundings were learned, which begins again when the stage does");
out:
    for (size_t i = 0; b && i < threads; i++) tr_free(b[i].room);
    tr_free(b);
    return st;
}
