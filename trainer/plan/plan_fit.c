/* Does it fit? What a node's ranks hold together (or one rank on its GPU) against what there is; and what would help, by
 * planning the job again with other settings: nothing is advised that was not counted. The largest batch is found by
 * doubling and halving, then between the two, with the same planner. */
#include <math.h>

#include "trainer/plan/planned.h"
#include "trainer/plan/shares.h"
#include "trainer/trainer.h"

#define MOST_SAMPLES ((int64_t)1 << 20) /* batches beyond are not looked for */

/* What is judged: the GPU's memory, or the node's. */
static tr_space judged(const tr_planned *r)
{
    return tr_space_of(r->on.backend);
}

/* Bytes that the space takes. The ranks of a node share its memory; rank 0 alone has a snapshot. Each is a process of its
 * own, as large as this one before anything was planned. */
static size_t needed(const tr_planned *r)
{
    tr_memory_total train, alone;
    tr_planned_memory(r, &train, &alone);
    const size_t own = train.total[judged(r)], local = (size_t)r->on.topology.local_size;
    if (judged(r) == TR_SPACE_DEVICE) return own;
    return own * local - train.bytes[TR_SPACE_HOST][TR_MEM_SNAPSHOT] * (local - 1) +
           r->rss_before * local;
}

/* The same with another config, which differs in nothing that changes the model. */
static tr_status needed_with(const tr_planned *r, const tr_config *c, size_t *nbytes)
{
    tr_planned v = *r;
    const double more = (double)c->train.batch / (double)r->c->train.batch;
    v.c = c;
    v.both = v.eval = NULL;
    v.train_batch = v.eval_batch = 0;
    v.micro_batches = tr_micro_batches(c, r->on.topology.size);
    if (!r->counted) v.train_samples = (uint64_t)c->train.batch;
    v.train_loader = (size_t)((double)r->train_loader * more);
    const tr_status st = tr_planned_sessions(&v);
    if (st == TR_OK) *nbytes = needed(&v);
    const tr_error why = *tr_last_error();
    tr_planned_close_sessions(&v);
    tr_set_error(&why);
    return st;
}

static tr_status needed_by_batch(const tr_planned *r, int64_t batch, size_t *nbytes)
{
    tr_config c = *r->c;
    c.train.batch = batch;
    return needed_with(r, &c, nbytes);
}

/* *batch 0: not even one sample a rank fits. */
static tr_status largest_batch(const tr_planned *r, size_t memory, int64_t most, int64_t *batch)
{
    tr_status st = TR_OK;
    int64_t fits = 0, not = most + 1;
    size_t nbytes;
    const int64_t least = r->on.topology.size;
    int64_t b = r->c->train.batch < most ? r->c->train.batch : most;
    for (b = b < least ? least : b; b <= most;) {
        TR_TRY(needed_by_batch(r, b, &nbytes));
        *(nbytes <= memory ? &fits : &not ) = b;
        if (nbytes <= memory && not <= most) break;
        if (nbytes > memory && (fits > 0 || b == least)) break;
        if (nbytes > memory)
            b = b / 2 < least ? least : b / 2;
        else
            b = b == most ? most + 1 : b > most / 2 ? most : 2 * b;
    }
    while (fits > 0 && not -fits > 1 && fits < most) {
        b = fits + (not -fits) / 2;
        TR_TRY(needed_by_batch(r, b, &nbytes));
        *(nbytes <= memory ? &fits : &not ) = b;
    }
    *batch = fits;
out:
    return st;
}

/* One line where the setting takes less. */
static tr_status advise(const tr_planned *r, const tr_config *c, const char *what, size_t now,
                        size_t memory)
{
    char text[32];
    size_t nbytes;
    const tr_status st = needed_with(r, c, &nbytes);
    if (st == TR_UNSUPPORTED || st == TR_CONFIG) return TR_OK; /* not for this model or device */
    if (st != TR_OK || nbytes >= now) return st;
    fprintf(r->to, "    %-32s %10s%s\n", what, tr_format_bytes((double)nbytes, text, sizeof text),
            nbytes <= memory ? ", fits" : "");
    return TR_OK;
}

static tr_status print_advice(const tr_planned *r, size_t now, size_t memory)
{
    tr_status st = TR_OK;
    const tr_config *own = r->c;
    char what[64];
    fprintf(r->to, "  what would take less\n");
    for (int k = 2; k <= 8; k *= 2) {
        tr_config c = *own;
        c.train.accumulate = (int64_t)r->micro_batches * k;
        c.train.micro_batch = 0;
        if (c.train.accumulate * r->on.topology.size > own->train.batch) break;
        snprintf(what, sizeof what, "train.accumulate=%lld", (long long)c.train.accumulate);
        TR_TRY(advise(r, &c, what, now, memory));
    }
    if (own->train.precision == TR_PRECISION_FP32) {
        tr_config c = *own;
        c.train.precision = TR_PRECISION_BF16;
        TR_TRY(advise(r, &c, "train.precision=bf16", now, memory));
    }
    if (own->train.recompute.kind.which == TR_RECOMPUTE_NONE) {
        tr_config c = *own;
        c.train.recompute.kind.which = TR_RECOMPUTE_BLOCKS;
        TR_TRY(advise(r, &c, "train.recompute=blocks", now, memory));
    }
    if (own->run.shard_optimizer != TR_SHARD_ON && r->on.topology.size > 1) {
        tr_config c = *own;
        c.run.shard_optimizer = TR_SHARD_ON;
        TR_TRY(advise(r, &c, "run.shard_optimizer=on", now, memory));
    }
out:
    return st;
}

tr_status tr_plan_fit(const tr_planned *r, size_t memory)
{
    tr_status st = TR_OK;
    char need[32], have[32], gap[32];
    const bool gpu = judged(r) == TR_SPACE_DEVICE, given = memory > 0;
    const size_t now = needed(r);
    int64_t batch = 0;
    if (gpu && !given) {
        fprintf(r->to, "  whether that fits a GPU: --memory 80GB\n");
        return TR_OK;
    }
    if (!given) memory = tr_mem_available();
    const size_t apart = now > memory ? now - memory : memory - now;
    fprintf(
        r->to, "\nfit\n  %s: %s needed, %s %s; %s %s\n", now <= memory ? "fits" : "does not fit",
        tr_format_bytes((double)now, need, sizeof need),
        tr_format_bytes((double)memory, have, sizeof have), given ? "given" : "available here now",
        tr_format_bytes((double)apart, gap, sizeof gap), now <= memory ? "are left" : "are short");
    if (!gpu)
        fprintf(r->to, "    by %d rank%s on the node, programs included, without MPI's own\n",
                r->on.topology.local_size, r->on.topology.local_size == 1 ? "" : "s");
    if (r->teacher) goto out; /* it is planned once */
    const int64_t most = r->counted && r->train_samples < (uint64_t)MOST_SAMPLES
                             ? (int64_t)r->train_samples
                             : MOST_SAMPLES;
    TR_TRY(largest_batch(r, memory, most, &batch));
    if (batch > 0)
        fprintf(r->to, "  largest batch  %lld%s, all else as it is\n", (long long)batch,
                batch == most ? r->counted ? ", which are all samples" : " or more" : "");
    else
        fprintf(r->to, "  largest batch  none: a sample a rank is too much\n");
    if (now > memory) TR_TRY(print_advice(r, now, memory));
out:
    return st;
}
