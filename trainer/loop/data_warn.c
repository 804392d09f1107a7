/* What is said of data and batches that are likely not meant. */
#include <inttypes.h>
#include <string.h>

#include "trainer/loop/resolve.h"

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

static void warn_of_overlap(const tr_config *c, uint64_t samples, uint64_t eval_samples)
{
    const tr_source_config *t = &c->data.train, *e = &c->data.eval;
    if (!e->present || c->data.split.present || eval_samples == 0 || !same_source(c, t, e)) return;
    const tr_range a = {(size_t)t->offset, (size_t)t->offset + samples};
    const tr_range b = {(size_t)e->offset, (size_t)e->offset + eval_samples};
    const size_t both = tr_range_count(tr_range_common(a, b));
    if (both > 0)
        tr_log(TR_LOG_WARN,
               "%zu samples of data.eval are samples of data.train: what it measures is memory, "
               "too (data.split holds samples out)",
               both);
}

void tr_data_warn(const tr_config *c, uint64_t samples, uint64_t eval_samples, int ranks)
{
    if (samples < (uint64_t)c->train.batch)
        tr_log(TR_LOG_WARN,
               "train.batch: %" PRId64 " is more than the %" PRIu64
               " samples of data.train: a step is an epoch",
               c->train.batch, samples);
    if (c->train.batch < ranks)
        tr_log(TR_LOG_WARN,
               "train.batch: %" PRId64 " samples for %d ranks: some have nothing to do",
               c->train.batch, ranks);
    if (!c->data.shuffle)
        tr_log(TR_LOG_WARN, "data.shuffle: false: samples come in the file's order, each epoch");
    warn_of_overlap(c, samples, eval_samples);
}
