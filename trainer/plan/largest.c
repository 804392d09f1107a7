/* `trainer plan --largest`: how much can go through at once. */
#include "trainer/plan/choose.h"

tr_status tr_plan_largest(const tr_planned *r, tr_space space, size_t memory, size_t programs,
                          tr_largest *out)
{
    tr_status st;
    tr_choice choice = {0};
    tr_config c = *r->c;
    const size_t rest = memory > programs ? memory - programs : 0;
    *out = (tr_largest){.most = tr_plan_most_samples(r)};
    TR_NEED(!r->teacher, TR_UNSUPPORTED,
            "--largest: not with train.distill, whose teacher is planned once");
    c.train.micro_batch = c.train.accumulate = 0;
    TR_TRY(tr_plan_largest_batch(r, &c, space, rest, out->most, &out->batch));
    c.train.recompute.kind.which = TR_RECOMPUTE_BLOCKS;
    TR_TRY(tr_plan_largest_batch(r, &c, space, rest, out->most, &out->recomputed));
    c.train.recompute.kind = r->c->train.recompute.kind;
    c.train.micro_batch = TR_MICRO_BATCH_MAX;
    tr_planned v = *r;
    v.c = &c;
    TR_TRY(tr_plan_choose(&v, space, memory, programs, &choice));
    if (choice.fits) {
        out->micro_batch = choice.at_once;
        out->micro_batches = choice.micro_batches;
    }
out:
    tr_choice_free(&choice);
    return st;
}

static void line(const char *what, int64_t n, int64_t most, const char *set, FILE *to)
{
    if (n > 0)
        fprintf(to, "  %-34s %lld%s%s\n", what, (long long)n,
                n == most ? ", which are all that were looked for" : "", set);
    else
        fprintf(to, "  %-34s none: a sample a rank is too much\n", what);
}

void tr_plan_largest_write(const tr_planned *r, const tr_largest *l, size_t memory,
                           tr_plan_form form, FILE *to)
{
    char text[32], set[96];
    if (form == TR_PLAN_JSON) {
        fprintf(to,
                "{\"memory_bytes\": %zu, \"largest_batch\": %lld, "
                "\"largest_batch_recomputed\": %lld, \"micro_batch\": %lld, "
                "\"micro_batches\": %d}\n",
                memory, (long long)l->batch, (long long)l->recomputed, (long long)l->micro_batch,
                l->micro_batches);
        return;
    }
    tr_planned_title(r, to);
    fprintf(to, "  the largest that fit %s of %s\n",
            tr_format_bytes((double)memory, text, sizeof text),
            r->on.backend->host ? "a node" : "each GPU");
    line("batch, in one micro-batch", l->batch, l->most, "", to);
    line("batch, with train.recompute=blocks", l->recomputed, l->most, "", to);
    snprintf(set, sizeof set, " samples of a rank: %d a step of batch %lld", l->micro_batches,
             (long long)r->c->train.batch);
    line("train.micro_batch", l->micro_batch, 0, set, to);
}
