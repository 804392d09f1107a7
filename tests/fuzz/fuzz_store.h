/* What the fuzzers of run files share: a small model, what its file holds, and all that is read of
 * a file. */
#ifndef TR_FUZZ_STORE_H
#define TR_FUZZ_STORE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/store/store.h"

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "%s: %s\n", what, tr_last_error()->text);
    abort();
}

/* A model of two layers and a state, and what its file holds. */
typedef struct {
    tr_param params[2];
    tr_state state;
    tr_model model;
    float p[64], s[16], m[64];
    struct tr_history_step steps[3];
    struct tr_history_eval evals[2];
    int64_t confusion[4];
    tr_history history;
    tr_snapshot snapshot;
} good;

static void make(good *g)
{
    memset(g, 0, sizeof *g);
    g->params[0] = (tr_param){
        .layer = "linear1", .name = "weight", .ndim = 2, .dims = {4, 5}, .count = 20, .offset = 16};
    g->params[1] =
        (tr_param){.layer = "linear1", .name = "bias", .ndim = 1, .dims = {4}, .count = 4};
    g->state = (tr_state){.layer = "norm", .name = "mean", .ndim = 1, .dims = {4}, .count = 4};
    for (int i = 0; i < 64; i++) g->p[i] = g->m[i] = (float)i / 7;
    g->model = (tr_model){.nparams = 2,
                          .nstates = 1,
                          .params = g->params,
                          .states = &g->state,
                          .flat_count = 64,
                          .state_count = 16};
    for (int i = 0; i < 3; i++)
        g->steps[i] = (struct tr_history_step){i, 0, 1.0 / (i + 1), 1, 1, i};
    for (int i = 0; i < 2; i++)
        g->evals[i] = (struct tr_history_eval){i, 0.5, 0.5, 0.5, NAN, NAN, NAN, NAN};
    g->history = (tr_history){.nsteps = 3,
                              .nevals = 2,
                              .steps = g->steps,
                              .evals = g->evals,
                              .classes = 2,
                              .confusion = g->confusion};
    g->snapshot = (tr_snapshot){.checkpoint = true,
                                .config_text = "name: fuzz\n",
                                .params = g->p,
                                .states = g->s,
                                .nslots = 1,
                                .slot_names = {"m"},
                                .slots = {g->m},
                                .train = {.step = 9, .seed = 3},
                                .history = &g->history};
}

static void check(const char *path, const good *g, bool must_match)
{
    good r;
    tr_history h = {0};
    FILE *null = fopen("/dev/null", "w");
    bool same = false;
    make(&r);
    r.params[0].stored = g->params[0].stored;
    r.snapshot.nslots = g->snapshot.nslots;
    memset(r.p, 0, sizeof r.p);
    memset(r.m, 0, sizeof r.m);
    r.snapshot.train = (tr_train_state){0};
    tr_status whole = tr_store_verify(path, NULL);
    tr_status st = tr_store_read(path, &r.model, &r.snapshot, &h);
    need(st == TR_OK || st == TR_FILE || st == TR_MEMORY, "reading");
    need(whole != TR_OK || st == TR_OK || tr_last_error()->text[0], "an error without a text");
    if (st == TR_OK && must_match)
        need(memcmp(r.p + 16, g->p + 16, 80) == 0 && memcmp(r.p, g->p, 16) == 0 &&
                 memcmp(r.m + 16, g->m + 16, 80) == 0 && r.snapshot.train.step == 9 &&
                 r.snapshot.train.seed == 3 && h.nsteps == 3 &&
                 memcmp(h.steps, g->steps, sizeof g->steps) == 0,
             "a damaged file reads as whole");
    tr_history_free(&h);
    st = tr_store_inspect(path, true, 60, null);
    need((st == TR_OK) == (whole == TR_OK) || st == TR_FILE, "inspect --json");
    st = tr_store_inspect(path, false, 60, null);
    need((st == TR_OK) == (whole == TR_OK) || st == TR_FILE, "inspect");
    if (tr_store_diff(path, path, true, null, &same) == TR_OK)
        need(same == (whole == TR_OK) || !same || st == TR_FILE, "diff");
    fclose(null);
}

#endif
