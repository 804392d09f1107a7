/* A small model and snapshot made by hand, and a scratch folder: what the store's tests share. */
#ifndef TR_TEST_STORE_FIXTURE_H
#define TR_TEST_STORE_FIXTURE_H

#include "runtime/store/internal.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <unistd.h>
#include <cmocka.h>

#define NPARAMS    4
#define NSTATES    2
#define FLAT       512
#define STATE_FLAT 32
#define NSTEPS     50
#define NEVALS     5

typedef struct {
    char folder[64], path[96];
    tr_param params[NPARAMS];
    tr_state states[NSTATES];
    tr_model model;
    float p[FLAT], s[STATE_FLAT], m1[FLAT], m2[FLAT];
    struct tr_history_step steps[NSTEPS];
    struct tr_history_eval evals[NEVALS];
    int64_t confusion[9];
    tr_history history;
    tr_snapshot snapshot;
} fixture;

static inline void fill(float *v, size_t n, uint32_t stream)
{
    for (size_t i = 0; i < n; i++)
        v[i] = tr_uniform(tr_philox_at(1, TR_RNG_TEST, stream, i, 0).v[0]) - 0.5f;
}

static inline void set_param(fixture *f, int i, const char *layer, const char *name, size_t offset,
                             int ndim, const int64_t *dims)
{
    tr_param *p = &f->params[i];
    snprintf(p->layer, sizeof p->layer, "%s", layer);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->ndim = ndim;
    p->count = 1;
    for (int k = 0; k < ndim; k++) p->count *= (size_t)(p->dims[k] = dims[k]);
    p->offset = offset;
}

static inline void fixture_model(fixture *f)
{
    memset(f, 0, sizeof *f);
    set_param(f, 0, "conv2d1", "weight", 320, 4, (int64_t[]){4, 3, 3, 3});
    set_param(f, 1, "batchnorm1", "weight", 304, 1, (int64_t[]){4});
    set_param(f, 2, "head", "weight", 16, 2, (int64_t[]){10, 28});
    set_param(f, 3, "head", "bias", 0, 1, (int64_t[]){10});
    for (int i = 0; i < NSTATES; i++) {
        tr_state *s = &f->states[i];
        snprintf(s->layer, sizeof s->layer, "batchnorm1");
        snprintf(s->name, sizeof s->name, i ? "running_var" : "running_mean");
        s->ndim = 1;
        s->count = (size_t)(s->dims[0] = 4);
        s->offset = (size_t)i * 16;
    }
    f->model = (tr_model){.nparams = NPARAMS,
                          .params = f->params,
                          .nstates = NSTATES,
                          .states = f->states,
                          .flat_count = FLAT,
                          .state_count = STATE_FLAT,
                          .nparameters = 108 + 4 + 280 + 10};
}

/* Everything differs between two steps, so that a mixed-up file shows. */
static inline void fixture_values(fixture *f, uint64_t step)
{
    fill(f->p, FLAT, (uint32_t)step * 4 + 1);
    fill(f->s, STATE_FLAT, (uint32_t)step * 4 + 2);
    fill(f->m1, FLAT, (uint32_t)step * 4 + 3);
    fill(f->m2, FLAT, (uint32_t)step * 4 + 4);
    f->p[16] = NAN;
    f->p[17] = -0.0f;
    f->p[18] = INFINITY;
    for (int i = 0; i < NSTEPS; i++)
        f->steps[i] = (struct tr_history_step){(uint64_t)i * 10, (uint64_t)i / 5, 2.0 / (1 + i),
                                               0.001 * i,        1.0 + i,         0.5 * i};
    for (int i = 0; i < NEVALS; i++)
        f->evals[i] = (struct tr_history_eval){
            (uint64_t)(i + 1) * 100, 1.0 - 0.1 * i, 0.5 + 0.1 * i, NAN, NAN, NAN, NAN, NAN};
    f->evals[4].loss = 0.75; /* the best is the one before: 0.7 at 400 */
    for (int i = 0; i < 9; i++) f->confusion[i] = i % 4 ? i : 30 + i;
    f->history = (tr_history){.nsteps = NSTEPS,
                              .nevals = NEVALS,
                              .steps = f->steps,
                              .evals = f->evals,
                              .classes = 3,
                              .confusion = f->confusion};
    tr_train_state t = {.step = step,
                        .epoch = 7,
                        .updates = 198,
                        .seed = 7,
                        .loss_scale = 65536,
                        .loss_scale_good = 12,
                        .lr_factor = 0.25,
                        .plateau_best = NAN,
                        .plateau_bad = 3,
                        .best = 0.7,
                        .best_step = 400,
                        .stop_bad = 1,
                        .rollbacks = 1,
                        .skipped = 2,
                        .samples = 1437,
                        .batch = 64,
                        .micro_batches = 2,
                        .seconds = 12.5};
    f->snapshot = (tr_snapshot){.checkpoint = true,
                                .config_text = "name: digits\nseed: 7\noutput: \"runs/\xc3\xa9\"\n",
                                .params = f->p,
                                .states = f->s,
                                .nslots = 2,
                                .slot_names = {"exp_avg", "exp_avg_sq"},
                                .slots = {f->m1, f->m2},
                                .train = t,
                                .history = &f->history};
    memset(f->snapshot.parent_sha256, 'a', 64);
}

