/* The stage `sketch`: dense layers become sketched ones of the same names (optimize/sketch). */
#include "optimize/stages/stages.h"

#include <string.h>

#include "optimize/sketch/sketch.h"
#include "optimize/stages/sketch_told.h"
#include "runtime/config/patterns.h"
#include "runtime/graph/facts.h"

enum { LEAST_SQUARES, SKETCH };
static const char *const fits[] = {"least_squares", "sketch", NULL};

typedef struct {
    tr_stage_common common;
    const tr_node *match;
    int64_t terms, rank;
    int fit;
} sketch_options;

#define AT(field) offsetof(sketch_options, field)
static const tr_field fields[] = {
    TR_STAGE_COMMON(sketch_options),
    TR_NODE(
        "match", AT(match), "",
        "a pattern of layers' names, or a list of them (* stands for any text); absent: all whose "
        "sketch takes less arithmetic"),
    TR_INT("terms", AT(terms), "1", 1, 4096, NULL, "of the sketched layers"),
    TR_INT("rank", AT(rank), "32", 1, 1 << 20, NULL, "of the sketched layers"),
    TR_CHOICE(
        "fit", AT(fit), fits, "least_squares",
        "least_squares: the sketches that come closest to the weights; sketch: plain sketches of "
        "them, from which an untrained layer starts"),
    TR_END,
};

static tr_status check(const tr_config *c, size_t place)
{
    char key[TR_STAGE_KEY];
    return tr_patterns_check(((const sketch_options *)c->pipeline.items[place].options)->match,
                             tr_stage_key(c, place, "match", key));
}

static tr_sketch_options options_of(const sketch_options *o)
{
    return (tr_sketch_options){.choice = {o->match, o->terms, o->rank},
                               .least_squares = o->fit == LEAST_SQUARES};
}

/* What stages before leave of every weight that could be sketched; NULL: nothing is in the way. */
static const char *in_the_way(unsigned left)
{
    return left & TR_LEAVES_MASKS      ? "prune stands before and sets weights to 0 that stay so"
           : left & TR_LEAVES_ALL_INT8 ? "quantize stands before and keeps their weights in 8 bits"
           : left & TR_LEAVES_16_BITS  ? "quantize stands before and keeps their weights in 16 bits"
                                       : NULL;
}

/* By what it takes as it is now: `prune` makes layers narrower, and leaves zeros that stay. */
static bool is_certain(const tr_config *c, size_t place, const sketch_options *o)
{
    bool certain = o->common.on_miss == TR_MISS_FAIL;
    for (size_t i = 0; !o->match && i < place; i++)
        certain = certain && strcmp(tr_stage_name(c, i), tr_stage_prune.name) != 0;
    return certain;
}

bool tr_stage_sketched(const tr_stage_outlook *o, const tr_layer *l)
{
    const tr_config *c = o->config;
    for (size_t i = 0; !o->runs && i < o->place; i++) {
        const sketch_options *before = c->pipeline.items[i].options;
        if (strcmp(tr_stage_name(c, i), tr_stage_sketch.name) != 0 || !is_certain(c, i, before))
            continue;
        const tr_sketch_options so = options_of(before);
        const tr_sketching s = {o->model, &so.choice};
        if (tr_sketch_chosen(&s, l)) return true;
    }
    return false;
}

/* Why stages before leave no layer that `match` names as it must be; NULL: some are. */
static const char *why_none(const tr_stage_outlook *o, const tr_sketching *s)
{
    const char *held = in_the_way(o->left);
    bool any = false;
    if (o->runs || !s->choice->match) return NULL;
    if (held) return held;
    for (size_t i = 0; i < o->model->nlayers && !any; i++) {
        const tr_layer *l = &o->model->layers[i];
        any = tr_sketch_chosen(s, l) && !tr_stage_sketched(o, l);
    }
    return any ? NULL : "a sketch stands before that takes them";
}

