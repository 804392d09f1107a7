/* Private to the data room: what its HDF5 files share. All between tr_h5_enter and tr_h5_leave. */
#ifndef TR_DATA_HDF5_H
#define TR_DATA_HDF5_H

#include "runtime/data/internal.h"
#include "runtime/h5/h5.h"

typedef struct {
    hid_t h5, dset, space, type, dcpl, dapl; /* -1: not open */
} tr_hdf5_handles;
extern const tr_hdf5_handles tr_hdf5_none;

/* The dataset of the very file that `file` is: TR_DATA where another one lies at its path by now,
 * and where the name leads, by an external link, to another file. h->dapl: how to open it again. */
tr_status tr_hdf5_open(const tr_data_file *file, const char *name, tr_hdf5_handles *h);
void tr_hdf5_close(tr_hdf5_handles *h);
/* The very file that `file` is, without a dataset; TR_DATA where another one lies at its path by
 * now. */
tr_status tr_hdf5_file_open(const tr_data_file *file, hid_t *h5);

/* A chunk is unpacked whole to read one sample of it. */
#define TR_HDF5_MOST_CHUNK ((size_t)256 << 20)

/* The filters of a dataset's chunks, in their order; TR_DATA for one that is not read, without file
 * and name. */
#define TR_HDF5_MOST_FILTERS 8
tr_status tr_hdf5_filters(hid_t dcpl, H5Z_filter_t ids[TR_HDF5_MOST_FILTERS], int *n);

/* What was checked of a dataset's chunks (hdf5_chunk.c). */
typedef struct tr_hdf5_chunks tr_hdf5_chunks;
tr_status tr_hdf5_chunks_open(const tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                              const tr_hdf5_sight *s, tr_hdf5_chunks **out);
void tr_hdf5_chunks_close(tr_hdf5_chunks *c);
size_t tr_hdf5_chunks_held(const tr_hdf5_chunks *c); /* bytes of TR_MEM_DATA; NULL: 0 */
/* Every chunk that a selection touches unpacks to its size: TR_DATA if not. */
tr_status tr_hdf5_chunks_check(tr_hdf5_chunks *c, hid_t dset, const char *name,
                               const hsize_t *start, const hsize_t *count);

/* Looks at a dataset, in this process: for a file that can break HDF5, see tr_hdf5_look. What it
 * opened is left in *h, also on failure. *missing: there is no dataset of that name. */
tr_status tr_hdf5_see(tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                      tr_hdf5_sight *s, bool *missing);
/* The same in the file that is open as h->h5; what is wrong is said without file and name. */
tr_status tr_hdf5_see_open(tr_hdf5_handles *h, const tr_data_file *file, const char *name,
                           tr_hdf5_sight *s);

/* Looks at datasets in a process of its own, which is given up after so many seconds: a file
 * system that does not answer must not hold up the other ranks. TR_IO where no process starts. None
 * does for what is known already (hdf5_known.c).
 * out: `count` of them, as the names. *failed, unless it is NULL: which one a failure is about. */
#define TR_HDF5_LOOK_SECONDS 120.0
tr_status tr_hdf5_look(const tr_data_file *file, const char *const *names, size_t count,
                       double seconds, tr_hdf5_sight *out, tr_failed_set *failed);
/* The same for a file that is only to be known. Names from `needed` on are looked at ahead: what
 * becomes of them is no failure, and is waited for this share of the time: a file system that stops
 * at one is waited for when that is opened. */
#define TR_HDF5_AHEAD 0.05
tr_status tr_hdf5_look_ahead(const tr_data_file *file, const char *const *names, size_t needed,
                             size_t count, double seconds, tr_failed_set *failed);

/* TR_DATA for a sight that cannot be of this file: whatever comes from another process. */
tr_status tr_hdf5_believe(const tr_data_file *file, const char *name, const tr_hdf5_sight *s);

/* What a file is known by, from its descriptor. False: it is closed, or not as it was when it was
 * opened. */
typedef struct {
    uint64_t device, inode, size;
    int64_t written[2], changed[2]; /* seconds and nanoseconds */
} tr_hdf5_state;
bool tr_hdf5_state_of(const tr_data_file *file, tr_hdf5_state *out);
/* What a look found at a dataset of a file in this state, by whichever thread it was. */
bool tr_hdf5_known(const tr_hdf5_state *s, const char *name, tr_hdf5_sight *out);
/* Remembers what a look found that began in the state `before`, unless the file has changed
 * since. */
void tr_hdf5_remember(const tr_data_file *file, const tr_hdf5_state *before, const char *name,
                      const tr_hdf5_sight *sight);

/* All datasets at the root, in this process and in one of its own; *out is allocated. */
tr_status tr_hdf5_see_all(const tr_data_file *file, tr_hdf5_listed **out, size_t *count);
tr_status tr_hdf5_look_all(const tr_data_file *file, double seconds, tr_hdf5_listed **out,
                           size_t *count);

/* TR_DATA unless the format's signature is where it can be. */
tr_status tr_hdf5_signature(const tr_data_file *file);
/* The array of a dataset that was looked at. Takes the file, also on failure. */
tr_status tr_hdf5_seen_open(tr_data_file *file, const char *path, const char *dataset,
                            const tr_hdf5_sight *sight, tr_array **out);

#endif
