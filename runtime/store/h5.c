/* The thin layer between this room and HDF5: the lock and the silence around every use, and errors
 * that carry HDF5's own reason. HDF5 keeps a stack of messages; the outermost says what was tried,
 * the innermost what went wrong. */
#include "runtime/store/internal.h"

#include <string.h>

void tr_h5_enter(tr_h5_guard *g)
{
    tr_hdf5_lock();
    g->print = NULL;
    g->data = NULL;
    H5Eget_auto2(H5E_DEFAULT, &g->print, &g->data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void tr_h5_leave(tr_h5_guard *g)
{
    H5Eset_auto2(H5E_DEFAULT, g->print, g->data);
    tr_hdf5_unlock();
}

typedef struct {
    char outer[200], inner[200];
    unsigned seen;
} reasons;

static herr_t walk(unsigned n, const H5E_error2_t *e, void *ctx)
{
    reasons *r = ctx;
    const char *text = e->desc && e->desc[0] ? e->desc : "unknown";
    if (n == 0) snprintf(r->outer, sizeof r->outer, "%s", text);
    snprintf(r->inner, sizeof r->inner, "%s", text);
    r->seen++;
    return 0;
}

static void collect(reasons *r)
{
    memset(r, 0, sizeof *r);
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, walk, r);
    /* errno's text can span lines */
    for (char *p = r->inner; *p; p++)
        if (*p == '\n') *p = ' ';
    for (char *p = r->outer; *p; p++)
        if (*p == '\n') *p = ' ';
}

tr_status tr_h5_fail_at(const char *file, int line, tr_status st, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    reasons r;
    collect(&r);
    if (r.seen == 0) return tr_fail_at(file, line, st, "%s", text);
    if (r.seen == 1) return tr_fail_at(file, line, st, "%s: HDF5: %s", text, r.outer);
    return tr_fail_at(file, line, st, "%s: HDF5: %s: %s", text, r.outer, r.inner);
}

hid_t tr_h5_type(tr_dtype t)
{
    switch (t) {
    case TR_F32:
        return H5T_IEEE_F32LE;
    case TR_F64:
        return H5T_IEEE_F64LE;
    case TR_I32:
        return H5T_STD_I32LE;
    case TR_I64:
        return H5T_STD_I64LE;
    case TR_U8:
        return H5T_STD_U8LE;
    default:
        return -1;
    }
}
