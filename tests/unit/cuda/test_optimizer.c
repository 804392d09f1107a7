/* Optimizer steps against the published formulas in float64 over several steps and over segments
 * with gaps; what is read from the control at run time, also when replayed; the decision with its
 * search. */
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
static size_t slot_at(size_t i)
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

static bench open_bench(bool graphs)
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

static void close_bench(bench *x)
{
    array *all[] = {&x->w, &x->g, &x->m, &x->v, &x->ema, &x->a};
    for (size_t k = 0; k < TR_COUNT(all); k++) close_array(x->cuda, all[k]);
    b->memory->free(x->cuda, x->control);
    b->memory->free(x->cuda, x->norms);
    close_with(x->cuda);
}

static void set_control(bench *x, const tr_control *c)
{
    assert_ok(b->memory->upload(x->cuda, x->control, c, sizeof *c));
}

static tr_control get_control(bench *x)
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

static tr_update update_of(const bench *x, const variant *k)
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

/* The control of step t, as tr_control_decide leaves it. */
static tr_control control_of(int t)
{
    return (tr_control){.in = {.lr = 0.01 / t},
                        .apply = 1,
                        .grad_scale = 0.125 * t,
                        .correct1 = 1 - pow(0.9, t),
                        .correct2 = 1 - pow(0.99, t)};
}

typedef struct {
    double w, m, v, ema, a;
} element;

static double lamb_step(const tr_update *u, const tr_control *c, const element *e,
                        const tr_segment *s)
{
    return e->m / c->correct1 / (sqrt(e->v / c->correct2) + u->eps) + s->decay * e->w;
}

/* What LARS and LAMB multiply the steps of a segment's row with; of LAMB the moments of it move on. */
static void trusts_of(const variant *k, const tr_control *c, element *e, const float *g,
                      double trust[ROWS])
{
    const tr_update *u = &k->u;
    double w[ROWS] = {0}, step[ROWS] = {0};
    for (size_t i = 0; i < FLAT; i++) {
        const tr_segment *s = segment_of(i);
        double d = c->grad_scale * g[i];
        if (!s) continue;
        if (u->kind == TR_UPDATE_LAMB) {
            e[i].m = u->beta1 * e[i].m + (1 - u->beta1) * d;
            e[i].v = u->beta2 * e[i].v + (1 - u->beta2) * d * d;
            d = lamb_step(u, c, &e[i], s);
        }
        w[s->row] += e[i].w * e[i].w;
        if (!(s->masked && e[i].w == 0)) step[s->row] += d * d;
    }
    for (size_t r = 0; r < ROWS; r++) {
        const double a = sqrt(w[r]), d = sqrt(step[r]), decay = r == 1 ? 0.1 : 0.3;
        trust[r] = r == 0 ? 1
                   : u->kind == TR_UPDATE_LAMB
                       ? a / d
                       : u->trust_coefficient * a / (d + decay * a + u->eps);
    }
}

