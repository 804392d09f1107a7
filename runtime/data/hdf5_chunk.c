/* Chunks of an HDF5 dataset, each checked before HDF5 unpacks it: that its stored bytes make a
 * whole chunk. HDF5 1.10 takes that for granted and reads past the end of what a damaged deflate
 * stream gave, and of a chunk without filters whose entry says fewer bytes. The look (hdf5_look.c)
 * cannot do it: it would read the whole dataset. Here it costs one more unpacking a chunk, once,
 * when the chunk is first met. Deflate, shuffle and Fletcher's checksum are the filters whose
 * output has a known size; the look refuses others. */
#include "runtime/data/hdf5.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

struct tr_hdf5_chunks {
    int ndim, nfilters;
    H5Z_filter_t filters[TR_HDF5_MOST_FILTERS];
    hsize_t chunk[TR_MAX_DIMS], dims[TR_MAX_DIMS];
    bool plain_edges;           /* chunks that reach past the dims are not filtered */
    uint64_t grid[TR_MAX_DIMS]; /* chunks along each dimension */
    size_t nbytes, room;
    uint8_t *checked; /* a bit a chunk */
    uint8_t *stored;  /* room bytes, for one as it is in the file; 0 without filters */
    z_stream z;
    bool z_open;
};

tr_status tr_hdf5_filters(hid_t dcpl, H5Z_filter_t ids[TR_HDF5_MOST_FILTERS], int *n)
{
    int deflates = 0;
    *n = H5Pget_nfilters(dcpl);
    if (*n < 0 || *n > TR_HDF5_MOST_FILTERS)
        return TR_FAIL(TR_DATA, "%d filters, expected at most %d", *n, TR_HDF5_MOST_FILTERS);
    for (int i = 0; i < *n; i++) {
        unsigned flags, config;
        size_t values = 0;
        ids[i] = H5Pget_filter2(dcpl, (unsigned)i, &flags, &values, NULL, 0, NULL, &config);
        deflates += ids[i] == H5Z_FILTER_DEFLATE;
        if ((ids[i] != H5Z_FILTER_DEFLATE && ids[i] != H5Z_FILTER_SHUFFLE &&
             ids[i] != H5Z_FILTER_FLETCHER32) ||
            deflates > 1)
            return TR_FAIL(TR_DATA,
                           "filter %d is not read, expected deflate (gzip), shuffle, fletcher32: "
                           "rewrite it with h5repack -f GZIP=4",
                           (int)ids[i]);
    }
    return TR_OK;
}

tr_status tr_hdf5_chunks_open(const tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                              const tr_hdf5_sight *s, tr_hdf5_chunks **out)
{
    tr_status st = TR_OK;
    size_t n = 1;
    tr_hdf5_chunks *c = TR_NEW(TR_MEM_OTHER, tr_hdf5_chunks);
    TR_HAVE(c);
    c->ndim = s->ndim;
    c->nbytes = s->chunk_bytes;
    st = tr_hdf5_filters(h->dcpl, c->filters, &c->nfilters);
    TR_TRY(st == TR_OK ? st : tr_fail_before(st, "%s: dataset %s: ", file->path, name));
    TR_NEED(H5Pget_chunk(h->dcpl, TR_MAX_DIMS, c->chunk) == s->ndim, TR_DATA,
            "%s: dataset %s: changed while it was opened", file->path, name);
    unsigned options = 0;
    H5Pget_chunk_opts(h->dcpl, &options);
    c->plain_edges = options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS;
    for (int d = 0; d < c->ndim; d++) {
        c->dims[d] = s->dims[d];
        c->grid[d] = c->chunk[d] ? (s->dims[d] - 1) / c->chunk[d] + 1 : 0;
        TR_NEED(c->grid[d] > 0 && tr_mul_size(n, c->grid[d], &n), TR_DATA,
                "%s: dataset %s: its chunks are of no possible size", file->path, name);
    }
    if (c->nfilters > 0) c->room = compressBound(c->nbytes) + 4 * TR_HDF5_MOST_FILTERS;
    c->checked = tr_alloc(TR_MEM_OTHER, n / 8 + 1, 1);
    TR_HAVE(c->checked);
    c->stored = tr_alloc(TR_MEM_DATA, c->room, 1);
    TR_HAVE(c->stored);
    c->z_open = inflateInit(&c->z) == Z_OK;
    TR_NEED(c->z_open, TR_MEMORY, "%s: dataset %s: no memory to unpack chunks", file->path, name);
out:
    if (st != TR_OK) {
        tr_hdf5_chunks_close(c);
        return st;
    }
    *out = c;
    return TR_OK;
}

