/* Optimizer steps against the published formulas in float64 over several steps, at every level and
 * thread count; the fused unscaling and average; the sum of squares, also of values whose squares
 * leave float32. */
#include "tests/unit/cpu/loop_levels.h"

#define LR         0.01
#define GRAD_SCALE 0.125

typedef struct {
    double *w, *m, *v, *a, *ema;
} exact_state;

static double lamb_step(const tr_update *u, int t, const exact_state *s, size_t i)
{
    const double bc1 = 1 - pow(u->beta1, t), bc2 = 1 - pow(u->beta2, t);
    return s->m[i] / bc1 / (sqrt(s->v[i] / bc2) + u->eps) + u->segments[0].decay * s->w[i];
}

/* What the steps of LARS and LAMB are multiplied with; LAMB's moments move on. */
static double trust_of(const tr_update *u, int t, exact_state *s, const float *g, size_t n)
{
    double w = 0, step = 0;
    for (size_t i = 0; i < n; i++) {
        double d = GRAD_SCALE * g[i];
        if (u->kind == TR_UPDATE_LAMB) {
            s->m[i] = u->beta1 * s->m[i] + (1 - u->beta1) * d;
            s->v[i] = u->beta2 * s->v[i] + (1 - u->beta2) * d * d;
            d = lamb_step(u, t, s, i);
        }
        w += s->w[i] * s->w[i];
        if (!(u->segments[0].masked && s->w[i] == 0)) step += d * d;
    }
    w = sqrt(w);
    step = sqrt(step);
    if (!u->segments[0].adapt || w == 0 || step == 0) return 1;
    return u->kind == TR_UPDATE_LAMB
               ? w / step
               : u->trust_coefficient * w / (step + u->segments[0].decay * w + u->eps);
}

/* One step of one element as the papers and PyTorch have it. */
static void reference(const tr_update *u, int t, exact_state *s, size_t i, double g, bool masked,
                      double trust)
{
    const double decay = u->segments[0].decay;
    g *= GRAD_SCALE;
    double w = s->w[i];
    if (u->kind == TR_UPDATE_ADAM) {
        g += decay * w;
        s->m[i] = u->beta1 * s->m[i] + (1 - u->beta1) * g;
        s->v[i] = u->beta2 * s->v[i] + (1 - u->beta2) * g * g;
        const double bc1 = 1 - pow(u->beta1, t), bc2 = 1 - pow(u->beta2, t);
        w -= LR / bc1 * s->m[i] / (sqrt(s->v[i]) / sqrt(bc2) + u->eps);
    } else if (u->kind == TR_UPDATE_RMSPROP) {
        g += decay * w;
        s->v[i] = u->beta2 * s->v[i] + (1 - u->beta2) * g * g;
        if (u->a) s->a[i] = u->beta2 * s->a[i] + (1 - u->beta2) * g;
        g /= sqrt(s->v[i] - s->a[i] * s->a[i]) + u->eps;
        if (u->m) g = s->m[i] = u->momentum * s->m[i] + g;
        w -= LR * g;
    } else if (u->kind == TR_UPDATE_LARS) {
        g = trust * (g + decay * w);
        if (u->m) g = s->m[i] = u->momentum * s->m[i] + g;
        w -= LR * g;
    } else if (u->kind == TR_UPDATE_LAMB) {
        w -= LR * trust * lamb_step(u, t, s, i);
    } else if (u->kind == TR_UPDATE_ADAMW) {
        w *= 1 - LR * decay;
        s->m[i] = u->beta1 * s->m[i] + (1 - u->beta1) * g;
        s->v[i] = u->beta2 * s->v[i] + (1 - u->beta2) * g * g;
        const double bc1 = 1 - pow(u->beta1, t), bc2 = 1 - pow(u->beta2, t);
        w -= LR / bc1 * s->m[i] / (sqrt(s->v[i]) / sqrt(bc2) + u->eps);
    } else if (u->kind == TR_UPDATE_LION) {
        const double c = u->beta1 * s->m[i] + (1 - u->beta1) * g;
        w = w * (1 - LR * decay) - LR * ((c > 0) - (c < 0));
        s->m[i] = u->beta2 * s->m[i] + (1 - u->beta2) * g;
    } else {
        g += decay * w;
        if (u->m) {
            s->m[i] = t == 1 ? g : u->momentum * s->m[i] + g;
            g = u->nesterov ? g + u->momentum * s->m[i] : s->m[i];
        }
        w -= LR * g;
    }
    if (masked && s->w[i] == 0) w = 0;
    s->w[i] = w;
    if (u->ema) s->ema[i] = u->ema_decay * s->ema[i] + (1 - u->ema_decay) * w;
}

