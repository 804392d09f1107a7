/* What the stage `benchmark` measures: models, each on every place. */
#ifndef TR_BENCHMARK_MODELS_H
#define TR_BENCHMARK_MODELS_H

#include "optimize/benchmark/benchmark.h"
#include "optimize/stage.h"

enum { TR_BENCHMARK_MODELS = 16, TR_BENCHMARK_PLACES = 8 };
enum { TR_BENCHMARK_AUTO = 3 }; /* besides tr_precision */

typedef struct {
    /* models in their order, each on all places; the stage's parent is the last one */
    tr_bench_model v[TR_BENCHMARK_MODELS * TR_BENCHMARK_PLACES];
    size_t count;
    size_t nmodels;
    tr_network *read[TR_BENCHMARK_MODELS]; /* those that are not the parent */
    tr_config *configs[TR_BENCHMARK_MODELS];
    char *names[TR_BENCHMARK_MODELS];
    double sizes[TR_BENCHMARK_MODELS];
    size_t nplaces, nmissing;
    tr_bench_place places[TR_BENCHMARK_PLACES];
    char place_names[TR_BENCHMARK_PLACES][TR_NAME];
    bool own[TR_BENCHMARK_PLACES]; /* opened here; else the evaluator's */
    tr_bench_missing missing[TR_BENCHMARK_PLACES];
    tr_error first; /* of what is missing */
} tr_benchmark_models;

/* *Local.* The options as written: lists of files, and of places, "cpu", "cuda-fp16"; NULL: not
 * given. TR_CONFIG with the position. */
tr_status tr_benchmark_models_check(const tr_config *c, size_t place, const tr_node *files,
                                    const tr_node *places);
/* *Collective.* Opens and evaluates all. `precision`: tr_precision, or TR_BENCHMARK_AUTO, of places
 * that name none. A place that cannot be had is among `missing`, with the reason; where all are,
 * the first of them is the error. TR_MEMORY, TR_PEER on the others, where a rank has no memory for
 * one. */
tr_status tr_benchmark_models_open(const tr_stage_job *job, const tr_node *files,
                                   const tr_node *places, int precision, tr_benchmark_models *out);
void tr_benchmark_models_close(tr_benchmark_models *m);

#endif
