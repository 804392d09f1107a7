#include "runtime/config/level.h"

#include "runtime/config/internal.h"

#include <string.h>

const char *const tr_level_names[] = {"custom",   "basic",     "advanced",        "ultra",
                                      "gpu_fast", "cpu_small", "high_throughput", NULL};
enum { BASIC = 1, ADVANCED, ULTRA, GPU_FAST, CPU_SMALL, HIGH_THROUGHPUT, LEVELS };
#define IN(level) (1u << (level))

static const struct {
    unsigned levels;
    const char *path, *value, *why;
} rows[] = {
    {IN(GPU_FAST), "device", "cuda", "a GPU, or an error"},
    {IN(CPU_SMALL), "device", "cpu", "the host's memory alone counts"},
    {IN(BASIC), "train.precision", "fp32", "numbers as in any other framework"},
    {IN(ULTRA) | IN(GPU_FAST), "train.precision", "bf16", "half the bytes, tensor cores"},
    {IN(BASIC), "train.recompute", "none", "each op runs once, as it is written"},
    {IN(ADVANCED) | IN(ULTRA) | IN(GPU_FAST) | IN(HIGH_THROUGHPUT), "run.memory_limit", "auto",
     "what does not fit is made to fit, by planning"},
    {IN(CPU_SMALL), "run.memory_limit", "500MB", "of a node's ranks together, programs and all"},
    {IN(CPU_SMALL), "data.cache_mb", "64", "larger sources stream"},
    {IN(CPU_SMALL), "data.workers", "1", "each has buffers of its own"},
    {IN(CPU_SMALL), "data.prefetch", "1", "batches that wait take memory"},
    {IN(ULTRA) | IN(GPU_FAST) | IN(HIGH_THROUGHPUT), "data.workers", "4",
     "the loader keeps up with a fast step"},
    {IN(ULTRA) | IN(GPU_FAST) | IN(HIGH_THROUGHPUT), "data.prefetch", "4", "uneven reads"},
    {IN(BASIC), "run.deterministic", "on", "the same bits in every run"},
    {IN(ULTRA) | IN(GPU_FAST) | IN(HIGH_THROUGHPUT), "run.deterministic", "off",
     "the fastest algorithms, whatever order they add in"},
    {IN(ULTRA) | IN(GPU_FAST) | IN(HIGH_THROUGHPUT), "run.benchmark", "true",
     "GPUs: algorithms are timed once, at the start"},
    {IN(BASIC), "run.cuda_graph", "off",
     "kernels are launched one by one, so that a profiler "
     "shows each"},
    {IN(ULTRA) | IN(HIGH_THROUGHPUT), "train.log_every", "100", "fewer looks at what a step made"},
};

static const char *const meanings[LEVELS] = {
    [BASIC] = "to see and compare what happens: one way, the same bits each time",
    [ADVANCED] = "for most: what does not fit is made to fit; only the order of sums may change",
    [ULTRA] = "everything for speed, where bf16 is good enough; on CPUs, too",
    [GPU_FAST] = "the same on GPUs, or not at all",
    [CPU_SMALL] = "a laptop, or a small container: under 500 MB",
    [HIGH_THROUGHPUT] = "samples a second, in the precision that the config has"};

/* Whether the key is there, or something that it cannot stand below. */
static bool is_given(const tr_node *n, const char *path)
{
    while (*path) {
        char word[TR_YAML_KEY + 1];
        const size_t length = strcspn(path, ".");
        snprintf(word, sizeof word, "%.*s", (int)length, path);
        n = tr_node_get(n, word);
        if (tr_node_empty(n)) return false;
        path += length + (path[length] == '.');
        if (*path && n->kind != TR_NODE_MAP) return true; /* its reader says what is wrong */
    }
    return true;
}

static const tr_node *level_node(const tr_node *root)
{
    return tr_node_get(tr_node_get(root, "run"), "level");
}

static int level_of(const tr_node *root)
{
    const tr_node *n = level_node(root);
    for (int i = 0; n && n->kind == TR_NODE_SCALAR && tr_level_names[i]; i++)
        if (strcmp(n->text, tr_level_names[i]) == 0) return i;
    return 0;
}

/* Errors in what a level set are told where the level itself was chosen. */
static tr_status set_row(tr_document *doc, size_t i)
{
    tr_status st = TR_OK;
    const tr_node *level = level_node(doc->root);
    const tr_place at = {level->source, level->line, level->column};
    tr_node *key = tr_node_scalar(doc->storage, at, rows[i].path, strlen(rows[i].path), false);
    tr_node *value = tr_node_scalar(doc->storage, at, rows[i].value, strlen(rows[i].value), false);
    if (!key || !value) return tr_last_status();
    TR_TRY(tr_document_set(doc, key, value));
out:
    return st;
}

tr_status tr_level_apply(tr_document *doc, uint64_t *set)
{
    tr_status st = TR_OK;
    const int level = level_of(doc->root);
    *set = 0;
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        if (!(rows[i].levels & IN(level)) || is_given(doc->root, rows[i].path)) continue;
        TR_TRY(set_row(doc, i));
        *set |= UINT64_C(1) << i;
    }
out:
    return st;
}

void tr_level_write(const tr_config *c, FILE *to)
{
    const char *name = tr_level_names[c->run.level];
    if (c->run.level == 0) return;
    fprintf(to, "# run.level %s: %s\n", name, meanings[c->run.level]);
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        if (!(rows[i].levels & IN(c->run.level))) continue;
        const bool set = c->run.level_set & UINT64_C(1) << i;
        fprintf(to, set ? "#   sets %s: %s (%s)\n" : "#   leaves %s, which is given\n",
                rows[i].path, rows[i].value, rows[i].why);
    }
}

void tr_level_help(FILE *to)
{
    fputs("\n### Levels\n\n| level | for | sets, where the key is not given |\n"
          "| --- | --- | --- |\n| custom | | nothing |\n",
          to);
    for (int level = BASIC; level < LEVELS; level++) {
        fprintf(to, "| %s | %s |", tr_level_names[level], meanings[level]);
        const char *comma = " ";
        for (size_t i = 0; i < TR_COUNT(rows); i++) {
            if (!(rows[i].levels & IN(level))) continue;
            fprintf(to, "%s`%s: %s` (%s)", comma, rows[i].path, rows[i].value, rows[i].why);
            comma = "; ";
        }
        fputs(" |\n", to);
    }
}