/* One step of one element as the papers and PyTorch have it. */
static void reference(const variant *k, const tr_control *c, element *e, double g,
                      const tr_segment *s, double trust)
{
    const tr_update *u = &k->u;
    const double lr = c->in.lr * s->lr_factor, decay = s->decay, was = e->w;
    g *= c->grad_scale;
    if (u->kind == TR_UPDATE_ADAM) {
        g += decay * e->w;
        e->m = u->beta1 * e->m + (1 - u->beta1) * g;
        e->v = u->beta2 * e->v + (1 - u->beta2) * g * g;
        e->w -= lr / c->correct1 * e->m / (sqrt(e->v) / sqrt(c->correct2) + u->eps);
    } else if (u->kind == TR_UPDATE_RMSPROP) {
        g += decay * e->w;
        e->v = u->beta2 * e->v + (1 - u->beta2) * g * g;
        if (k->u.a) e->a = u->beta2 * e->a + (1 - u->beta2) * g;
        g /= sqrt(e->v - e->a * e->a) + u->eps;
        if (k->m) g = e->m = u->momentum * e->m + g;
        e->w -= lr * g;
    } else if (u->kind == TR_UPDATE_LARS) {
        g = trust * (g + decay * e->w);
        if (k->m) g = e->m = u->momentum * e->m + g;
        e->w -= lr * g;
    } else if (u->kind == TR_UPDATE_LAMB) {
        e->w -= lr * trust * lamb_step(u, c, e, s);
    } else if (u->kind == TR_UPDATE_ADAMW) {
        e->w *= 1 - lr * decay;
        e->m = u->beta1 * e->m + (1 - u->beta1) * g;
        e->v = u->beta2 * e->v + (1 - u->beta2) * g * g;
        e->w -= lr / c->correct1 * e->m / (sqrt(e->v) / sqrt(c->correct2) + u->eps);
    } else if (u->kind == TR_UPDATE_LION) {
        const double d = u->beta1 * e->m + (1 - u->beta1) * g;
        e->w = e->w * (1 - lr * decay) - lr * ((d > 0) - (d < 0));
        e->m = u->beta2 * e->m + (1 - u->beta2) * g;
    } else {
        g += decay * e->w;
        if (k->m) {
            e->m = u->momentum * e->m + g;
            g = u->nesterov ? g + u->momentum * e->m : e->m;
        }
        e->w -= lr * g;
    }
    if (s->masked && was == 0) e->w = 0;
    if (k->ema) e->ema = u->ema_decay * e->ema + (1 - u->ema_decay) * e->w;
}

static bool near(double got, double want, double relative)
{
    return fabs(got - want) <= relative * (1 + fabs(want));
}

static void check_steps(const variant *k)
{
    bench x = open_bench(false);
    element *want = calloc(FLAT, sizeof *want);
    const tr_update u = update_of(&x, k);
    void *updater;
    assert_ok(b->training->updater_open(training_of(x.cuda), &u, &updater));
    for (size_t i = 0; i < FLAT; i++) want[i] = (element){.w = x.w.host[i], .ema = x.w.host[i]};
    for (int t = 1; t <= 4; t++) {
        const tr_control c = control_of(t);
        for (size_t i = 0; i < FLAT; i++)
            x.g.host[i] = i % 50 == 49 ? 0 : (float)uniform((uint32_t)t + 9, i, -8, 8);
        double trust[ROWS] = {1, 1, 1};
        if (u.norms) trusts_of(k, &c, want, x.g.host, trust);
        for (size_t i = 0; i < FLAT; i++)
            if (segment_of(i))
                reference(k, &c, &want[i], x.g.host[i], segment_of(i), trust[segment_of(i)->row]);
        put(x.cuda, &x.g);
        set_control(&x, &c);
        if (u.norms) assert_ok(b->training->updater_measure(updater, x.control));
        assert_ok(b->training->updater_run(updater, x.control));
    }
    get(x.cuda, &x.w);
    get(x.cuda, &x.m);
    get(x.cuda, &x.v);
    get(x.cuda, &x.ema);
    /* float32 rounds about ten times a step */
    for (size_t i = 0; i < FLAT; i++) {
        const size_t s = slot_at(i);
        if (!segment_of(i)) continue;
        if (!near(x.w.host[i], want[i].w, 3e-6) || !near(x.m.host[s], want[i].m, 3e-6) ||
            !near(x.v.host[s], want[i].v, 3e-6) || !near(x.ema.host[s], want[i].ema, 3e-6))
            fail_msg("%s: element %zu is %.9g, expected %.9g", k->name, i, (double)x.w.host[i],
                     want[i].w);
    }
    for (size_t i = GAP; i < GAP + 16; i++) assert_true((double)x.w.host[i] == want[i].w);
    b->training->updater_close(updater);
    free(want);
    close_bench(&x);
}

static void steps_match(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(variants); k++) check_steps(&variants[k]);
}

