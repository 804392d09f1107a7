/* What the stage `sketch` says of memory and of layers. */
#include "optimize/stages/sketch_told.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "optimize/stages/stages.h"
#include "runtime/config/memory.h"

/* Of this machine's memory for all of its ranks; *limited: by run.memory_limit, which is of
 * programs, too. */
static double memory_left(const tr_stage_job *job, int ranks, bool *limited)
{
    const size_t limit = tr_memory_limit_of(job->config);
    const double have = (double)tr_mem_available();
    const tr_backend *backend;
    void *ctx;
    int threads;
    double held = (double)tr_mem_rss_first();
    tr_evaluator_place(job->evaluator, &backend, &ctx, &threads);
    for (int kind = 0; kind < TR_MEM_KINDS; kind++) held += (double)tr_mem_held((tr_mem_kind)kind);
    held = fmax(held, (double)tr_mem_rss()); /* what it has become */
    const double left = fmax((double)limit - held * ranks, 0);
    *limited = limit > 0 && limit != TR_MEMORY_AUTO && backend->host && left < have;
    return *limited ? left : have;
}

/* The largest terms * rank below `width` with which all is had; 0: there is none. */
static int64_t most_that_fits(const tr_network *n, const tr_sketch_options *o, int64_t width,
                              double left)
{
    const tr_layer *l;
    int64_t fits = 0;
    while (fits + 1 < width) {
        const int64_t middle = fits + (width - fits) / 2;
        if (tr_sketch_needs(n, o, middle, &l) <= left)
            fits = middle;
        else
            width = middle;
    }
    return fits;
}

tr_status tr_sketch_room(const tr_stage_job *job, const tr_sketch_options *so)
{
    char key[TR_STAGE_KEY], need[32], have[32], sides[80] = "",
                                                expected[64] = "match to leave it out";
    bool limited;
    const tr_layer *l;
    const int ranks = tr_comm_topology(job->comm)->local_size;
    const int64_t width = so->choice.terms * so->choice.rank;
    const double nbytes = tr_sketch_needs(job->parent, so, width, &l);
    const double left = memory_left(job, ranks, &limited);
    if (!l || nbytes * ranks <= left) return TR_OK;
    const tr_sketch_cost c = tr_sketch_cost_of(job->parent->model, l, width, so->least_squares);
    const int64_t fits = most_that_fits(job->parent, so, width, left / ranks);
    if (fits > 0)
        snprintf(expected, sizeof expected, "terms * rank of at most %lld", (long long)fits);
    if (fits > c.most && c.most > 0)
        snprintf(sides, sizeof sides, " (of at most %lld they take less arithmetic than the layer)",
                 (long long)c.most);
    return TR_FAIL(
        TR_MEMORY,
        "%s: layer %s of %lld x %lld: sketches in %lld terms of rank %lld take %s of memory while "
        "they are found%s, and %s %s: expected %s%s",
        tr_stage_key(job->config, job->place, "rank", key), l->name, (long long)c.out,
        (long long)c.in, (long long)so->choice.terms, (long long)so->choice.rank,
        tr_format_bytes(nbytes, need, sizeof need), ranks > 1 ? " on each rank" : "",
        tr_format_bytes(left, have, sizeof have),
        limited     ? "of run.memory_limit are left"
        : ranks > 1 ? "are available to this machine's ranks"
                    : "are available",
        expected, sides);
}

void tr_sketch_warn_larger(const tr_model *m, const tr_sketch_options *so)
{
    const tr_sketching s = {m, &so->choice};
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        if (!tr_sketch_chosen(&s, l)) continue;
        const tr_sketch_cost c =
            tr_sketch_cost_of(m, l, so->choice.terms * so->choice.rank, so->least_squares);
        if (c.arithmetic < 1) continue; /* and it has fewer weights, too */
        char less[96] = "no sketch takes less";
        if (c.most > 0)
            snprintf(less, sizeof less, "only terms * rank of at most %lld takes less arithmetic",
                     (long long)c.most);
        tr_log(TR_LOG_WARN,
               "sketch: layer %s: its sketch, terms %lld of rank %lld, has %.0f %% of the weights "
               "and %.0f %% of the arithmetic of the dense %lld x %lld: %s",
               l->name, (long long)so->choice.terms, (long long)so->choice.rank,
               100 * c.parameters[1] / c.parameters[0], 100 * c.arithmetic, (long long)c.out,
               (long long)c.in, less);
    }
}

static const char too_large[] = "its sketch takes no less arithmetic";

/* Why a layer that could be chosen is not; NULL: it has no weights that are multiplied with. */
static const char *why_left(const tr_model *m, const tr_layer *l)
{
    tr_sketch_facts f;
    const char *why = tr_sketch_obstacle(m, l);
    if (!tr_layer_product(l, NULL) && !tr_layer_sketch(m, l, &f)) return NULL;
    return why ? why : too_large;
}

typedef struct {
    char text[TR_ERROR_TEXT];
    size_t n;
} line;

static void TR_PRINTF(2, 3) add(line *to, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(to->text + to->n, sizeof to->text - to->n, fmt, args);
    va_end(args);
    to->n += n > 0 ? (size_t)n : 0;
    if (to->n >= sizeof to->text) to->n = sizeof to->text - 1;
}

static bool is_for(const tr_model *m, size_t i, const char *why)
{
    const char *own = why_left(m, &m->layers[i]);
    return own && strcmp(own, why) == 0;
}

/* "its weight is masked (2 layers: c1, f1)" */
static void add_reason(const tr_model *m, const char *why, line *to)
{
    enum { NAMED = 4 };
    size_t n = 0, named = 0;
    for (size_t i = 0; i < m->nlayers; i++) n += is_for(m, i, why);
    add(to, "%s%s (%zu layer%s: ", to->n > 0 ? "; " : "", why, n, n == 1 ? "" : "s");
    for (size_t i = 0; i < m->nlayers && named < NAMED; i++)
        if (is_for(m, i, why)) add(to, "%s%s", named++ > 0 ? ", " : "", m->layers[i].name);
    add(to, n > NAMED ? ", ...)" : ")");
}

void tr_sketch_warn_none(const tr_model *m)
{
    line said = {.n = 0};
    bool large = false;
    for (size_t i = 0; i < m->nlayers; i++) {
        const char *why = why_left(m, &m->layers[i]);
        bool again = !why;
        for (size_t k = 0; k < i && !again; k++) again = is_for(m, k, why);
        if (again) continue;
        add_reason(m, why, &said);
        large = large || strcmp(why, too_large) == 0;
    }
    tr_log(TR_LOG_WARN, "sketch: no layer is chosen: %s%s",
           said.n > 0 ? said.text : "the model has no linear layer or convolution",
           large ? ": match names layers all the same, smaller terms or rank take less" : "");
}
