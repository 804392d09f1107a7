/* Whether two models, and the graphs made of them, are the same. */
#ifndef TR_TESTS_GRAPH_EQUAL_H
#define TR_TESTS_GRAPH_EQUAL_H

#include "tests/unit/graph/models.h"

#define BASE                                                                                       \
    "name: m\ndata: {train: {format: synthetic, samples: 100}}\n"                                  \
    "model: {input: [1], layers: [relu], loss: mse}\n"                                             \
    "train: {batch: 8, epochs: 1, optimizer: {sgd: {lr: 0.1}}}\n"

static inline void ok(tr_status st)
{
    if (st != TR_OK) print_message("%s\n", tr_last_error()->text);
    assert_int_equal(st, TR_OK);
}

static inline tr_config *config_of(const char *text)
{
    tr_config *c = NULL;
    ok(tr_config_open("m.yaml", text, strlen(text), NULL, 0, NULL, &c));
    return c;
}

static inline void same_layer(const tr_layer *a, const tr_layer *b)
{
    assert_string_equal(a->name, b->name);
    assert_string_equal(tr_op_def_name(a->def), tr_op_def_name(b->def));
    assert_int_equal(a->nin, b->nin);
    assert_memory_equal(a->in, b->in, sizeof(int) * (size_t)a->nin);
    assert_memory_equal(&a->output, &b->output, sizeof a->output);
    assert_int_equal(a->nparams, b->nparams);
    assert_memory_equal(a->params, b->params, sizeof a->params);
    assert_int_equal(a->nstates, b->nstates);
    assert_int_equal(a->block, b->block);
}

static inline void same_graph(const tr_model *a, const tr_model *b, bool train, int recompute)
{
    const tr_graph_options o = {.batch = 3,
                                .mode = train ? TR_MODE_TRAIN : TR_MODE_EVALUATE,
                                .passes = TR_PASSES_ALL,
                                .ranks = 2,
                                .recompute = recompute};
    tr_graph *ga = test_graph(a, &o), *gb = test_graph(b, &o);
    char *ta = test_graph_text(ga), *tb = test_graph_text(gb);
    assert_string_equal(ta, tb);
    free(ta);
    free(tb);
    tr_graph_close(ga);
    tr_graph_close(gb);
}

static inline char *written(const tr_model *m)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    ok(tr_model_write(m, 0, f));
    fclose(f);
    return text;
}

static inline void same_model(const tr_model *a, const tr_model *b)
{
    assert_int_equal(a->ninputs, b->ninputs);
    assert_memory_equal(a->inputs, b->inputs, sizeof *a->inputs * a->ninputs);
    assert_int_equal(a->nlayers, b->nlayers);
    for (size_t i = 0; i < a->nlayers; i++) same_layer(&a->layers[i], &b->layers[i]);
    assert_int_equal(a->nparams, b->nparams);
    assert_memory_equal(a->params, b->params, sizeof *a->params * a->nparams);
    assert_int_equal(a->nstates, b->nstates);
    assert_memory_equal(a->states, b->states, sizeof *a->states * a->nstates);
    assert_int_equal(a->nbuckets, b->nbuckets);
    assert_memory_equal(a->buckets, b->buckets, sizeof *a->buckets * a->nbuckets);
    assert_int_equal(a->labels, b->labels);
    assert_int_equal(a->outputs, b->outputs);
    char *ta = written(a), *tb = written(b); /* attributes and the loss */
    assert_string_equal(ta, tb);
    free(ta);
    free(tb);
    same_graph(a, b, false, TR_RECOMPUTE_NONE);
    same_graph(a, b, true, TR_RECOMPUTE_NONE);
    same_graph(a, b, true, TR_RECOMPUTE_BLOCKS);
}

/* The model once more, by way of a config that carries it. */
static inline tr_model *again(const tr_model *m, size_t bucket_bytes)
{
    tr_config *base = config_of(BASE);
    char *text = NULL;
    size_t n;
    tr_model *out = NULL;
    FILE *f = open_memstream(&text, &n);
    ok(tr_model_write_config(m, base, f));
    fclose(f);
    tr_config_close(base);
    tr_config *c = config_of(text);
    tr_status st = tr_model_open(c, bucket_bytes, &out);
    if (st != TR_OK) print_message("%s\n%s", tr_last_error()->text, text);
    assert_int_equal(st, TR_OK);
    tr_config_close(c); /* nothing of the model is in it */
    free(text);
    return out;
}

#endif
