/* Mean and spread of a dataset's values, a channel or feature each: two passes over a block of
 * samples, so that one block's numbers depend on nothing but its samples; blocks are merged by Chan
 * et al. (1979). And a look at every sample: what is not finite, or no id, is named. */
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"

size_t tr_dataset_places(const tr_model *m, size_t input)
{
    const tr_input *in = &m->inputs[input];
    if (in->layout == TR_LAYOUT_CHANNELS_LAST) return (size_t)in->dims[0];
    return in->ndim > 0 ? (size_t)in->dims[in->ndim - 1] : 1;
}

size_t tr_dataset_target_places(const tr_model *m)
{
    if (m->target_layout == TR_LAYOUT_CHANNELS_LAST) return (size_t)m->target_dims[0];
    return m->ndim_target > 0 ? (size_t)m->target_dims[m->ndim_target - 1] : 1;
}

size_t tr_dataset_target_run(const tr_model *m)
{
    if (m->target_layout != TR_LAYOUT_CHANNELS_LAST) return 1;
    return (size_t)(m->target_dims[1] * m->target_dims[2]);
}

static tr_status not_finite(const tr_array *a, uint64_t sample, size_t k, double v)
{
    char where[512];
    tr_array_where(a, sample, where, sizeof where);
    return TR_FAIL(TR_DATA, "%s: element %zu is %g, expected a finite float32", where, k,
                   (double)(float)v);
}

/* A sample's values, all finite in float32. scratch: a->nbytes. */
static tr_status sample_at(tr_array *a, uint64_t i, void *scratch, double *v)
{
    const void *raw;
    const tr_status st = tr_array_at(a, i, scratch, &raw);
    if (st != TR_OK) return st;
    for (size_t k = 0; k < a->count; k++) {
        v[k] = tr_elem_value(a->elem, raw, k);
        if (!isfinite((float)v[k])) return not_finite(a, i, k, v[k]);
    }
    return TR_OK;
}

/* Elements of one place lie `run` beside each other (an image's channel), or are every
 * places-th. */
static size_t place_of(size_t k, size_t run, size_t places)
{
    return run > 1 ? k / run : k % places;
}

tr_status tr_dataset_moments(tr_dataset *d, const tr_model *m, int input, tr_range samples,
                             tr_moments *out)
{
    tr_status st = TR_OK;
    tr_array *a = input < 0 ? d->targets : d->inputs[input];
    const size_t places =
        input < 0 ? tr_dataset_target_places(m) : tr_dataset_places(m, (size_t)input);
    const bool image =
        (input < 0 ? m->target_layout : m->inputs[input].layout) == TR_LAYOUT_CHANNELS_LAST;
    const size_t run = image ? a->count / places : 1;
    const double count = (double)(tr_range_count(samples) * (a->count / places));
    void *scratch = tr_alloc(TR_MEM_OTHER, a->nbytes, 1);
    double *v = tr_alloc(TR_MEM_OTHER, a->count, sizeof *v);
    TR_HAVE(scratch && v);
    memset(out, 0, places * sizeof *out);
    for (uint64_t i = samples.begin; i < samples.end; i++) {
        TR_TRY(sample_at(a, i, scratch, v));
        for (size_t k = 0; k < a->count; k++) out[place_of(k, run, places)].mean += v[k];
    }
    for (size_t p = 0; p < places; p++) {
        out[p].count = count;
        if (count > 0) out[p].mean /= count;
    }
    for (uint64_t i = samples.begin; i < samples.end; i++) {
        TR_TRY(sample_at(a, i, scratch, v));
        for (size_t k = 0; k < a->count; k++) {
            tr_moments *o = &out[place_of(k, run, places)];
            o->m2 += (v[k] - o->mean) * (v[k] - o->mean);
        }
    }
out:
    tr_free(scratch);
    tr_free(v);
    return st;
}

void tr_moments_merge(tr_moments *to, const tr_moments *from)
{
    if (from->count == 0) return;
    const double count = to->count + from->count, delta = from->mean - to->mean;
    to->mean += delta * from->count / count;
    to->m2 += from->m2 + delta * delta * to->count * from->count / count;
    to->count = count;
}