typedef struct {
    const char *name;
    tr_update u;
    double decay;
    bool m, v, ema;
} variant;

#define COMMON .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8
static float there; /* stands for a moment that the variant has */
#define RMS   .a = &there, .beta2 = 0.9, .eps = 1e-2
#define TRUST COMMON, .trust_coefficient = 0.5
static const variant variants[] = {
    {"adamw", {.kind = TR_UPDATE_ADAMW, COMMON}, 0.1, true, true, false},
    {"adamw, average", {.kind = TR_UPDATE_ADAMW, COMMON, .ema_decay = 0.9}, 0, true, true, true},
    {"sgd", {.kind = TR_UPDATE_SGD, COMMON}, 0, false, false, false},
    {"sgd, decay, average",
     {.kind = TR_UPDATE_SGD, COMMON, .ema_decay = 0.5},
     0.2,
     false,
     false,
     true},
    {"momentum", {.kind = TR_UPDATE_SGD, COMMON, .momentum = 0.9}, 0.1, true, false, false},
    {"nesterov",
     {.kind = TR_UPDATE_SGD, COMMON, .momentum = 0.9, .nesterov = true},
     0,
     true,
     false,
     true},
    {"lion", {.kind = TR_UPDATE_LION, COMMON}, 0.1, true, false, false},
    {"lion, average", {.kind = TR_UPDATE_LION, COMMON, .ema_decay = 0.99}, 0, true, false, true},
    {"adam", {.kind = TR_UPDATE_ADAM, COMMON, .ema_decay = 0.9}, 0.1, true, true, true},
    {"rmsprop", {.kind = TR_UPDATE_RMSPROP, COMMON}, 0.1, false, true, false},
    {"rmsprop, momentum",
     {.kind = TR_UPDATE_RMSPROP, COMMON, .momentum = 0.9},
     0,
     true,
     true,
     false},
    {"rmsprop, centered", {.kind = TR_UPDATE_RMSPROP, RMS}, 0.1, false, true, false},
    {"rmsprop, both, average",
     {.kind = TR_UPDATE_RMSPROP, RMS, .momentum = 0.9, .ema_decay = 0.9},
     0.1,
     true,
     true,
     true},
    {"lars", {.kind = TR_UPDATE_LARS, TRUST}, 0.1, false, false, false},
    {"lars, momentum, average",
     {.kind = TR_UPDATE_LARS, TRUST, .momentum = 0.9, .ema_decay = 0.9},
     0.1,
     true,
     false,
     true},
    {"lars, plain", {.kind = TR_UPDATE_LARS, COMMON, .momentum = 0.9}, 0, true, false, false},
    {"lamb", {.kind = TR_UPDATE_LAMB, TRUST}, 0.1, true, true, false},
    {"lamb, average", {.kind = TR_UPDATE_LAMB, TRUST, .ema_decay = 0.9}, 0, true, true, true},
    {"lamb, plain", {.kind = TR_UPDATE_LAMB, COMMON}, 0.1, true, true, false},
};

static float *floats(size_t n)
{
    float *p = tr_alloc(TR_MEM_OTHER, n, sizeof *p);
    assert_non_null(p);
    return p;
}

enum { SLOT = 32 }; /* where the segment begins in moments and average */