void tr_hdf5_chunks_close(tr_hdf5_chunks *c)
{
    if (!c) return;
    if (c->z_open) inflateEnd(&c->z);
    tr_free(c->checked);
    tr_free(c->stored);
    tr_free(c);
}

size_t tr_hdf5_chunks_held(const tr_hdf5_chunks *c)
{
    return c ? c->room : 0;
}

/* How many bytes `n` deflated ones give; 0: they are damaged, or more than a chunk. */
static size_t inflated(tr_hdf5_chunks *c, size_t n)
{
    uint8_t piece[32768];
    int rc = Z_OK;
    if (n > UINT32_MAX || inflateReset(&c->z) != Z_OK) return 0;
    c->z.next_in = c->stored;
    c->z.avail_in = (uInt)n;
    while (rc == Z_OK && c->z.total_out <= c->nbytes + 4 * TR_HDF5_MOST_FILTERS) {
        c->z.next_out = piece;
        c->z.avail_out = sizeof piece;
        rc = inflate(&c->z, Z_NO_FLUSH);
    }
    return rc == Z_STREAM_END ? c->z.total_out : 0;
}

/* Filters are undone last to first; each says how many bytes it leaves. */
static bool is_whole(tr_hdf5_chunks *c, size_t n, uint32_t left_out)
{
    for (int i = c->nfilters - 1; i >= 0; i--) {
        if (left_out & (1u << i)) continue;
        if (c->filters[i] == H5Z_FILTER_DEFLATE) n = inflated(c, n);
        if (c->filters[i] == H5Z_FILTER_FLETCHER32) n = n >= 4 ? n - 4 : 0;
    }
    return n == c->nbytes;
}

static tr_status check_one(tr_hdf5_chunks *c, hid_t dset, const char *name, const hsize_t *at)
{
    hsize_t n = 0;
    uint32_t left_out = 0;
    haddr_t place;
    /* by its entry: H5Dget_chunk_storage_size() takes chunks without filters for whole ones */
    if (H5Dget_chunk_info_by_coord(dset, at, &left_out, &place, &n) < 0 || n == 0 ||
        (c->room > 0 &&
         (n > c->room || H5Dread_chunk(dset, H5P_DEFAULT, at, &left_out, c->stored) < 0)))
        return TR_H5_FAIL(TR_DATA, "%s: the chunk of sample %llu: %llu bytes are stored", name,
                          (unsigned long long)at[0], (unsigned long long)n);
    for (int d = 0; c->plain_edges && d < c->ndim; d++)
        if (at[d] + c->chunk[d] > c->dims[d]) left_out = UINT32_MAX;
    if (!is_whole(c, (size_t)n, left_out))
        return TR_FAIL(TR_DATA,
                       "%s: the chunk of sample %llu is damaged: it does not unpack to its %zu "
                       "bytes",
                       name, (unsigned long long)at[0], c->nbytes);
    return TR_OK;
}

tr_status tr_hdf5_chunks_check(tr_hdf5_chunks *c, hid_t dset, const char *name,
                               const hsize_t *start, const hsize_t *count)
{
    hsize_t k[TR_MAX_DIMS], at[TR_MAX_DIMS];
    for (int d = 0; d < c->ndim; d++) k[d] = start[d] / c->chunk[d];
    for (;;) {
        size_t place = 0;
        for (int d = 0; d < c->ndim; d++) {
            place = place * c->grid[d] + k[d];
            at[d] = k[d] * c->chunk[d];
        }
        if (!(c->checked[place / 8] & (1u << place % 8))) {
            tr_status st = check_one(c, dset, name, at);
            if (st != TR_OK) return st;
            c->checked[place / 8] |= (uint8_t)(1u << place % 8);
        }
        int d = c->ndim - 1; /* the next of those that the selection touches */
        while (d >= 0 && ++k[d] > (start[d] + count[d] - 1) / c->chunk[d]) {
            k[d] = start[d] / c->chunk[d];
            d--;
        }
        if (d < 0) return TR_OK;
    }
}
