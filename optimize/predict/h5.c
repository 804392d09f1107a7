/* HDF5: probabilities (or outputs), and what was asked for beside them, as contiguous datasets
 * without times, so that the same rows are the same bytes:
 *
 *     probabilities | outputs  float32 [samples, ...]
 *     raw                      float32, with `raw`
 *     classes                  int32 [samples, top], -1: none; class_probabilities float32; of rows
 *                              with a class each [samples, top, height, width] or [samples, length,
 *                              top]
 *     class_names              texts
 *     output_names             texts: the columns of a table that outputs stand for
 *     files                    texts, where samples are files: their paths below the source's
 *                              folder */
#include "optimize/predict/internal.h"

#include <errno.h>
#include <string.h>

#include "runtime/h5/h5.h"

typedef struct {
    hid_t file, values, raw, classes, chances;
} sets;

static hid_t make(const tr_predictions *o, hid_t file, const char *name, hid_t type, int ndim,
                  const int64_t *dims)
{
    hsize_t all[TR_MAX_DIMS + 1] = {o->samples};
    for (int d = 0; d < ndim; d++) all[d + 1] = (hsize_t)dims[d];
    const hid_t space = H5Screate_simple(ndim + 1, all, NULL), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hid_t set = -1;
    if (space >= 0 && dcpl >= 0 && H5Pset_obj_track_times(dcpl, 0) >= 0)
        set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    if (space >= 0) H5Sclose(space);
    if (dcpl >= 0) H5Pclose(dcpl);
    return set;
}

/* Texts of one length, as h5py reads them without asking. */
static bool put_texts(hid_t at, const char *name, const char *const *texts, size_t count,
                      bool attribute)
{
    size_t most = 1;
    bool done = false;
    for (size_t k = 0; k < count; k++) most = strlen(texts[k]) > most ? strlen(texts[k]) : most;
    char *all = tr_alloc(TR_MEM_OTHER, count, most);
    const hsize_t dims[] = {count};
    const hid_t type = H5Tcopy(H5T_C_S1), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    const hid_t space = attribute ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, dims, NULL);
    hid_t to = -1;
    if (!all || type < 0 || space < 0 || dcpl < 0 || H5Tset_size(type, most) < 0 ||
        H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0 ||
        H5Pset_obj_track_times(dcpl, 0) < 0)
        goto out;
    for (size_t k = 0; k < count; k++) memcpy(all + k * most, texts[k], strlen(texts[k]));
    to = attribute ? H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT)
                   : H5Dcreate2(at, name, type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    done = to >= 0 && (attribute ? H5Awrite(to, type, all)
                                 : H5Dwrite(to, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all)) >= 0;
out:
    if (to >= 0) attribute ? H5Aclose(to) : H5Dclose(to);
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    if (dcpl >= 0) H5Pclose(dcpl);
    tr_free(all);
    return done;
}

static bool put_files(const tr_predictions *o, hid_t file)
{
    const char **texts = tr_alloc(TR_MEM_OTHER, (size_t)o->samples, sizeof *texts);
    if (!texts) return false;
    for (uint64_t i = 0; i < o->samples; i++) texts[i] = o->file(o->files, i);
    const bool done = put_texts(file, "files", texts, (size_t)o->samples, false);
    tr_free(texts);
    return done;
}

/* The shape of a sample's classes: that of values, but for how many classes there are. */
static int top_shape(const tr_predictions *o, int64_t dims[TR_MAX_DIMS])
{
    memcpy(dims, o->dims, sizeof o->dims);
    dims[o->rows > 1 && !o->planes ? 1 : 0] = (int64_t)o->top;
    return o->rows > 1 ? o->ndim : 1;
}

static bool create(const tr_predictions *o, const char *path, sets *w)
{
    int64_t top[TR_MAX_DIMS];
    const int ntop = top_shape(o, top);
    const size_t classes = tr_predict_classes(o->loss, o->outputs / o->rows);
    const hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), fcpl = H5Pcreate(H5P_FILE_CREATE);
    if (fapl >= 0 && fcpl >= 0 && H5Pset_obj_track_times(fcpl, 0) >= 0 &&
        H5Pset_libver_bounds(fapl, H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0)
        w->file = H5Fcreate(path, H5F_ACC_TRUNC, fcpl, fapl);
    if (fapl >= 0) H5Pclose(fapl);
    if (fcpl >= 0) H5Pclose(fcpl);
    if (w->file < 0 || !put_texts(w->file, "model_sha256", &o->model, 1, true)) return false;
    if (o->file && !put_files(o, w->file)) return false;
    if (o->targets && !put_texts(w->file, "output_names", o->targets, o->outputs, false))
        return false;
    w->values = make(o, w->file, tr_predict_values(o->loss) ? "outputs" : "probabilities",
                     H5T_IEEE_F32LE, o->ndim, o->dims);
    if (w->values < 0) return false;
    if (o->raw && !tr_predict_values(o->loss) &&
        (w->raw = make(o, w->file, "raw", H5T_IEEE_F32LE, o->ndim, o->dims)) < 0)
        return false;
    if (o->top == 0) return true;
    w->classes = make(o, w->file, "classes", H5T_STD_I32LE, ntop, top);
    w->chances = make(o, w->file, "class_probabilities", H5T_IEEE_F32LE, ntop, top);
    return w->classes >= 0 && w->chances >= 0 &&
           (!o->names || put_texts(w->file, "class_names", o->names, classes, false));
}