/* Five steps of n elements, of which some are 0; returns the weights, to be freed. */
static float *run_steps(const variant *k, int isa, int threads, size_t n, bool masked)
{
    void *ctx;
    const tr_backend_options o = {.isa = isa};
    const bool norms = tr_update_has_norms(k->u.kind);
    double cells[TR_NORM_CELLS];
    if (norms) n = tr_align_up(n, 16);
    assert_int_equal(tr_cpu_backend.open(&o, &ctx), TR_OK);
    float *w = floats(n), *g = floats(n), *m = floats(SLOT + n), *v = floats(SLOT + n),
          *ema = floats(SLOT + n), *a = floats(SLOT + n);
    exact_state s = {doubles(n), doubles(n), doubles(n), doubles(n), doubles(n)};
    for (size_t i = 0; i < n; i++)
        s.w[i] = s.ema[i] = w[i] = ema[SLOT + i] = i % 3 == 1 ? 0 : (float)uniform(1, i, -1, 1);
    tr_update u = k->u;
    u.w = w;
    u.g = g;
    u.m = k->m ? m : NULL;
    u.v = k->v ? v : NULL;
    u.a = k->u.a ? a : NULL;
    u.ema = k->ema ? ema : NULL;
    u.norms = norms ? cells : NULL;
    u.nrows = norms;
    const tr_segment all = {{0, n}, SLOT,   k->decay,
                            0.5,    masked, norms && k->u.trust_coefficient > 0,
                            0,      false,  {0, 0, 0, 0}};
    u.segments = &all;
    u.nsegments = 1;
    void *training, *updater;
    tr_control c = {.in.lr = 2 * LR, .grad_scale = GRAD_SCALE, .apply = 1};
    assert_int_equal(tr_cpu_backend.training->open(ctx, threads, &training), TR_OK);
    assert_int_equal(tr_cpu_backend.training->updater_open(training, &u, &updater), TR_OK);
    for (int t = 1; t <= 5; t++) {
        for (size_t i = 0; i < n; i++) {
            g[i] = (float)uniform((uint32_t)t, i, -8, 8);
            if (i % 50 == 49) g[i] = 0;
        }
        const double trust = norms ? trust_of(&u, t, &s, g, n) : 1;
        for (size_t i = 0; i < n; i++) reference(&u, t, &s, i, (double)g[i], masked, trust);
        c.correct1 = 1 - pow(u.beta1, t);
        c.correct2 = 1 - pow(u.beta2, t);
        if (norms) assert_int_equal(tr_cpu_backend.training->updater_measure(updater, &c), TR_OK);
        assert_int_equal(tr_cpu_backend.training->updater_run(updater, &c), TR_OK);
    }
    c.apply = 0; /* a step that is not applied changes nothing */
    const float before = w[0];
    assert_int_equal(tr_cpu_backend.training->updater_run(updater, &c), TR_OK);
    assert_true(w[0] == before);
    tr_cpu_backend.training->updater_close(updater);
    tr_cpu_backend.training->close(training);
    for (size_t i = 0; i < n; i++) {
        if (masked && i % 3 == 1) assert_true(w[i] == 0);
        const bool good =
            fabs(w[i] - s.w[i]) <= 2e-6 * (1 + fabs(s.w[i])) &&
            (!k->m || fabs(m[SLOT + i] - s.m[i]) <= 2e-6 * (1 + fabs(s.m[i]))) &&
            (!k->v || fabs(v[SLOT + i] - s.v[i]) <= 1e-6 * s.v[i]) &&
            (!k->ema || fabs(ema[SLOT + i] - s.ema[i]) <= 2e-6 * (1 + fabs(s.ema[i])));
        if (!good)
            fail_msg("%s, level %d: element %zu is %.9g, expected %.9g", k->name, isa, i, w[i],
                     s.w[i]);
    }
    tr_free(g);
    tr_free(m);
    tr_free(v);
    tr_free(ema);
    tr_free(s.w);
    tr_free(s.m);
    tr_free(s.v);
    tr_free(s.a);
    tr_free(a);
    tr_free(s.ema);
    tr_cpu_backend.close(ctx);
    return w;
}

static void steps_match(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 7, 16, 1000};
    for (size_t k = 0; k < TR_COUNT(variants); k++)
        for (size_t s = 0; s < TR_COUNT(sizes); s++) FOR_LEVELS(isa)
    for (int masked = 0; masked < 2; masked++)
        tr_free(run_steps(&variants[k], isa, 1, sizes[s], masked));
}

