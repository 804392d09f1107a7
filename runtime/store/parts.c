/* Flat arrays that lie in parts: rows of them to a file and back, without a whole copy in
 * between. */
#include "runtime/store/internal.h"

#include <string.h>

/* The part with element `at`, or the first behind it. */
static const struct tr_flat_part *part_of(const tr_flat_parts *f, size_t at)
{
    size_t low = 0, high = f->count;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (f->v[mid].range.end <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return f->v + low;
}

/* Of elements [at, end): those of the part where they begin. */
static struct tr_flat_part next(const tr_flat_parts *f, size_t at, size_t end)
{
    const struct tr_flat_part *p = part_of(f, at);
    return (struct tr_flat_part){{at, p->range.end < end ? p->range.end : end},
                                 p->at ? p->at + (at - p->range.begin) : NULL,
                                 p->mapped};
}

void tr_let_go(const void *p, size_t nbytes)
{
    tr_mem_drop((void *)(uintptr_t)p, nbytes);
}

static void let_go(const struct tr_flat_part *p)
{
    if (p->at && p->mapped) tr_let_go(p->at, tr_range_count(p->range) * sizeof(float));
}

void tr_flat_copy(const tr_flat_parts *f, tr_range range, float *to)
{
    while (range.begin < range.end) {
        const struct tr_flat_part now = next(f, range.begin, range.end);
        const size_t nbytes = tr_range_count(now.range) * sizeof(float);
        if (now.at)
            memcpy(to, now.at, nbytes);
        else
            memset(to, 0, nbytes);
        let_go(&now);
        to += tr_range_count(now.range);
        range.begin = now.range.end;
    }
}

static bool covers(const tr_flat_parts *f, size_t begin, size_t end)
{
    while (begin < end) {
        const struct tr_flat_part *p = part_of(f, begin);
        if (p == f->v + f->count || p->range.begin > begin) return false;
        begin = p->range.end;
    }
    return true;
}

tr_status tr_image_row(tr_image *im, const char *where, const tr_param *p, const tr_flat_parts *f)
{
    const size_t end = p->offset + p->count;
    tr_status st = TR_OK;
    tr_image_piece *v = NULL;
    size_t count = 0;
    TR_NEED(covers(f, p->offset, end), TR_INTERNAL, "%s: no part has all of it", where);
    for (size_t at = p->offset; at < end; count++) at = part_of(f, at)->range.end;
    TR_HAVE(v = tr_alloc(TR_MEM_OTHER, count, sizeof *v));
    for (size_t i = 0, at = p->offset; i < count; i++) {
        const struct tr_flat_part now = next(f, at, end);
        v[i] = (tr_image_piece){now.at, tr_range_count(now.range) * sizeof(float), now.mapped};
        at = now.range.end;
    }
    TR_TRY(tr_image_pieces(im, where, TR_F32, p->ndim, p->dims, v, count));
out:
    tr_free(v);
    return st;
}

typedef struct {
    const tr_flat_parts *f;
    size_t at;
} place;

static void put(void *ctx, const void *bytes, size_t nbytes)
{
    place *p = ctx;
    const float *from = bytes;
    const size_t end = p->at + nbytes / sizeof(float);
    while (p->at < end) {
        const struct tr_flat_part now = next(p->f, p->at, end);
        const size_t n = tr_range_count(now.range);
        if (now.at) memcpy(now.at, from, n * sizeof(float));
        from += n;
        p->at += n;
    }
}

tr_status tr_entry_read_row(const tr_index *ix, const tr_entry *e, const tr_param *p,
                            const tr_flat_parts *f)
{
    const size_t end = p->offset + p->count;
    place at = {f, p->offset};
    if (!covers(f, p->offset, end))
        return TR_FAIL(TR_INTERNAL, "%s: no part has all of it", e->where);
    const tr_status st = tr_entry_read(ix, e, NULL, put, &at);
    for (size_t i = p->offset; i < end;) {
        const struct tr_flat_part now = next(f, i, end);
        let_go(&now);
        i = now.range.end;
    }
    return st;
}
