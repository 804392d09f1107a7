/* Does it fit? What a node's ranks hold together (or one rank on its GPU) against what there is;
 * and what would help, by planning the job again with other settings: nothing is advised that was
 * not counted. The largest batch is found by doubling and halving, then between the two, with the
 * same planner. */
#include <math.h>

#include "trainer/plan/choose.h"
#include "trainer/plan/shares.h"

#define MOST_SAMPLES ((int64_t)1 << 20) /* batches beyond are not looked for */

size_t tr_planned_need(const tr_planned *r, tr_space space)
{
    tr_memory_total train;
    tr_planned_memory(r, &train);
    const size_t own = train.total[space], local = (size_t)r->on.topology.local_size;
    if (space == TR_SPACE_DEVICE) return own;
    return own * local -
           train.bytes[space][TR_MEM_SNAPSHOT] * (local - 1); /* rank 0 alone has it */
}

/* Samples that a rank has in a micro-batch. */
static int64_t at_once(const tr_config *c, int micro_batches, int ranks)
{
    const int64_t share = (c->train.batch + ranks - 1) / ranks;
    return (share + micro_batches - 1) / micro_batches;
}

/* The same with another config, which differs in nothing that changes the model. SIZE_MAX: it has
 * too many samples at once for a kernel. */
static tr_status needed_with(const tr_planned *r, const tr_config *c, tr_space space,
                             size_t *nbytes)
{
    tr_planned v = *r;
    const int ranks = r->on.topology.size;
    v.c = c;
    v.both = v.eval = NULL;
    v.train_batch = v.eval_batch = 0;
    v.micro_batches = tr_micro_batches(c, ranks);
    if (!r->counted) v.train_samples = (uint64_t)c->train.batch;
    tr_status st = tr_planned_sessions(&v);
    if (st == TR_OK && c->train.batch == r->c->train.batch)
        st = tr_planned_loaders(&v);
    else if (st == TR_OK) /* of batches that are tried no buffers are made */
        v.train_loader =
            (size_t)((double)r->train_loader * (double)at_once(c, v.micro_batches, ranks) /
                     (double)at_once(r->c, r->micro_batches, ranks));
    if (st == TR_OK) *nbytes = tr_planned_need(&v, space);
    if (tr_planned_too_many(st)) {
        *nbytes = SIZE_MAX;
        st = TR_OK;
    }
    const tr_error why = *tr_last_error();
    tr_planned_close_sessions(&v);
    tr_set_error(&why);
    return st;
}

static tr_status needed_by_batch(const tr_planned *r, const tr_config *of, int64_t batch,
                                 tr_space space, size_t *nbytes)
{
    tr_config c = *of;
    c.train.batch = batch;
    return needed_with(r, &c, space, nbytes);
}

tr_status tr_plan_largest_batch(const tr_planned *r, const tr_config *c, tr_space space,
                                size_t memory, int64_t most, int64_t *batch)
{
    tr_status st = TR_OK;
    int64_t fits = 0, not = most + 1;
    size_t nbytes;
    const int64_t least = r->on.topology.size < most ? r->on.topology.size : most;
    int64_t b = c->train.batch < most ? c->train.batch : most;
    for (b = b < least ? least : b; b <= most;) {
        TR_TRY(needed_by_batch(r, c, b, space, &nbytes));
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
        TR_TRY(needed_by_batch(r, c, b, space, &nbytes));
        *(nbytes <= memory ? &fits : &not ) = b;
    }
    *batch = fits;
out:
    return st;
}

int64_t tr_plan_most_samples(const tr_planned *r)
{
    return r->counted && r->train_samples < (uint64_t)MOST_SAMPLES ? (int64_t)r->train_samples
                                                                   : MOST_SAMPLES;
}

/* Where the setting takes less by more than a percent, which figures as they are printed show. */
static tr_status advise(const tr_planned *r, const tr_config *c, const char *set, size_t memory,
                        tr_fit *f)
{
    size_t nbytes;
    const tr_status st = needed_with(r, c, f->space, &nbytes);
    if (st == TR_UNSUPPORTED || st == TR_CONFIG) return TR_OK; /* not for this model or device */
    if (st != TR_OK || nbytes >= f->need - f->need / 100 ||
        (size_t)f->nadvice == TR_COUNT(f->advice))
        return st;
    struct tr_fit_advice *a = &f->advice[f->nadvice++];
    snprintf(a->set, sizeof a->set, "%s", set);
    a->need = nbytes;
    a->fits = nbytes <= memory;
    return TR_OK;
}