/* Nothing is written where the control does not apply, whatever it and the gradient hold. */
static void nothing_happens_unless_applied(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(variants); k++) {
        bench x = open_bench(false);
        float *before = malloc(2 * FLAT * sizeof *before);
        memcpy(before, x.w.host, FLAT * sizeof *before);
        memcpy(before + FLAT, x.ema.host, FLAT * sizeof *before);
        const tr_update u = update_of(&x, &variants[k]);
        tr_control c = {.grad_scale = NAN, .in = {.lr = NAN}};
        void *updater;
        for (size_t i = 0; i < FLAT; i++) x.g.host[i] = NAN;
        put(x.cuda, &x.g);
        set_control(&x, &c);
        assert_ok(b->training->updater_open(training_of(x.cuda), &u, &updater));
        if (u.norms) assert_ok(b->training->updater_measure(updater, x.control));
        assert_ok(b->training->updater_run(updater, x.control));
        get(x.cuda, &x.w);
        get(x.cuda, &x.m);
        get(x.cuda, &x.v);
        get(x.cuda, &x.ema);
        assert_memory_equal(x.w.host, before, FLAT * sizeof *before);
        assert_memory_equal(x.ema.host, before + FLAT, FLAT * sizeof *before);
        for (size_t i = 0; i < FLAT; i++) assert_true(x.m.host[i] == 0 && x.v.host[i] == 0);
        b->training->updater_close(updater);
        free(before);
        close_bench(&x);
    }
}

/* A section that was recorded once follows the learning rate of each replay. */
static void replays_read_the_control(void **state)
{
    (void)state;
    bench x = open_bench(true);
    const tr_update u = update_of(&x, &variants[2]); /* sgd */
    void *updater;
    element *want = calloc(FLAT, sizeof *want);
    assert_ok(b->training->updater_open(training_of(x.cuda), &u, &updater));
    for (size_t i = 0; i < FLAT; i++) want[i].w = x.w.host[i];
    for (int t = 1; t <= 5; t++) {
        tr_control c = control_of(t);
        c.apply = t != 4;
        for (size_t i = 0; i < FLAT && c.apply; i++)
            if (segment_of(i)) reference(&variants[2], &c, &want[i], x.g.host[i], segment_of(i), 1);
        set_control(&x, &c);
        bool replay;
        assert_ok(b->sections->begin(sections_of(x.cuda), 7, &replay));
        const tr_status st = replay ? TR_OK : b->training->updater_run(updater, x.control);
        assert_ok(b->sections->end(sections_of(x.cuda), st));
    }
    get(x.cuda, &x.w);
    for (size_t i = 0; i < FLAT; i++) assert_true(near(x.w.host[i], want[i].w, 3e-6));
    b->training->updater_close(updater);
    free(want);
    close_bench(&x);
}

static void weights_and_average_change_places(void **state)
{
    (void)state;
    bench x = open_bench(false);
    const tr_update u = update_of(&x, &variants[1]);
    void *updater;
    float *w = malloc(FLAT * sizeof *w), *ema = malloc(FLAT * sizeof *ema);
    for (size_t i = 0; i < FLAT; i++) {
        w[i] = x.w.host[i];
        ema[i] = x.ema.host[i] = (float)uniform(8, i, 5, 6);
    }
    put(x.cuda, &x.ema);
    assert_ok(b->training->updater_open(training_of(x.cuda), &u, &updater));
    assert_ok(b->training->updater_swap_ema(updater));
    get(x.cuda, &x.w);
    get(x.cuda, &x.ema);
    for (size_t i = 0; i < FLAT; i++) {
        const size_t at = slot_at(i);
        if (!segment_of(i))
            assert_true(x.w.host[i] == w[i]);
        else
            assert_true(x.w.host[i] == ema[at] && x.ema.host[at] == w[i]);
    }
    b->training->updater_close(updater);
    free(w);
    free(ema);
    close_bench(&x);
}

/* ---- The decision ---------------------------------------------------------------------------- */

static tr_control undecided(void)
{
    return (tr_control){.clip_norm = 1,
                        .beta1 = 0.9,
                        .beta2 = 0.99,
                        .scale_window = 100,
                        .loss_scale = 1024,
                        .updates = 4,
                        .sums = {[TR_TALLY_LOSS] = 3, [TR_TALLY_WEIGHT] = 32},
                        .sum_squares = 1e12,
                        .first_nonfinite = 5};
}

