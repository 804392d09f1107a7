/* Weights, gradients and moments of a rank in segments with gaps, and every optimizer, for the
 * tests of updates. */
#ifndef TR_TEST_OPTIMIZER_HARNESS_H
#define TR_TEST_OPTIMIZER_HARNESS_H

#include "tests/unit/cuda/array_harness.h"

#include <math.h>

#include "runtime/config/config.h"

enum { FLAT = 40016, GAP = 9008 }; /* elements; [GAP, GAP + 16) belongs to no segment */

/* Moments and averages hold no gap. */
static const tr_segment segments[] = {
    {{0, 16}, 0, 0.1, 1, false, true, 1, false, {0, 0, 0, 0}},
    {{16, GAP}, 16, 0.0, 0.5, true, false, 0, false, {0, 0, 0, 0}},
    {{GAP + 16, 2 * 8192 + GAP + 16},
     GAP,
     0.1,
     1,
     false,
     true,
     1,
     false,
     {0, 0, 0, 0}}, /* of the first one's row */
    {{2 * 8192 + GAP + 16, FLAT}, 2 * 8192 + GAP, 0.3, 1, true, true, 2, false, {0, 0, 0, 0}},
};
enum { ROWS = 3 };

/* Where an element that belongs to a segment lies in a slot. */
static inline size_t slot_at(size_t i)
{
    return i < GAP ? i : i - 16;
}

static const tr_segment *segment_of(size_t i)
{
    for (size_t k = 0; k < TR_COUNT(segments); k++)
        if (i >= segments[k].range.begin && i < segments[k].range.end) return &segments[k];
    return NULL; /* the gap */
}

/* Weights, gradients and whatever else an optimizer may have. */
typedef struct {
    tr_cuda *cuda;
    array w, g, m, v, ema, a;
    tr_control *control; /* on the device */
    double *norms;
} bench;

static inline bench open_bench(bool graphs)
{
    bench x = {.cuda = open_with(graphs)};
    array *all[] = {&x.w, &x.g, &x.m, &x.v, &x.ema, &x.a};
    for (size_t k = 0; k < TR_COUNT(all); k++) {
        *all[k] = open_array(x.cuda, FLAT);
        for (size_t i = 0; i < FLAT; i++)
            all[k]->host[i] = k < 2 && (k || i % 5) ? (float)uniform((uint32_t)k + 1, i, -1, 1) : 0;
        for (size_t i = 0; k == 4 && i < FLAT; i++)
            if (segment_of(i)) x.ema.host[slot_at(i)] = x.w.host[i];
        put(x.cuda, all[k]);
    }
    x.control = b->memory->alloc(x.cuda, TR_MEM_OTHER, sizeof *x.control);
    x.norms = b->memory->alloc(x.cuda, TR_MEM_OTHER, ROWS * TR_NORM_CELLS * sizeof *x.norms);
    assert_non_null(x.control && x.norms ? x.control : NULL);
    return x;
}

static inline void close_bench(bench *x)
{
    array *all[] = {&x->w, &x->g, &x->m, &x->v, &x->ema, &x->a};
    for (size_t k = 0; k < TR_COUNT(all); k++) close_array(x->cuda, all[k]);
    b->memory->free(x->cuda, x->control);
    b->memory->free(x->cuda, x->norms);
    close_with(x->cuda);
}

static inline void set_control(bench *x, const tr_control *c)
{
    assert_ok(b->memory->upload(x->cuda, x->control, c, sizeof *c));
}

static inline tr_control get_control(bench *x)
{
    tr_control c;
    assert_ok(b->memory->download(x->cuda, &c, x->control, sizeof c));
    return c;
}

typedef struct {
    const char *name;
    tr_update u;
    bool m, v, ema;
} variant;

#define COMMON .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8
static float there; /* stands for a moment that the variant has */
#define RMS   .a = &there, .beta2 = 0.9, .eps = 1e-2
#define TRUST COMMON, .trust_coefficient = 0.5
static const variant variants[] = {
    {"adamw", {.kind = TR_UPDATE_ADAMW, COMMON}, true, true, false},
    {"adamw, average", {.kind = TR_UPDATE_ADAMW, COMMON, .ema_decay = 0.9}, true, true, true},
    {"sgd", {.kind = TR_UPDATE_SGD, COMMON}, false, false, false},
    {"sgd, average", {.kind = TR_UPDATE_SGD, COMMON, .ema_decay = 0.5}, false, false, true},
    {"momentum", {.kind = TR_UPDATE_SGD, COMMON, .momentum = 0.9}, true, false, false},
    {"momentum, average",
     {.kind = TR_UPDATE_SGD, COMMON, .momentum = 0.9, .ema_decay = 0.9},
     true,
     false,
     true},
    {"nesterov",
     {.kind = TR_UPDATE_SGD, COMMON, .momentum = 0.9, .nesterov = true},
     true,
     false,
     false},
    {"nesterov, average",
     {.kind = TR_UPDATE_SGD, COMMON, .momentum = 0.9, .nesterov = true, .ema_decay = 0.9},
     true,
     false,
     true},
    {"lion", {.kind = TR_UPDATE_LION, COMMON}, true, false, false},
    {"lion, average", {.kind = TR_UPDATE_LION, COMMON, .ema_decay = 0.99}, true, false, true},
    {"adam, average", {.kind = TR_UPDATE_ADAM, COMMON, .ema_decay = 0.9}, true, true, true},
    {"rmsprop", {.kind = TR_UPDATE_RMSPROP, COMMON}, false, true, false},
    {"rmsprop, momentum", {.kind = TR_UPDATE_RMSPROP, COMMON, .momentum = 0.9}, true, true, false},
    {"rmsprop, centered", {.kind = TR_UPDATE_RMSPROP, RMS}, false, true, false},
    {"rmsprop, both, average",
     {.kind = TR_UPDATE_RMSPROP, RMS, .momentum = 0.9, .ema_decay = 0.9},
     true,
     true,
     true},
    {"lars", {.kind = TR_UPDATE_LARS, TRUST}, false, false, false},
    {"lars, momentum, average",
     {.kind = TR_UPDATE_LARS, TRUST, .momentum = 0.9, .ema_decay = 0.9},
     true,
     false,
     true},
    {"lamb, average", {.kind = TR_UPDATE_LAMB, TRUST, .ema_decay = 0.9}, true, true, true},
};

static inline tr_update update_of(const bench *x, const variant *k)
{
    tr_update u = k->u;
    u.w = x->w.device;
    u.g = x->g.device;
    u.m = k->m ? x->m.device : NULL;
    u.v = k->v ? x->v.device : NULL;
    u.a = k->u.a ? x->a.device : NULL;
    u.ema = k->ema ? x->ema.device : NULL;
    u.norms = tr_update_has_norms(k->u.kind) ? x->norms : NULL;
    u.nrows = u.norms ? ROWS : 0;
    static tr_segment own[TR_COUNT(segments)]; /* whose norms count where the rule has some */
    memcpy(own, segments, sizeof own);
    for (size_t i = 0; i < TR_COUNT(own); i++) own[i].adapt = own[i].adapt && u.norms;
    u.segments = own;
    u.nsegments = TR_COUNT(own);
    return u;
}

static inline bool near(double got, double want, double relative)
{
    return fabs(got - want) <= relative * (1 + fabs(want));
}

#endif
