/* Weights into messages and out of them: the table that the kernels of loops/wire.cu work from. */
#include "kernels/cuda/internal.h"
#include "kernels/cuda/loops/wire.h"

#include <limits.h>

typedef struct {
    tr_cuda *cuda;
    tr_dtype type;       /* of what is rounded */
    tr_wire_part *parts; /* on the device */
    size_t nparts;
} wire;

/* Cut to what a block takes; counts only where `out` is NULL. */
static size_t cut(const tr_wire_part *parts, size_t nparts, tr_wire_part *out)
{
    size_t n = 0;
    for (size_t i = 0; i < nparts; i++)
        for (size_t at = 0; at < parts[i].count; at += TR_WIRE_CHUNK, n++) {
            const size_t left = parts[i].count - at;
            if (out)
                out[n] = (tr_wire_part){.weights = parts[i].weights + at,
                                        .wire = (char *)parts[i].wire +
                                                at * tr_dtype_size(parts[i].type),
                                        .count = left < TR_WIRE_CHUNK ? left : TR_WIRE_CHUNK,
                                        .type = parts[i].type};
        }
    return n;
}

tr_status tr_cuda_wire_open(void *ctx, const tr_wire_part *parts, size_t nparts, void **out)
{
    tr_status st = TR_OK;
    tr_wire_part *table = NULL;
    wire *w = TR_NEW(TR_MEM_OTHER, wire);
    if (!w) return tr_last_status();
    w->cuda = ctx;
    w->type = TR_F32;
    for (size_t i = 0; i < nparts; i++)
        if (parts[i].type != TR_F32) w->type = parts[i].type;
    w->nparts = cut(parts, nparts, NULL);
    TR_NEED(w->nparts <= INT_MAX, TR_UNSUPPORTED, "weights in %zu parts", w->nparts);
    if (w->nparts > 0) {
        const size_t nbytes = w->nparts * sizeof *table;
        table = tr_alloc(TR_MEM_OTHER, w->nparts, sizeof *table);
        w->parts = table ? tr_cuda_alloc(w->cuda, TR_MEM_OTHER, nbytes) : NULL;
        if (!w->parts) {
            st = tr_last_status();
            goto out;
        }
        cut(parts, nparts, table);
        TR_TRY(tr_cuda_upload(w->cuda, w->parts, table, nbytes));
    }
out:
    tr_free(table);
    if (st != TR_OK) {
        tr_cuda_wire_close(w);
        return st;
    }
    *out = w;
    return TR_OK;
}

tr_status tr_cuda_wire_run(void *opened, bool unpack)
{
    const wire *w = opened;
    if (w->nparts == 0) return TR_OK;
    return tr_wire_launch(w->cuda->stream, w->type, w->parts, w->nparts, unpack);
}

void tr_cuda_wire_close(void *opened)
{
    wire *w = opened;
    if (!w) return;
    tr_cuda_free(w->cuda, w->parts);
    tr_free(w);
}