static void levels_and_threads_agree(void **state)
{
    (void)state;
    enum { N = 150000 }; /* several chunks */
    for (size_t k = 0; k < TR_COUNT(variants); k += 4) {
        float *one = run_steps(&variants[k], 0, 1, N, false);
        float *three = run_steps(&variants[k], 0, 3, N, false);
        float *base = run_steps(&variants[k], TR_ISA_BASE, 1, N, false);
        assert_memory_equal(one, three, N * sizeof *one);
        for (size_t i = 0; i < N; i++)
            assert_true(fabsf(one[i] - base[i]) <= 5e-7f * (1 + fabsf(base[i])));
        tr_free(one);
        tr_free(three);
        tr_free(base);
    }
}

/* The sums of squares of a row are the same bits, however it is cut over threads and ranks, whose
 * digits are added; and they are right. */
static void norms_do_not_depend_on_cuts(void **state)
{
    (void)state;
    enum { N = 160000 };
    static const size_t cuts[][4] = {{0, N, N, N}, {0, 16, N, N}, {0, 48016, 48032, N}};
    float *w = floats(N), *g = floats(N), *m = floats(N), *v = floats(N);
    double first[TR_NORMS] = {0}, exact = 0;
    for (size_t i = 0; i < N; i++) {
        w[i] = (float)(uniform(1, i, -1, 1) * pow(10, uniform(2, i, -12, 6)));
        g[i] = (float)uniform(3, i, -1, 1);
        exact += (double)w[i] * (double)w[i];
    }
    for (int lamb = 0; lamb < 2; lamb++)
        for (size_t c = 0; c < TR_COUNT(cuts); c++) {
            double sum[TR_NORM_CELLS] = {0};
            void *ctx, *training, *updater;
            assert_int_equal(tr_cpu_backend.open(&(tr_backend_options){0}, &ctx), TR_OK);
            assert_int_equal(tr_cpu_backend.training->open(ctx, (int)c + 1, &training), TR_OK);
            memset(m, 0, N * sizeof *m);
            memset(v, 0, N * sizeof *v);
            for (size_t part = 0; part < 3; part++) {
                double cells[TR_NORM_CELLS];
                const tr_control control = {
                    .apply = 1, .grad_scale = 1, .correct1 = 0.1, .correct2 = 0.01};
                const tr_segment s = {{cuts[c][part], cuts[c][part + 1]},
                                      cuts[c][part],
                                      0.1,
                                      1,
                                      false,
                                      true,
                                      0,
                                      false,
                                      {0, 0, 0, 0}};
                const tr_update u = {.kind = lamb ? TR_UPDATE_LAMB : TR_UPDATE_LARS,
                                     COMMON,
                                     .w = w,
                                     .g = g,
                                     .m = lamb ? m : NULL,
                                     .v = lamb ? v : NULL,
                                     .norms = cells,
                                     .nrows = 1,
                                     .segments = &s,
                                     .nsegments = 1};
                assert_int_equal(tr_cpu_backend.training->updater_open(training, &u, &updater),
                                 TR_OK);
                assert_int_equal(tr_cpu_backend.training->updater_measure(updater, &control),
                                 TR_OK);
                tr_cpu_backend.training->updater_close(updater);
                for (size_t i = 0; i < TR_NORM_CELLS; i++) sum[i] += cells[i];
            }
            for (int k = 0; k < TR_NORMS; k++) {
                const double got = tr_exact_value(sum + k * TR_EXACT_DIGITS);
                if (c == 0) first[k] = got;
                assert_true(got > 0 && got == first[k]);
            }
            assert_true(fabs(first[TR_NORM_WEIGHT] - exact) <= 1e-12 * exact);
            tr_cpu_backend.training->close(training);
            tr_cpu_backend.close(ctx);
        }
    tr_free(w);
    tr_free(g);
    tr_free(m);
    tr_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_match),
        cmocka_unit_test(levels_and_threads_agree),
        cmocka_unit_test(norms_do_not_depend_on_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
