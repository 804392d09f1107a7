/* What is allowed, but hardly meant: said once, by rank 0, before the first step. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/numbers.h"

#include "trainer/loop/trainer.h"
#include "trainer/plan/choose.h"

/* ---- Data ------------------------------------------------------------------------------------ */

/* Of one file; both NULL: of none. */
static bool same_file(const tr_config *c, const char *a, const char *b)
{
    if (!a || !b) return a == b;
    char *pa = tr_config_path(c, a), *pb = tr_config_path(c, b);
    const bool same = pa && pb && strcmp(pa, pb) == 0;
    tr_free(pa);
    tr_free(pb);
    return same;
}

/* The same inputs of the same file. */
static bool same_source(const tr_config *c, const tr_source_config *a, const tr_source_config *b)
{
    const bool named = a->inputs && b->inputs;
    if (!same_file(c, a->path, b->path) || !a->inputs != !b->inputs) return false;
    if (!a->path && !named) return false; /* synthetic */
    if (!named) return true;
    if (a->inputs->kind != TR_NODE_SCALAR || b->inputs->kind != TR_NODE_SCALAR) return false;
    return strcmp(a->inputs->text, b->inputs->text) == 0;
}

static void warn_of_overlap(const tr_trainer *t)
{
    const tr_config *c = t->config;
    const tr_source_config *train = &c->data.train, *eval = &c->data.eval;
    const size_t samples = t->eval_data ? (size_t)tr_dataset_samples(t->eval_data) : 0;
    if (!eval->present || c->data.split.present || samples == 0 || !same_source(c, train, eval))
        return;
    const tr_range a = {(size_t)train->offset, (size_t)train->offset + (size_t)t->state.samples};
    const tr_range b = {(size_t)eval->offset, (size_t)eval->offset + samples};
    const size_t both = tr_range_count(tr_range_common(a, b));
    if (both > 0)
        tr_log(
            TR_LOG_WARN,
            "%zu sample%s of data.train: what it measures is memory, too (data.split holds samples "
            "out)",
            both, both == 1 ? " of data.eval is a sample" : "s of data.eval are samples");
}

static void warn_of_batch(const tr_trainer *t)
{
    const int64_t batch = t->config->train.batch;
    if ((uint64_t)batch > t->state.samples)
        tr_log(TR_LOG_WARN,
               "train.batch: %" PRId64 " is more than the %" PRIu64
               " sample%s of data.train: every step takes all, and is an epoch",
               batch, t->state.samples, tr_plural(t->state.samples));
    if (batch < t->topology->size)
        tr_log(TR_LOG_WARN,
               "train.batch: %" PRId64 " sample%s for %d ranks: some have nothing to do", batch,
               tr_plural((uint64_t)batch), t->topology->size);
    if (!t->config->data.shuffle)
        tr_log(TR_LOG_WARN, "data.shuffle: false: samples come in the file's order, each epoch");
}

/* ---- The schedule ---------------------------------------------------------------------------- */

static uint64_t steps(const tr_trainer *t, tr_span s)
{
    return tr_span_steps(s, t->total_steps, t->steps_per_epoch);
}

/* Of times at which something happens: those that the run does not come to. */
static void warn_of_late(const tr_trainer *t, const char *key, const tr_spans *times,
                         const char *missed)
{
    char late[TR_LIST_MAX * 24] = "";
    size_t n = 0;
    for (size_t i = 0; i < times->count; i++)
        if (steps(t, times->v[i]) >= t->total_steps)
            n += (size_t)snprintf(late + n, sizeof late - n, "%s%" PRIu64, n ? ", " : "",
                                  steps(t, times->v[i]));
    if (n > 0)
        tr_log(TR_LOG_WARN, "train.schedule: %s: at step %s, of a run of %" PRIu64 ": %s", key,
               late, t->total_steps, missed);
}

static void warn_of_schedule(const tr_trainer *t)
{
    const tr_schedule_config *s = &t->config->train.schedule.o;
    const uint64_t warmup = steps(t, s->warmup), period = steps(t, s->period);
    if (warmup > 0 && warmup >= t->total_steps)
        tr_log(TR_LOG_WARN,
               "train.schedule: warmup: %" PRIu64 " steps, of a run of %" PRIu64
               ": the learning rate does not come to what it is set to before the end",
               warmup, t->total_steps);
    if (t->config->train.schedule.kind.which == TR_SCHEDULE_EXPONENTIAL && period >= t->total_steps)
        tr_log(TR_LOG_WARN,
               "train.schedule: period: %" PRIu64 " steps, of a run of %" PRIu64
               ": the learning rate does not fall",
               period, t->total_steps);
    warn_of_late(t, "milestones", &s->milestones, "the learning rate does not drop there");
    warn_of_late(t, "restart", &s->restart, "the curve does not begin anew there");
}

/* ---- The device ------------------------------------------------------------------------------ */

/* The config as it would be if nobody had written these keys: what run.level sets stays. */
static tr_status without(const tr_config *c, const char *const *keys, size_t n, tr_config **out)
{
    tr_status st;
    tr_document doc = {NULL, NULL};
    char *text = NULL;
    TR_TRY(tr_config_text(c, &text));
    TR_TRY(tr_document_parse(c->file, text, strlen(text), &doc));
    for (size_t i = 0; i < n; i++) tr_document_drop(&doc, keys[i]);
    TR_TRY(tr_config_resolve(c->file, &doc, c->stages, out));
out:
    tr_document_close(&doc);
    free(text);
    return st;
}

/* Keys that change nothing on CPUs. */
static void warn_of_device(const tr_trainer *t)
{
    static const char *const gpus[] = {"train.tf32", "run.benchmark", "run.cuda_graph",
                                       "run.workspace_mb"};
    const tr_config *c = t->config;
    tr_config *d = NULL;
    if (!t->backend->host || without(c, gpus, TR_COUNT(gpus), &d) != TR_OK) return;
    const struct {
        bool given;
        const char *here;
    } is[TR_COUNT(gpus)] = {
        {c->train.tf32 != d->train.tf32, "CPUs compute in float32"},
        {c->run.benchmark != d->run.benchmark, "CPUs time no candidates"},
        {c->run.cuda_graph != d->run.cuda_graph, "CPUs record no steps"},
        {c->run.workspace_mb != d->run.workspace_mb,
         "CPUs' kernels take the scratch memory that they need"},
    };
    for (size_t i = 0; i < TR_COUNT(gpus); i++)
        if (is[i].given) tr_log(TR_LOG_WARN, "%s is for GPUs: %s", gpus[i], is[i].here);
    tr_config_close(d);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void warn_of_no_limit(const tr_trainer *t)
{
    const double share = t->config->run.memory_warn;
    if (share > 0 && !tr_chooses(t->config))
        tr_log(TR_LOG_WARN,
               "run.memory_warn: %g of no run.memory_limit: memory in use will not be warned of",
               share);
}

void tr_trainer_warn(const tr_trainer *t)
{
    if (t->topology->rank != 0) return;
    warn_of_batch(t);
    warn_of_overlap(t);
    warn_of_schedule(t);
    warn_of_device(t);
    warn_of_no_limit(t);
}
