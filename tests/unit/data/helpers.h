/* What the data tests share: a scratch folder, files written byte by byte, a config and a model
 * filled by hand. */
#ifndef TR_TEST_DATA_HELPERS_H
#define TR_TEST_DATA_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <hdf5.h>

#include "runtime/data/internal.h"

/* A config, a model and what they point to; one a test. */
typedef struct {
    tr_config c;
    tr_model m;
    tr_input inputs[3];
    tr_node document, nodes[8];
    tr_node *keys[4], *values[4];
    double mean[8], std[8];
    tr_normalize_config stats;
    char folder[64];
} world;

/* So many of w->mean and w->std, for the input of this name, or for all. */
__attribute__((unused)) static void normalize_by(world *w, size_t means, size_t stds,
                                                 const char *input)
{
    w->stats =
        (tr_normalize_config){.input = input, .mean = {means, w->mean}, .std = {stds, w->std}};
    w->c.data.normalize.inputs = &w->stats;
    w->c.data.normalize.count = means + stds > 0;
}

__attribute__((unused)) static void world_open(world *w, int ndim, const int64_t *dims,
                                               int64_t classes)
{
    memset(w, 0, sizeof *w);
    w->c.model.loss.ignore_index = TR_NO_LABEL;
    snprintf(w->folder, sizeof w->folder, "data-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    w->c.file = "test.yaml";
    w->document = (tr_node){.kind = TR_NODE_MAP, .source = "test.yaml", .line = 1, .column = 1};
    w->c.document.root = &w->document;
    w->c.directory = w->folder;
    w->c.seed = 7;
    w->c.data.cache_mb = 64;
    w->c.data.shuffle = true;
    w->m.ninputs = 1;
    w->m.inputs = w->inputs;
    strcpy(w->inputs[0].name, "input");
    w->inputs[0].ndim = ndim;
    w->inputs[0].layout = ndim == 3 ? TR_LAYOUT_CHANNELS_LAST : TR_LAYOUT_PLAIN;
    for (int d = 0; d < ndim; d++) w->inputs[0].dims[d] = dims[d];
    w->m.labels = classes > 0;
    w->m.outputs = w->m.classes = classes;
    w->m.rows = 1;
}

__attribute__((unused)) static void world_targets(world *w, int ndim, const int64_t *dims)
{
    w->m.labels = false;
    w->m.outputs = w->m.classes = ndim ? dims[ndim - 1] : 1;
    w->m.ndim_target = ndim;
    w->m.target_layout = ndim == 3 ? TR_LAYOUT_CHANNELS_LAST : TR_LAYOUT_PLAIN;
    for (int d = 0; d < ndim; d++) w->m.target_dims[d] = dims[d];
}

/* Every file of a test lies flat in its folder. */
__attribute__((unused)) static void world_close(world *w)
{
    char command[96];
    snprintf(command, sizeof command, "rm -r '%s'", w->folder);
    assert_int_equal(system(command), 0);
}

__attribute__((unused)) static tr_node *scalar(world *w, int at, const char *text)
{
    w->nodes[at] = (tr_node){.kind = TR_NODE_SCALAR, .source = "test.yaml", .line = 3, .column = 7};
    w->nodes[at].text = (char *)text;
    return &w->nodes[at];
}

__attribute__((unused)) static const char *in_folder(const world *w, const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", w->folder, name);
    return path;
}

__attribute__((unused)) static void write_bytes(const world *w, const char *name, const void *bytes,
                                                size_t n)
{
    FILE *f = fopen(in_folder(w, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

__attribute__((unused)) static void write_gz(const world *w, const char *name, const void *bytes,
                                             size_t n)
{
    gzFile f = gzopen(in_folder(w, name), "wb");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, bytes, (unsigned)n), n);
    assert_int_equal(gzclose(f), Z_OK);
}

/* An IDX image of header and elements (already big endian); returns its length. */
__attribute__((unused)) static size_t make_idx(uint8_t *to, uint8_t code, int ndim,
                                               const uint32_t *dims, const void *elems,
                                               size_t nbytes)
{
    to[0] = to[1] = 0;
    to[2] = code;
    to[3] = (uint8_t)ndim;
    for (int d = 0; d < ndim; d++)
        for (int b = 0; b < 4; b++) to[4 + 4 * d + b] = (uint8_t)(dims[d] >> (24 - 8 * b));
    memcpy(to + 4 + 4 * ndim, elems, nbytes);
    return 4 + 4 * (size_t)ndim + nbytes;
}

__attribute__((unused)) static size_t make_npy(uint8_t *to, int version, const char *dict,
                                               const void *elems, size_t nbytes)
{
    size_t start = version == 1 ? 10 : 12, n = strlen(dict);
    memcpy(to, "\x93NUMPY", 6);
    to[6] = (uint8_t)version;
    to[7] = 0;
    for (size_t b = 0; b < start - 8; b++) to[8 + b] = (uint8_t)(n >> (8 * b));
    memcpy(to + start, dict, n);
    if (nbytes) memcpy(to + start + n, elems, nbytes);
    return start + n + nbytes;
}

/* One HDF5 dataset; chunk 0: contiguous; deflate 0: not compressed. */
__attribute__((unused)) static void write_h5(const world *w, const char *file, const char *name,
                                             hid_t file_type, hid_t type, int ndim,
                                             const hsize_t *dims, hsize_t chunk, unsigned deflate,
                                             const void *data)
{
    const char *path = in_folder(w, file);
    hid_t f = access(path, F_OK) == 0 ? H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT)
                                      : H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(f >= 0);
    hid_t space = H5Screate_simple(ndim, dims, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    if (chunk) {
        hsize_t chunks[H5S_MAX_RANK];
        memcpy(chunks, dims, (size_t)ndim * sizeof *dims);
        chunks[0] = chunk;
        assert_true(H5Pset_chunk(plist, ndim, chunks) >= 0);
        if (deflate) assert_true(H5Pset_deflate(plist, deflate) >= 0);
    }
    hid_t d = H5Dcreate2(f, name, file_type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    assert_true(d >= 0);
    if (data) assert_true(H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(d);
    H5Pclose(plist);
    H5Sclose(space);
    assert_true(H5Fclose(f) >= 0);
}

/* Every change of an image that leaves its size, but crop. */
__attribute__((unused)) static void all_changes(world *w)
{
    static double area[2] = {0.05, 0.3}, ratio[2] = {0.4, 2.5}, scales[2] = {0.7, 1.4},
                  places[2] = {0.2, 0.3}, value[1] = {-3};
    w->c.data.augment.flip = true;
    w->c.data.augment.rotate = 30;
    w->c.data.augment.scale = (tr_reals){2, scales};
    w->c.data.augment.translate = (tr_reals){2, places};
    w->c.data.augment.jitter = (tr_jitter_config){true, 0.4, 0.5, 0.6, 0.1};
    w->c.data.augment.erasing = (tr_erasing_config){true, 0.7, {2, area}, {2, ratio}, {1, value}};
}

/* Opening data.train fails with `st`, and every one of the words (ended by NULL) is in the
 * message. */
__attribute__((unused)) static void fails(const world *w, tr_status st, ...)
{
    tr_dataset *d = NULL;
    size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_DATA);
    tr_status got = tr_dataset_open(&w->c, &w->c.data.train, &w->m, &d);
    if (got == TR_OK) {
        tr_dataset_close(d);
        fail_msg("opened, expected %s", tr_status_text(st));
    }
    assert_null(d);
    if (got != st) fail_msg("%s: %s", tr_status_text(got), tr_last_error()->text);
    assert_int_equal(held, tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_DATA));
    va_list ap;
    va_start(ap, st);
    for (const char *word; (word = va_arg(ap, const char *)) != NULL;)
        if (!strstr(tr_last_error()->text, word))
            fail_msg("no \"%s\" in: %s", word, tr_last_error()->text);
    va_end(ap);
}

__attribute__((unused)) static tr_dataset *opens(const world *w)
{
    tr_dataset *d = NULL;
    tr_status st = tr_dataset_open(&w->c, &w->c.data.train, &w->m, &d);
    if (st != TR_OK) fail_msg("%s: %s", tr_status_text(st), tr_last_error()->text);
    return d;
}

/* Element e of sample i of input k. */
__attribute__((unused)) static double input_at(tr_dataset *d, int k, uint64_t i, size_t e)
{
    static char scratch[65536];
    const void *raw;
    assert_true(d->inputs[k]->nbytes <= sizeof scratch);
    assert_int_equal(tr_array_at(d->inputs[k], i, scratch, &raw), TR_OK);
    return tr_elem_value(d->inputs[k]->elem, raw, e);
}

__attribute__((unused)) static double target_at(tr_dataset *d, uint64_t i, size_t e)
{
    static char scratch[65536];
    const void *raw;
    assert_int_equal(tr_array_at(d->targets, i, scratch, &raw), TR_OK);
    return tr_elem_value(d->targets->elem, raw, e);
}

#endif