/* The device decides as the host would. */
static void check_decision(bench *x, void *updater, tr_control c, uint64_t first)
{
    set_control(x, &c);
    assert_ok(b->training->updater_decide(updater, x->control));
    const tr_control got = get_control(x);
    tr_control_decide(&c);
    assert_true(got.first_nonfinite == first);
    assert_true(got.apply == c.apply && got.searched == c.searched && got.held == c.held);
    assert_true(got.updates == c.updates && got.skipped == c.skipped &&
                got.scale_good == c.scale_good);
    assert_true(got.loss_scale == c.loss_scale && got.used_scale == c.used_scale);
    if (c.apply) {
        assert_true(near(got.grad_norm / c.grad_norm, 1, 1e-14));
        assert_true(near(got.grad_scale / c.grad_scale, 1, 1e-14));
        assert_true(near(got.correct1, c.correct1, 1e-14) && near(got.correct2, c.correct2, 1e-14));
    } else {
        assert_true(isnan(got.grad_norm));
    }
}

static void decisions_match(void **state)
{
    (void)state;
    bench x = open_bench(false);
    const tr_update u = update_of(&x, &variants[0]);
    void *updater;
    assert_ok(b->training->updater_open(training_of(x.cuda), &u, &updater));
    tr_control good = undecided(), bad = undecided(), loss = undecided();
    bad.sum_squares = NAN;
    loss.sums[TR_TALLY_LOSS] = INFINITY;
    loss.scale_window = 0;
    loss.hold = 1;
    check_decision(&x, updater, good, UINT64_MAX);
    check_decision(&x, updater, loss, UINT64_MAX);
    check_decision(&x, updater, bad, UINT64_MAX); /* another rank's gradient */
    static const size_t at[] = {FLAT - 1, 2 * 8192 + GAP + 16, GAP + 5, 5000, 16, 0};
    uint64_t lowest = UINT64_MAX;
    for (size_t k = 0; k < TR_COUNT(at); k++) {
        x.g.host[at[k]] = k % 2 ? -INFINITY : NAN;
        put(x.cuda, &x.g);
        if (segment_of(at[k])) lowest = at[k]; /* the gap is not this rank's */
        check_decision(&x, updater, bad, lowest);
    }
    check_decision(&x, updater, good, UINT64_MAX); /* nobody looks */
    b->training->updater_close(updater);
    close_bench(&x);
}

/* A rank that owns nothing decides like all others. */
static void no_segments(void **state)
{
    (void)state;
    bench x = open_bench(false);
    tr_update u = update_of(&x, &variants[1]);
    u.nsegments = 0;
    void *updater;
    assert_ok(b->training->updater_open(training_of(x.cuda), &u, &updater));
    tr_control c = undecided();
    check_decision(&x, updater, c, UINT64_MAX);
    c.sum_squares = INFINITY;
    check_decision(&x, updater, c, UINT64_MAX);
    assert_ok(b->training->updater_run(updater, x.control));
    assert_ok(b->training->updater_swap_ema(updater));
    b->training->updater_close(updater);
    b->training->updater_close(NULL);
    close_bench(&x);
}

static void wrong_updates_are_refused(void **state)
{
    (void)state;
    bench x = open_bench(false);
    tr_update u = update_of(&x, &variants[0]);
    const tr_segment odd = {.range = {8, 32}, .lr_factor = 1};
    void *updater = NULL;
    u.segments = &odd;
    u.nsegments = 1;
    assert_told(b->training->updater_open(training_of(x.cuda), &u, &updater), TR_INTERNAL,
                "segment [8, 32)");
    u = update_of(&x, &variants[0]);
    u.v = NULL;
    assert_told(b->training->updater_open(training_of(x.cuda), &u, &updater), TR_INTERNAL,
                "moments");
    assert_null(updater);
    close_bench(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_match),
        cmocka_unit_test(nothing_happens_unless_applied),
        cmocka_unit_test(replays_read_the_control),
        cmocka_unit_test(weights_and_average_change_places),
        cmocka_unit_test(decisions_match),
        cmocka_unit_test(no_segments),
        cmocka_unit_test(wrong_updates_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
