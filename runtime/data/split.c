/* data.split: which samples of a source are held out. By the keyed permutation: the same on every
 * rank and start. Of a text, whose windows follow each other, the last ones; training leaves out
 * those that have tokens in common with them. Stratified, each class gives its part: whole numbers
 * by the largest remainders, which add up to the whole. */
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Rounds of the permutation that no epoch of a training comes to; one a class. tr_permute takes
 * rounds below 2^62. */
#define ROUND ((uint64_t)1 << 61)

uint64_t tr_split_part(const tr_split_config *s, uint64_t n)
{
    const uint64_t k = (uint64_t)llround((double)n * s->fraction);
    return k < 1 ? 1 : k > n - 1 ? n - 1 : k;
}

tr_status tr_split_check(const tr_dataset *d)
{
    return d->samples > 1 ? TR_OK
                          : TR_FAIL(TR_DATA, "%s: has one sample, which data.split cannot part",
                                    tr_dataset_name(d));
}

/* `out`: whether each sample is held out. */
static void draw(const tr_split_config *s, uint64_t samples, uint64_t held, bool *out)
{
    for (uint64_t i = 0; i < samples; i++)
        out[i] = tr_permute((uint64_t)s->seed, ROUND, samples, i) < held;
}

typedef struct {
    uint64_t n, held, met; /* samples of the class; of these held out; that the draw has come by */
    double rest;
} class_part;

/* The same of each class, by a permutation of its own. of: the samples' classes. */
static void draw_classes(const tr_split_config *s, uint64_t samples, const int32_t *of,
                         class_part *c, bool *out)
{
    for (uint64_t i = 0; i < samples; i++) {
        class_part *p = &c[of[i]];
        out[i] = tr_permute((uint64_t)s->seed, ROUND + (uint64_t)of[i], p->n, p->met++) < p->held;
    }
}

/* The class of each sample. */
static tr_status read_classes(const tr_dataset *d, int32_t *of)
{
    tr_status st = TR_OK;
    tr_array *a = d->targets;
    const uint64_t block = 65536 / a->nbytes + 1;
    char *raw = tr_alloc(TR_MEM_OTHER, (size_t)block, a->nbytes);
    TR_HAVE(raw);
    for (uint64_t i = 0; i < d->samples; i += block) {
        const uint64_t n = d->samples - i < block ? d->samples - i : block;
        for (uint64_t k = 0; k < n; k++) {
            const void *from;
            TR_TRY(tr_array_at(a, i + k, raw, &from));
            TR_TRY(tr_targets_convert(d, from, i + k, 1, of + i + k));
        }
    }
out:
    tr_free(raw);
    return st;
}

/* The larger rest first; of equal ones, the earlier class. */
static int by_rest(const void *a, const void *b)
{
    const class_part *x = *(class_part *const *)a, *y = *(class_part *const *)b;
    if (x->rest > y->rest || x->rest < y->rest) return x->rest > y->rest ? -1 : 1;
    return (x > y) - (x < y);
}

static tr_status share_out(class_part *c, size_t classes, uint64_t samples, uint64_t held)
{
    tr_status st = TR_OK;
    uint64_t given = 0;
    class_part **order = tr_alloc(TR_MEM_OTHER, classes, sizeof *order);
    TR_HAVE(order);
    for (size_t k = 0; k < classes; k++) {
        const double exact = (double)held * (double)c[k].n / (double)samples;
        c[k].held = (uint64_t)floor(exact);
        c[k].rest = exact - floor(exact);
        given += c[k].held;
        order[k] = &c[k];
    }
    qsort(order, classes, sizeof *order, by_rest);
    for (size_t k = 0; k < classes && given < held; k++, given++) order[k]->held++;
out:
    tr_free(order);
    return st;
}

static tr_status stratify(const tr_config *c, const tr_dataset *d, bool *out)
{
    const tr_split_config *s = &c->data.split;
    tr_status st = TR_OK;
    int32_t *of = NULL;
    class_part *parts = NULL;
    const size_t classes = (size_t)d->classes + 1; /* the last: of ignored samples */
    TR_REQUIRE(d->labels, "data.split.stratify", "the targets are values, not classes");
    TR_REQUIRE(d->target_count == 1, "data.split.stratify",
               "a sample has %zu labels, and so no class of its own", d->target_count);
    of = tr_alloc(TR_MEM_OTHER, (size_t)d->samples, sizeof *of);
    parts = tr_alloc(TR_MEM_OTHER, classes, sizeof *parts);
    TR_HAVE(of && parts);
    TR_TRY(read_classes(d, of));
    for (uint64_t i = 0; i < d->samples; i++)
        if (d->ignores && of[i] == d->ignore_index) of[i] = (int32_t)d->classes;
    for (uint64_t i = 0; i < d->samples; i++) parts[of[i]].n++;
    TR_TRY(share_out(parts, classes, d->samples, tr_split_part(s, d->samples)));
    draw_classes(s, d->samples, of, parts, out);
out:
    tr_free(of);
    tr_free(parts);
    return st;
}

tr_status tr_split_take(const tr_config *c, tr_dataset *d, bool held_out)
{
    const tr_split_config *s = &c->data.split;
    tr_status st = TR_OK;
    uint64_t n = 0, *rows = NULL;
    bool *out = NULL;
    TR_TRY(tr_split_check(d));
    out = tr_alloc(TR_MEM_OTHER, (size_t)d->samples, sizeof *out);
    rows = tr_alloc(TR_MEM_OTHER, (size_t)d->samples, sizeof *rows);
    TR_HAVE(out && rows);
    if (s->stratify)
        TR_TRY(stratify(c, d, out));
    else if (d->inputs[0]->follows)
        for (uint64_t i = d->samples - tr_split_part(s, d->samples); i < d->samples; i++)
            out[i] = true;
    else
        draw(s, d->samples, tr_split_part(s, d->samples), out);
    for (uint64_t i = 0; i < d->samples; i++)
        if (out[i] == held_out) rows[n++] = i;
    if (!held_out && d->inputs[0]->follows) {
        const uint64_t overlap = d->inputs[0]->overlap;
        TR_NEED(n > overlap, TR_DATA,
                "%s: data.split leaves no window to train on: the last %" PRIu64
                " before those held out have tokens in common with them",
                tr_dataset_name(d), n);
        n -= overlap;
    }
    if (d->targets) TR_TRY(tr_array_select(&d->targets, rows, 0, n));
    if (d->weights) TR_TRY(tr_array_select(&d->weights, rows, 0, n));
    for (size_t k = 0; k < d->ninputs; k++) TR_TRY(tr_array_select(&d->inputs[k], rows, 0, n));
    d->samples = n;
out:
    tr_free(out);
    tr_free(rows);
    return st;
}