tr_status tr_dataset_class_counts(tr_dataset *d, uint64_t *counts)
{
    tr_status st = TR_OK;
    void *scratch = tr_alloc(TR_MEM_OTHER, d->targets->nbytes, 1);
    int32_t *label = tr_alloc(TR_MEM_OTHER, d->target_count, sizeof *label);
    const void *raw;
    TR_HAVE(scratch && label);
    memset(counts, 0, (size_t)d->classes * sizeof *counts);
    for (uint64_t i = 0; i < d->samples; i++) {
        TR_TRY(tr_array_at(d->targets, i, scratch, &raw));
        TR_TRY(tr_targets_convert(d, raw, i, 1, label));
        for (size_t k = 0; k < d->target_count; k++)
            if (!d->ignores || label[k] != d->ignore_index) counts[label[k]]++;
    }
out:
    tr_free(label);
    tr_free(scratch);
    return st;
}

#define BAD_SHOWN 20

tr_status tr_dataset_check_files(tr_dataset *d, FILE *to)
{
    tr_status st = TR_OK;
    tr_array *a = d->inputs[0];
    uint64_t bad = 0;
    void *scratch = a->file ? tr_alloc(TR_MEM_OTHER, a->nbytes, 1) : NULL;
    if (!a->file) goto out;
    TR_HAVE(scratch);
    for (uint64_t i = 0; i < d->samples; i++) {
        st = a->read(a, i, 1, scratch);
        if (st == TR_OK) continue;
        if (st != TR_DATA) goto out;
        if (bad++ < BAD_SHOWN) fprintf(to, "# bad: %s\n", tr_last_error()->text);
    }
    TR_NEED(bad == 0, TR_DATA, "%s: %" PRIu64 " of %" PRIu64 " file%s bad%s", a->name, bad,
            d->samples, d->samples == 1 ? " is" : "s are",
            bad > BAD_SHOWN ? ", of which 20 are named above" : ", as named above");
out:
    tr_free(scratch);
    return st;
}

tr_status tr_dataset_check(tr_dataset *d, const tr_config *c, const tr_model *m, FILE *to)
{
    tr_status st = TR_OK;
    tr_prepare p;
    void *scratch = NULL;
    int32_t *ids = NULL;
    double *v = NULL;
    TR_TRY(tr_prepare_init(c, m, false, TR_F32, &p));
    for (size_t k = 0; k < d->ninputs && st == TR_OK; k++) {
        tr_array *a = d->inputs[k];
        double least = INFINITY, most = -INFINITY;
        const void *raw;
        scratch = tr_realloc(TR_MEM_OTHER, scratch, a->nbytes, 1);
        ids = tr_realloc(TR_MEM_OTHER, ids, a->count, sizeof *ids);
        v = tr_realloc(TR_MEM_OTHER, v, a->count, sizeof *v);
        TR_HAVE(scratch && ids && v);
        for (uint64_t i = 0; i < d->samples; i++) {
            if (m->inputs[k].ids > 0) {
                TR_TRY(tr_array_at(a, i, scratch, &raw));
                TR_TRY(tr_prepare_ids(&p, (int)k, a, raw, i, ids));
                continue;
            }
            TR_TRY(sample_at(a, i, scratch, v));
            for (size_t e = 0; e < a->count; e++) {
                least = v[e] < least ? v[e] : least;
                most = v[e] > most ? v[e] : most;
            }
        }
        if (m->inputs[k].ids > 0)
            fprintf(to, "# %s: %" PRIu64 " sample%s of ids\n", a->name, d->samples,
                    tr_plural(d->samples));
        else
            fprintf(to, "# %s: %" PRIu64 " sample%s of %s from %g to %g\n", a->name, d->samples,
                    tr_plural(d->samples), tr_elem_name(a->elem), least, most);
    }
out:
    tr_free(scratch);
    tr_free(ids);
    tr_free(v);
    tr_prepare_fini(&p);
    return st;
}

const char *tr_dataset_file(const tr_dataset *d, uint64_t i)
{
    const tr_array *a = d->inputs[0];
    return a->file ? a->file(a, i) : NULL;
}

void tr_dataset_where(const tr_dataset *d, uint64_t i, char *buf, size_t size)
{
    tr_array_where(d->inputs[0], i, buf, size);
}