static tr_status find_advice(const tr_planned *r, size_t memory, tr_fit *f)
{
    tr_status st = TR_OK;
    const tr_config *own = r->c;
    char set[48];
    for (int k = 2; k <= 8; k *= 2) {
        tr_config c = *own;
        c.train.accumulate = (int64_t)r->micro_batches * k;
        c.train.micro_batch = 0;
        if (c.train.accumulate * r->on.topology.size > own->train.batch) break;
        snprintf(set, sizeof set, "train.accumulate=%lld", (long long)c.train.accumulate);
        TR_TRY(advise(r, &c, set, memory, f));
    }
    if (r->eval_samples > 0 && own->train.eval.batch > own->train.batch) {
        tr_config c = *own;
        c.train.eval.batch = own->train.batch;
        snprintf(set, sizeof set, "train.eval.batch=%lld", (long long)c.train.eval.batch);
        TR_TRY(advise(r, &c, set, memory, f));
    }
    if (own->train.precision == TR_PRECISION_FP32) {
        tr_config c = *own;
        c.train.precision = TR_PRECISION_BF16;
        TR_TRY(advise(r, &c, "train.precision=bf16", memory, f));
    }
    if (own->train.recompute.kind.which == TR_RECOMPUTE_NONE ||
        own->train.recompute.kind.which == TR_RECOMPUTE_AUTO) {
        tr_config c = *own;
        c.train.recompute.kind.which = TR_RECOMPUTE_BLOCKS;
        TR_TRY(advise(r, &c, "train.recompute=blocks", memory, f));
    }
    if (own->run.offload != TR_OFFLOAD_ON && !r->on.backend->host) {
        tr_config c = *own;
        c.run.offload = TR_OFFLOAD_ON;
        TR_TRY(advise(r, &c, "run.offload=on", memory, f));
    }
    if (own->run.shard_optimizer != TR_SHARD_ON && r->on.topology.size > 1) {
        tr_config c = *own;
        c.run.shard_optimizer = TR_SHARD_ON;
        TR_TRY(advise(r, &c, "run.shard_optimizer=on", memory, f));
    }
out:
    return st;
}

tr_status tr_plan_fit(const tr_planned *r, tr_space space, size_t memory, size_t programs,
                      tr_fit *out)
{
    tr_status st = TR_OK;
    const size_t rest = memory > programs ? memory - programs : 0;
    tr_fit f = {.space = space,
                .known = true,
                .need = tr_planned_need(r, space),
                .have = memory,
                .programs = programs};
    f.fits = f.need <= rest;
    f.searched = !r->teacher; /* which is planned once */
    f.most = tr_plan_most_samples(r);
    if (f.searched) TR_TRY(tr_plan_largest_batch(r, r->c, space, rest, f.most, &f.largest));
    if (f.searched && !f.fits) TR_TRY(find_advice(r, rest, &f));
    *out = f;
out:
    return st;
}

void tr_plan_fit_write(const tr_planned *r, const tr_fit *f, FILE *to)
{
    char need[32], have[32], gap[32], own[32];
    const tr_topology *t = &r->on.topology;
    const size_t all = f->need + f->programs, apart = all > f->have ? all - f->have : f->have - all;
    fprintf(to, "  %s: %s needed, %s %s", f->fits ? "fits" : "does not fit",
            tr_format_bytes((double)f->need, need, sizeof need),
            tr_format_bytes((double)f->have, have, sizeof have),
            f->limited ? "allowed"
            : f->given ? "given"
                       : "available here now");
    if (f->programs > 0)
        fprintf(to, ", of which programs take %s",
                tr_format_bytes((double)f->programs, own, sizeof own));
    fprintf(to, "; %s %s\n", tr_format_bytes((double)apart, gap, sizeof gap),
            f->fits ? "are left" : "are short");
    if (f->space == TR_SPACE_HOST)
        fprintf(to,
                "    by %d rank%s on %s node; programs: what they start with, in steps of 32 MiB, "
                "and room to work\n",
                t->local_size, t->local_size == 1 ? "" : "s", t->nodes > 1 ? "each" : "the");
    if (f->least > 0)
        fprintf(to, "  the smallest run.memory_limit that would do is %s%zuMiB\n",
                tr_about(f->space), f->least >> 20);
    if (!f->searched) return;
    if (f->largest > 0)
        fprintf(to, "  largest batch  %lld%s, all else as it is\n", (long long)f->largest,
                f->largest < f->most ? ""
                : r->counted         ? ", which are all samples"
                                     : " or more");
    else if (f->programs >= f->have)
        fprintf(to, "  largest batch  none: the programs alone take all of it\n");
    else
        fprintf(to, "  largest batch  none: a sample a rank is too much\n");
    if (!f->fits)
        fprintf(to, "  what would take less%s\n",
                f->nadvice > 0 ? "" : "  a smaller model, or an optimizer with less state");
    for (int i = 0; i < f->nadvice; i++)
        fprintf(to, "    %-32s %10s%s\n", f->advice[i].set,
                tr_format_bytes((double)f->advice[i].need, need, sizeof need),
                f->advice[i].fits ? ", fits" : "");
}