static tr_status check_model(const tr_stage_outlook *o)
{
    char key[TR_STAGE_KEY];
    const tr_sketch_options so = options_of(o->config->pipeline.items[o->place].options);
    const tr_sketching s = {o->model, &so.choice};
    const tr_status st = tr_sketch_check(&s, tr_stage_key(o->config, o->place, "match", key));
    const char *why = st == TR_OK ? why_none(o, &s) : NULL;
    return why ? tr_stage_fail(o->config, o->place, "match",
                               "none of the layers that it names can be sketched: %s", why)
               : st;
}

/* Half more rank, as long as there is something to gain. */
static bool milder(void *options, const tr_network *parent)
{
    sketch_options *o = options, more = *o;
    more.rank += (o->rank + 1) / 2;
    const tr_sketch_options so = options_of(&more);
    if (!tr_sketch_smaller(parent, &so)) return false;
    o->rank = more.rank;
    return true;
}

static unsigned leaves(const void *options)
{
    (void)options;
    return TR_LEAVES_NAMES;
}

static tr_status say(tr_findings *f, const tr_sketch_row *rows, size_t n)
{
    tr_status st = TR_OK;
    const char **names = tr_alloc(TR_MEM_OTHER, n, sizeof *names);
    double *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    TR_HAVE(names && v);
    for (size_t i = 0; i < n; i++) names[i] = rows[i].layer;
    TR_TRY(tr_findings_table(f, "layers", n, names));
    for (size_t i = 0; i < n; i++) v[i] = rows[i].error;
    TR_TRY(tr_findings_column(f, "error", v));
    for (int after = 0; after < 2; after++) {
        for (size_t i = 0; i < n; i++) v[i] = rows[i].parameters[after];
        TR_TRY(tr_findings_column(f, after ? "parameters" : "parameters_before", v));
        for (size_t i = 0; i < n; i++) v[i] = rows[i].multiply_adds[after];
        TR_TRY(tr_findings_column(f, after ? "multiply_adds" : "multiply_adds_before", v));
    }
out:
    tr_free(names);
    tr_free(v);
    return st;
}

/* Those that are named. */
static void warn_left(const tr_model *m, const sketch_options *o)
{
    for (size_t i = 0; o->match && i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        const char *why = tr_sketch_obstacle(m, l);
        if (why && tr_layer_product(l, NULL) && tr_patterns_match(o->match, l->name))
            tr_log(TR_LOG_WARN, "sketch: layer %s stays as it is: %s", l->name, why);
    }
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    tr_status st = TR_OK;
    const sketch_options *o = job->options;
    const tr_model *m = job->parent->model;
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    tr_sketch_options so = options_of(o);
    tr_sketch_row *rows = NULL;
    size_t n = 0;
    *agreed = true;
    so.stop = job->stop;
    so.stop_ctx = job->trainer;
    TR_TRY(tr_agree(job->comm, tr_sketch_room(job, &so), NULL));
    if (root) tr_sketch_warn_larger(m, &so);
    tr_comm_busy(job->comm, TR_BUSY_COMPUTES);
    st = tr_sketch_network(job->parent, &so, &out->network, &rows, &n);
    tr_comm_busy(job->comm, TR_BUSY_NOT);
    if (st == TR_OK && n > 0) st = say(job->findings, rows, n);
    TR_TRY(tr_agree(job->comm, st, NULL));
    if (root && n == 0) tr_sketch_warn_none(m);
    if (root) warn_left(m, o);
out:
    tr_free(rows);
    return st;
}

const tr_stage tr_stage_sketch = {
    .name = "sketch",
    .makes = true,
    .doc =
        "Turns linear layers and convolutions into ones that are learned in sketches (`sklinear`, "
        "`skconv2d`), as close to their weights as least squares come",
    .fields = fields,
    .options_size = sizeof(sketch_options),
    .check = check,
    .leaves = leaves,
    .check_model = check_model,
    .milder = milder,
    .run = run,
};
