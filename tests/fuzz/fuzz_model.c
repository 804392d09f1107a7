/* links: trireme_graph
 * libFuzzer: a config's model, from its text to its graphs: any config ends in a model or in an
 * error of the config with a text, each model in graphs of each kind or in such an error, and
 * nothing is left.
 *   fuzz_model NEW_FOLDER tests/fuzz/corpus/model -max_len=4096 -max_total_time=600
 * Inputs are changed as trees (yaml_change.h). The corpus: a config of ours in small, and the
 * layers of the unit tests. */
#include <stdlib.h>

#include "tests/fuzz/yaml_change.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed)
{
    return yaml_mutate(bytes, n, most, seed);
}

/* A failure has a text, and is the user's to mend. */
static bool worked(tr_status st, const char *what)
{
    if (st == TR_OK) return true;
    const int code = tr_status_exit_code(st);
    if (*tr_last_error()->text && (code == 2 || st == TR_UNSUPPORTED)) return false;
    fprintf(stderr, "%s: %d: %s\n", what, (int)st, tr_last_error()->text);
    abort();
}

static void make_graphs(const tr_config *c, const tr_model *m)
{
    static const tr_mode modes[] = {TR_MODE_TRAIN, TR_MODE_EVALUATE, TR_MODE_INFER};
    for (size_t i = 0; i < TR_COUNT(modes); i++) {
        tr_graph_options o = {.batch = 2,
                              .mode = modes[i],
                              .precision = (tr_precision)c->train.precision,
                              .ranks = 1,
                              .passes = TR_PASSES_ALL & ~tr_graph_skip(c),
                              .trained = true};
        tr_graph *g = NULL;
        if (worked(tr_graph_open(m, &o, &g), "graph")) tr_graph_close(g);
    }
    if (tr_graph_decodes(m) == TR_OK) {
        const tr_graph_options o = {.batch = 2,
                                    .mode = TR_MODE_INFER,
                                    .ranks = 1,
                                    .passes = TR_PASSES_ALL,
                                    .decode = {.rows = 1, .cache = 4}};
        tr_graph *g = NULL;
        if (worked(tr_graph_open(m, &o, &g), "a graph that decodes")) tr_graph_close(g);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_config *c = NULL;
    tr_model *m = NULL;
    tr_log_init(0, 1, TR_LOG_ERROR);
    if (worked(tr_config_open("f", (const char *)bytes, n, NULL, 0, NULL, &c), "config") &&
        worked(tr_model_open(c, 0, &m), "model"))
        make_graphs(c, m);
    tr_model_close(m);
    tr_config_close(c);
    if (tr_mem_held(TR_MEM_OTHER) != held) abort();
    return 0;
}