/* HDF5 does not stand a full disk: the room is taken before it writes. */
static tr_status reserve(const tr_predict_sink *s)
{
    const tr_predictions *o = s->o;
    const size_t row = o->outputs * sizeof(float) * (o->raw ? 2 : 1) + o->rows * o->top * 8;
    const off_t nbytes = (off_t)(o->samples * row) + (64 << 10);
    while (fallocate(s->file.fd, FALLOC_FL_KEEP_SIZE, 0, nbytes) != 0) {
        if (errno == EINTR) continue;
        if (errno == EOPNOTSUPP || errno == ENOSYS) break;
        return tr_fail_hint(TR_FAIL(TR_IO, "%s: no room for %lld bytes: %s", o->path,
                                    (long long)nbytes, strerror(errno)),
                            TR_HINT_DISK_FULL);
    }
    return TR_OK;
}

static tr_status h5_open(tr_predict_sink *s)
{
    tr_status st = TR_OK;
    tr_h5_guard g;
    sets *w = s->own = TR_NEW(TR_MEM_OTHER, sets);
    if (!w) return tr_last_status();
    *w = (sets){-1, -1, -1, -1, -1};
    tr_h5_enter(&g);
    if (!create(s->o, s->file.temp, w)) st = TR_H5_FAIL(TR_IO, "%s: cannot be made", s->o->path);
    tr_h5_leave(&g);
    return st == TR_OK ? reserve(s) : st;
}

static bool put(hid_t set, hid_t type, const tr_predict_rows *r, const void *from)
{
    hsize_t dims[TR_MAX_DIMS + 1], start[TR_MAX_DIMS + 1] = {r->first};
    const hid_t space = H5Dget_space(set);
    const int ndim = space >= 0 ? H5Sget_simple_extent_dims(space, dims, NULL) : -1;
    bool done = false;
    if (ndim > 0) {
        dims[0] = r->count;
        const hid_t memory = H5Screate_simple(ndim, dims, NULL);
        done = memory >= 0 &&
               H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, dims, NULL) >= 0 &&
               H5Dwrite(set, type, memory, space, H5P_DEFAULT, from) >= 0;
        if (memory >= 0) H5Sclose(memory);
    }
    if (space >= 0) H5Sclose(space);
    return done;
}

static tr_status h5_rows(tr_predict_sink *s, const tr_predict_rows *r)
{
    tr_status st = TR_OK;
    tr_h5_guard g;
    const sets *w = s->own;
    tr_h5_enter(&g);
    if (!put(w->values, H5T_NATIVE_FLOAT, r, r->values) ||
        (w->raw >= 0 && !put(w->raw, H5T_NATIVE_FLOAT, r, r->raw)) ||
        (w->classes >= 0 && !put(w->classes, H5T_NATIVE_INT32, r, r->top)) ||
        (w->chances >= 0 && !put(w->chances, H5T_NATIVE_FLOAT, r, r->top_values)))
        st = TR_H5_FAIL(TR_IO, "%s: cannot be written", s->o->path);
    tr_h5_leave(&g);
    return st;
}

/* false: something of it did not reach the disk. */
static bool shut(sets *w)
{
    hid_t *const all[] = {&w->values, &w->raw, &w->classes, &w->chances};
    bool fine = true;
    for (size_t i = 0; i < TR_COUNT(all); i++) {
        if (*all[i] >= 0) fine &= H5Dclose(*all[i]) >= 0;
        *all[i] = -1;
    }
    if (w->file >= 0) fine &= H5Fclose(w->file) >= 0;
    w->file = -1;
    return fine;
}

static tr_status h5_end(tr_predict_sink *s)
{
    tr_status st = TR_OK;
    tr_h5_guard g;
    tr_h5_enter(&g);
    if (!shut(s->own)) st = TR_H5_FAIL(TR_IO, "%s: cannot be written", s->o->path);
    tr_h5_leave(&g);
    return st;
}

static void h5_close(tr_predict_sink *s)
{
    tr_h5_guard g;
    if (!s->own) return;
    tr_h5_enter(&g);
    (void)shut(s->own);
    tr_h5_leave(&g);
    tr_free(s->own);
}

const tr_predict_writer tr_predict_h5 = {h5_open, h5_rows, h5_end, h5_close};
