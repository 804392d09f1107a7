/* CIFAR binary batches: records of one label byte (CIFAR-100: coarse, then fine) and 3 * 32 * 32
 * bytes, channel planes, rows. Several files count as one, in the order given.
 * https://www.cs.toronto.edu/~kriz/cifar.html */
#include "runtime/data/internal.h"

#include <inttypes.h>
#include <string.h>

#define PIXELS (3 * 32 * 32)

tr_status tr_cifar_kind(const char *path, bool *hundred)
{
    tr_data_file f;
    tr_status st = tr_data_file_open(path, &f);
    if (st != TR_OK) return st;
    bool ten = f.size % (PIXELS + 1) == 0;
    *hundred = f.size % (PIXELS + 2) == 0;
    if (ten == *hundred)
        st = TR_FAIL(TR_DATA,
                     "%s: has %" PRIu64 " bytes, expected a multiple of 3073 (CIFAR-10) or 3074 "
                     "(CIFAR-100)%s",
                     path, f.size, ten ? " but not of both: say which by format:" : "");
    tr_data_file_close(&f);
    return st;
}

/* One array over all files: `nbytes` at `offset` of each record. */
static tr_status open_part(char *const *paths, size_t count, size_t record, size_t offset, int ndim,
                           const uint64_t *sample_dims, tr_array **out)
{
    tr_status st = TR_OK;
    tr_array *a = NULL;
    size_t opened = 0;
    uint64_t dims[TR_MAX_DIMS] = {0};
    tr_file_segment *segments = tr_alloc(TR_MEM_OTHER, count, sizeof *segments);
    TR_HAVE(segments);
    for (; opened < count; opened++) {
        tr_file_segment *s = &segments[opened];
        TR_TRY(tr_data_file_open(paths[opened], &s->file));
        if (s->file.size == 0 || s->file.size % record != 0) {
            st = TR_FAIL(TR_DATA,
                         "%s: has %" PRIu64
                         " bytes, expected a positive multiple of %zu, the record "
                         "of CIFAR-%s: it is cut short or of another format",
                         paths[opened], s->file.size, record, record == PIXELS + 1 ? "10" : "100");
            tr_data_file_close(&s->file);
            goto out;
        }
        s->offset = offset;
        s->stride = record;
        s->samples = s->file.size / record;
        dims[0] += s->samples;
    }
    opened = 0;
    TR_TRY(tr_flat_open(segments, count, false, &a));
    a->name =
        count == 1 ? tr_strdup(paths[0]) : tr_sprintf("%s (and %zu more)", paths[0], count - 1);
    TR_HAVE(a->name);
    for (int d = 1; d < ndim; d++) dims[d] = sample_dims[d - 1];
    TR_TRY(tr_array_shape(a, TR_ELEM_U8, ndim, dims));

out:
    for (size_t k = 0; k < opened; k++) tr_data_file_close(&segments[k].file);
    tr_free(segments);
    if (st != TR_OK) {
        tr_array_close(a);
        return st;
    }
    *out = a;
    return TR_OK;
}

tr_status tr_cifar_open(char *const *paths, size_t count, bool hundred, const char *labels,
                        tr_array **inputs, tr_array **targets)
{
    static const uint64_t image[] = {3, 32, 32};
    size_t head = hundred ? 2 : 1;
    size_t at = hundred && !(labels && strcmp(labels, "coarse") == 0) ? 1 : 0;
    tr_array *x = NULL, *y = NULL;
    tr_status st = TR_OK;
    TR_TRY(open_part(paths, count, head + PIXELS, head, 4, image, &x));
    TR_TRY(open_part(paths, count, head + PIXELS, at, 1, NULL, &y));

out:
    if (st != TR_OK) {
        tr_array_close(x);
        tr_array_close(y);
        return st;
    }
    *inputs = x;
    *targets = y;
    return TR_OK;
}
