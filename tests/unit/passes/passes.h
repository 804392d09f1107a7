/* One pass, or all, run on a model made for it: what they found, and what stands there then. */
#ifndef TESTS_UNIT_PASSES_H
#define TESTS_UNIT_PASSES_H

#include "optimize/passes/passes.h"
#include "runtime/graph/facts.h"
#include "tests/unit/networks.h"

#define BOUND 2e-5

typedef struct {
    uint64_t seed;
    float mean, std; /* of what the data is normalized by */
    double add;      /* to every difference: for what is to be undone */
    int calls;
} prover;

static inline tr_status differ(void *ctx, const tr_pass_subject *a, const tr_pass_subject *b,
                               double *difference)
{
    prover *p = ctx;
    size_t na, nb;
    const float mean = p->mean, std = p->std;
    float *ya = outputs_of(a->network, p->seed, a->raw ? 0 : mean, a->raw ? 1 : std, &na);
    float *yb = outputs_of(b->network, p->seed, b->raw ? 0 : mean, b->raw ? 1 : std, &nb);
    assert_int_equal(na, nb);
    *difference = apart(ya, yb, na) + p->add;
    p->calls++;
    free(ya);
    free(yb);
    return TR_OK;
}

/* All passes, or one alone. */
typedef struct {
    tr_network *before, *after;
    bool raw;
    tr_pass_report reports[32];
} result;

static inline result run(tr_network *n, const char *only, prover *p)
{
    const char *skip[32];
    double mean = p->mean, std = p->std;
    const tr_normalize_config normalize = {.mean = {1, &mean}, .std = {1, &std}};
    tr_passes_options o = {.skip = skip,
                           .bound = BOUND,
                           .differ = differ,
                           .ctx = p,
                           .normalize = &normalize,
                           .nnormalize = p->std > 0 ? 1 : 0};
    result r = {.before = n};
    if (p->std <= 0) p->std = 1;
    for (size_t i = 0; only && i < tr_pass_count(); i++)
        if (strcmp(tr_pass_at(i)->name, only) != 0) skip[o.nskip++] = tr_pass_at(i)->name;
    ok(tr_passes_run(n, &o, &r.after, &r.raw, r.reports));
    return r;
}

static inline void done(result *r)
{
    tr_network_close(r->before);
    tr_network_close(r->after);
}

static inline const tr_pass_report *report(const result *r, const char *name)
{
    for (size_t i = 0; i < tr_pass_count(); i++)
        if (strcmp(tr_pass_at(i)->name, name) == 0) return &r->reports[i];
    fail_msg("no pass %s", name);
    return NULL;
}

static inline size_t changed(const result *r)
{
    size_t n = 0;
    for (size_t i = 0; i < tr_pass_count(); i++) n += r->reports[i].count;
    return n;
}

/* So many are found by this pass alone, and the layers then are these. */
static inline void finds(const char *pass, size_t count, const char *model, const char *layers)
{
    prover p = {.seed = 3};
    result r = run(network_of(model, 9), pass, &p);
    char text[400] = "";
    for (size_t i = 0; i < r.after->model->nlayers; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "",
                 r.after->model->layers[i].name);
    if (report(&r, pass)->undone) fail_msg("%s: %s", pass, report(&r, pass)->note);
    assert_string_equal(text, layers);
    assert_int_equal(report(&r, pass)->count, count);
    done(&r);
}

#define IMAGE(layers) "  input: [4, 6, 6]\n  layers: [" layers "]\n  loss: mse\n"
#define ROW(layers)   "  input: [6]\n  layers: [" layers "]\n  loss: mse\n"
#define CONV          "conv2d: {out: 4, kernel: 3, padding: 1"

#endif