static inline int fixture_open(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    fixture_model(f);
    fixture_values(f, 200);
    snprintf(f->folder, sizeof f->folder, "store-XXXXXX");
    if (!mkdtemp(f->folder)) return -1;
    snprintf(f->path, sizeof f->path, "%s/a.h5", f->folder);
    *state = f;
    return 0;
}

static inline int fixture_close(void **state)
{
    fixture *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->folder);
    int rc = system(command);
    free(f);
    return rc;
}

/* What was read back, in arrays of its own. */
typedef struct {
    float p[FLAT], s[STATE_FLAT], m1[FLAT], m2[FLAT];
    tr_snapshot snapshot;
    tr_history history;
} readback;

static inline tr_status read_back(const fixture *f, const char *path, readback *r)
{
    memset(r, 0, sizeof *r);
    r->snapshot = (tr_snapshot){.params = r->p,
                                .states = r->s,
                                .nslots = 2,
                                .slot_names = {"exp_avg", "exp_avg_sq"},
                                .slots = {r->m1, r->m2}};
    return tr_store_read(path, &f->model, &r->snapshot, &r->history);
}

static inline bool same_params(const fixture *f, const float *a, const float *b)
{
    for (int i = 0; i < NPARAMS; i++)
        if (memcmp(a + f->params[i].offset, b + f->params[i].offset, f->params[i].count * 4) != 0)
            return false;
    return true;
}

/* Bit for bit what fixture_values() made. */
static inline bool same_snapshot(const fixture *f, const readback *r)
{
    for (int i = 0; i < NSTATES; i++)
        if (memcmp(f->s + f->states[i].offset, r->s + f->states[i].offset, 16) != 0) return false;
    return same_params(f, f->p, r->p) && same_params(f, f->m1, r->m1) &&
           same_params(f, f->m2, r->m2) && r->snapshot.checkpoint &&
           memcmp(&f->snapshot.train, &r->snapshot.train, sizeof(tr_train_state)) == 0 &&
           strcmp(f->snapshot.parent_sha256, r->snapshot.parent_sha256) == 0 &&
           r->history.nsteps == NSTEPS && r->history.nevals == NEVALS && r->history.classes == 3 &&
           memcmp(r->history.steps, f->steps, sizeof f->steps) == 0 &&
           memcmp(r->history.evals, f->evals, sizeof f->evals) == 0 &&
           memcmp(r->history.confusion, f->confusion, sizeof f->confusion) == 0;
}

/* The fixture with rows of other types, its values on what those hold. */
static inline void set_stored(fixture *f)
{
    tr_param *conv = &f->params[0], *head = &f->params[2];
    tr_state *scale = &f->states[0];
    snprintf(scale->layer, sizeof scale->layer, "conv2d1");
    snprintf(scale->name, sizeof scale->name, TR_SCALE_STATE);
    f->snapshot.checkpoint = false;
    conv->stored = TR_I8;
    conv->scale = 0;
    head->stored = TR_F16;
    f->params[3].scale = head->scale = -1;
    for (int c = 0; c < 4; c++) f->s[c] = 0.0173f * (float)(c + 1);
    for (size_t i = 0; i < conv->count; i++)
        f->p[conv->offset + i] = (float)((int)(i * 37 % 255) - 127) * f->s[i / 27];
    for (size_t i = 0; i < head->count; i++)
        f->p[head->offset + i] = tr_f16_to_f32(tr_f32_to_f16(0.37f * (float)i - 20));
}

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        tr_status got_ = (expr);                                                                   \
        if (got_ != TR_OK) fail_msg("%s: %s", #expr, tr_last_error()->text);                       \
    } while (0)
#define assert_error(expr, status, word)                                                           \
    do {                                                                                           \
        assert_int_equal((expr), (status));                                                        \
        if (!strstr(tr_last_error()->text, (word)))                                                \
            fail_msg("\"%s\" is not in \"%s\"", (word), tr_last_error()->text);                    \
    } while (0)

/* The config that the file says it was made of. */
static inline void check_config(const char *path, const char *want)
{
    tr_index ix;
    assert_ok(tr_index_open(path, &ix));
    const tr_attr *config = tr_attrs_get(&ix.root, "config");
    assert_non_null(config);
    assert_int_equal(config->kind, TR_ATTR_TEXT);
    assert_string_equal(config->text, want);
    tr_index_close(&ix);
}

#endif
