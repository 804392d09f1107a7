/* Models from layer lists as text, for the graph tests. */
#ifndef TEST_MODELS_H
#define TEST_MODELS_H

#include "runtime/graph/graph.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct {
    char *text;
    tr_config *config;
    tr_model *model;
} test_model;

/* `model`: what stands below `model:`, two spaces in. The file is called m.yaml, its `model:` is on
 * line 3. */
static inline tr_status test_model_try(test_model *t, const char *model, size_t bucket_bytes)
{
    *t = (test_model){.text =
                          tr_sprintf("name: m\n"
                                     "data: {train: {format: synthetic, samples: 100}}\n"
                                     "model:\n%s"
                                     "train: {batch: 8, epochs: 1, optimizer: {sgd: {lr: 0.1}}}\n",
                                     model)};
    assert_non_null(t->text);
    tr_status st = tr_config_open("m.yaml", t->text, strlen(t->text), NULL, 0, NULL, &t->config);
    return st != TR_OK ? st : tr_model_open(t->config, bucket_bytes, &t->model);
}

static inline void test_model_close(test_model *t)
{
    tr_model_close(t->model);
    tr_config_close(t->config);
    tr_free(t->text);
    *t = (test_model){0};
}

static inline test_model test_model_open(const char *model)
{
    test_model t;
    tr_status st = test_model_try(&t, model, 0);
    if (st != TR_OK) print_message("%s\n", tr_last_error()->text);
    assert_int_equal(st, TR_OK);
    return t;
}

/* Of a structure from [x, NAME], so many layers read the lengths NAME, whatever its name is: also
 * one that layers inside have. */
static inline void test_model_lengths(const char *layers, const char *const *names, int readers)
{
    for (size_t i = 0; names[i]; i++) {
        char *model = tr_sprintf("  inputs: {x: [6, 8], %s: [1]}\n  layers:\n"
                                 "    - %s, from: [x, %s]}\n  loss: mse\n",
                                 names[i], layers, names[i]);
        test_model t = test_model_open(model);
        int found = 0;
        for (size_t k = 0; k < t.model->nlayers; k++) {
            const tr_layer *l = &t.model->layers[k];
            for (int n = 0; n < l->nin; n++) {
                if (l->in[n] != 1) continue;
                assert_int_equal(n, l->nin - 1);
                assert_int_equal(l->ids, 1u << n);
                found++;
            }
        }
        if (found != readers) fail_msg("%s: %d layers read the lengths", names[i], found);
        test_model_close(&t);
        tr_free(model);
    }
}

/* Opening must fail with exactly this status and text. */
static inline void test_model_fails(const char *model, tr_status status, const char *text)
{
    test_model t;
    tr_status st = test_model_try(&t, model, 0);
    if (st == TR_OK) print_message("opened: %s\n", model);
    assert_int_not_equal(st, TR_OK);
    assert_string_equal(tr_last_error()->text, text);
    assert_int_equal(st, status);
    test_model_close(&t);
}

static inline tr_graph *test_graph(const tr_model *m, const tr_graph_options *o)
{
    tr_graph *g = NULL;
    tr_status st = tr_graph_open(m, o, &g);
    if (st != TR_OK) print_message("%s\n", tr_last_error()->text);
    assert_int_equal(st, TR_OK);
    return g;
}

/* The printed graph, to be freed with free(). */
static inline char *test_graph_text(const tr_graph *g)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    tr_graph_print(g, f);
    fclose(f);
    return text;
}

static inline void test_graph_is(const char *model, const tr_graph_options *o, const char *expected)
{
    test_model t = test_model_open(model);
    tr_graph *g = test_graph(t.model, o);
    char *text = test_graph_text(g);
    assert_string_equal(text, expected);
    free(text);
    tr_graph_close(g);
    test_model_close(&t);
}

#define TEST_RESNET_STAGE(change, n, stride)                                                       \
    "    - residual:\n"                                                                            \
    "        body:\n"                                                                              \
    "          - conv2d: {out: " #n ", kernel: 3, padding: 1, stride: " #stride ", bias: false}\n" \
    "          - batchnorm\n"                                                                      \
    "          - relu\n"                                                                           \
    "          - conv2d: {out: " #n ", kernel: 3, padding: 1, bias: false}\n"                      \
    "          - batchnorm\n" change "    - relu\n"                                                \
    "    - repeat:\n"                                                                              \
    "        times: 2\n"                                                                           \
    "        layers:\n"                                                                            \
    "          - residual:\n"                                                                      \
    "              body:\n"                                                                        \
    "                - conv2d: {out: " #n ", kernel: 3, padding: 1, bias: false}\n"                \
    "                - batchnorm\n"                                                                \
    "                - relu\n"                                                                     \
    "                - conv2d: {out: " #n ", kernel: 3, padding: 1, bias: false}\n"                \
    "                - batchnorm\n"                                                                \
    "          - relu\n"
#define TEST_RESNET_CHANGE(n)                                                                      \
    "        shortcut:\n"                                                                          \
    "          - conv2d: {out: " #n ", kernel: 1, stride: 2, bias: false}\n"                       \
    "          - batchnorm\n"
#define TEST_RESNET20                                                                              \
    "  input: [3, 32, 32]\n"                                                                       \
    "  layers:\n"                                                                                  \
    "    - conv2d: {out: 16, kernel: 3, padding: 1, bias: false}\n"                                \
    "    - batchnorm\n"                                                                            \
    "    - relu\n" TEST_RESNET_STAGE("", 16, 1) TEST_RESNET_STAGE(TEST_RESNET_CHANGE(32), 32, 2)   \
        TEST_RESNET_STAGE(TEST_RESNET_CHANGE(64), 64, 2) "    - global_avgpool\n"                  \
                                                         "    - flatten\n"                         \
                                                         "    - linear: {out: 10}\n"               \
                                                         "  loss: cross_entropy\n"

#endif
