/* Optimizer steps against the published formulas in float64 over several steps and over segments
 * with gaps; what is read from the control at run time, also when replayed. */
#include "tests/unit/cuda/optimizer_harness.h"

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

/* What LARS and LAMB multiply the steps of a segment's row with; of LAMB the moments of it move
 * on. */
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
        cmocka_unit_test(wrong_updates_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
