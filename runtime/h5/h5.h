/* The thin layer between us and HDF5, for whoever writes files with it or reads them: one lock,
 * silence, and errors that carry HDF5's own reason. All Local. */
#ifndef TR_H5_H
#define TR_H5_H

#include "runtime/base/base.h"

#include <hdf5.h>

/* HDF5 is not taken to be thread-safe: Debian's build is not, and a loader's thread may read data
 * while the writer saves a checkpoint. Every use stands between these two. Takes the lock, forgets
 * old messages, and keeps HDF5 from printing; leave() puts back what was. */
typedef struct {
    H5E_auto2_t print;
    void *data;
} tr_h5_guard;
void tr_h5_enter(tr_h5_guard *g);
void tr_h5_leave(tr_h5_guard *g);

/* Of the library that runs, "1.10.8". */
void tr_h5_version(char *buf, size_t size);

/* What the last call that failed says: what was tried, and what went wrong. To be asked for before
 * another call is made, which forgets it. Where it is a lock, how to do without. Returns buf. */
#define TR_H5_REASON 512
const char *tr_h5_reason(char buf[TR_H5_REASON]);
/* The errno among those messages; 0: there is none, or it is a lock's, whose reason says more. */
int tr_h5_errno(void);
/* TR_FAIL with that reason behind the text. */
tr_status tr_h5_fail_at(const char *file, int line, tr_status st, const char *fmt, ...)
    TR_PRINTF(4, 5);
#define TR_H5_FAIL(st, ...) tr_h5_fail_at(__FILE__, __LINE__, (st), __VA_ARGS__)
#define TR_H5_NEED(cond, status, ...)                                                              \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            st = TR_H5_FAIL((status), __VA_ARGS__);                                                \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

#endif
