/* Has a backend prepare a kernel for every op of the registry, in one type after the other, from
 * the graphs of the gradient cases: training for two ranks, with and without passes, and
 * evaluation. */
#ifndef TR_TEST_EVERY_KERNEL_H
#define TR_TEST_EVERY_KERNEL_H

#include "gradient_cases.h"
#include "model_harness.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/device/backend.h"

/* The ops that had no kernel in this type before. */
static inline void prepare_graph(const tr_backend *b, void *ctx, void *team, const tr_graph *g,
                                 bool *seen)
{
    for (size_t i = 0; i < g->nops; i++) {
        const tr_op *op = &g->ops[i];
        const size_t place = tr_op_place(op->def);
        if (place >= tr_op_count()) fail_msg("%s is not in the list of ops", tr_op_name(op));
        if (seen[place] || tr_op_is_view(g, op)) continue;
        const tr_dtype type = tr_op_dtype(g, op);
        const char *why = b->kernels->unsupported(ctx, op->def, type);
        if (why) fail_msg("%s, %s: %s", tr_op_name(op), tr_dtype_name(type), why);
        tr_kernel *k = NULL;
        if (b->kernels->prepare(team, g, op, &k) != TR_OK)
            fail_msg("%s, %s: %s", tr_op_name(op), tr_dtype_name(type), tr_last_error()->text);
        assert_non_null(k->run);
        assert_non_null(k->impl);
        k->close(k);
        seen[place] = true;
    }
}

static inline void prepare_every_op(const tr_backend *b, void *ctx, tr_precision precision)
{
    bool *seen = calloc(tr_op_count(), sizeof *seen);
    assert_non_null(seen);
    void *team = NULL;
    assert_int_equal(tr_team_open(b, ctx, 1, &team), TR_OK);
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char *text = case_text(&cases[i]);
        tr_config *c = NULL;
        tr_model *m = NULL;
        assert_int_equal(tr_config_open(cases[i].name, text, strlen(text), NULL, 0, NULL, &c),
                         TR_OK);
        assert_int_equal(tr_model_open(c, 0, &m), TR_OK);
        mh_distillation distillation;
        const tr_distill *distill = mh_distill(c, &distillation);
        for (int mode = 0; mode < 4; mode++) {
            const tr_graph_options o = {.batch = 3,
                                        .mode = mode < 2    ? TR_MODE_TRAIN
                                                : mode == 2 ? TR_MODE_EVALUATE
                                                            : TR_MODE_INFER,
                                        .int8 = tr_graph_int8(b->kernels->unsupported, ctx),
                                        .precision = precision,
                                        .sync_batchnorm = true,
                                        .ranks = 2,
                                        .distill = distill,
                                        .passes = mode != 1 ? TR_PASSES_ALL : 0};
            tr_graph *g = NULL;
            assert_int_equal(tr_graph_open(m, &o, &g), TR_OK);
            prepare_graph(b, ctx, team, g, seen);
            tr_graph_close(g);
        }
        tr_features_free(distillation.read, distillation.count);
        tr_model_close(m);
        tr_config_close(c);
        tr_free(text);
    }
    for (size_t i = 0; i < tr_op_count(); i++) {
        if (seen[i]) continue;
        const char *name = tr_op_def_name(tr_op_at(i));
        const char *why = b->kernels->unsupported(ctx, tr_op_at(i), TR_F32);
        if (!why) fail_msg("no gradient case has the op %s", name);
        print_message("%s: %s\n", name, why);
    }
    free(seen);
    tr_team_close(b, team);
}

#endif
