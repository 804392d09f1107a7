/* A config from what a test varies: the text below `train:`, as a flow map's inside. */
#ifndef TR_TEST_TRAINER_GIVEN_H
#define TR_TEST_TRAINER_GIVEN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "runtime/config/config.h"
#include "runtime/graph/graph.h"

static inline tr_config *given(const char *model, const char *train)
{
    tr_config *c = NULL;
    char *text = tr_sprintf("name: test\ndata: {train: {format: synthetic, samples: 100}, "
                            "eval: {format: synthetic, samples: 50}}\n"
                            "model:\n%strain: {batch: 32, steps: 100, %s}\n",
                            model, train);
    assert_non_null(text);
    if (tr_config_open("test.yaml", text, strlen(text), NULL, 0, NULL, &c) != TR_OK)
        fail_msg("%s\n%s", tr_last_error()->text, text);
    tr_free(text);
    return c;
}

#define GIVEN_MLP                                                                                  \
    "  input: [6]\n  layers:\n    - linear: {out: 8, name: one}\n    - batchnorm: {name: norm}\n"  \
    "    - relu\n    - linear: {out: 3, name: two}\n  loss: cross_entropy\n"

#endif
