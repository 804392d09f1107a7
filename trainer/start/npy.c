/* NPY files of made data: version 1.0, little-endian, as numpy.save writes them. */
#include "trainer/start/start.h"

#include <string.h>

#include "runtime/base/file.h"

tr_status tr_npy_write(const char *path, tr_npy_type type, int ndim, const int64_t *dims,
                       const void *values)
{
    static const struct {
        const char *descr;
        size_t nbytes;
    } types[] = {[TR_NPY_U8] = {"|u1", 1}, [TR_NPY_F32] = {"<f4", 4}};
    enum { HEADER = 128 };
    char head[HEADER + 1] = "\x93NUMPY\x01", shape[80] = "";
    size_t count = 1;
    tr_status st = TR_OK;
    tr_commit c = {.fd = -1};
    size_t used = 0;
    for (int i = 0; i < ndim; i++) {
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%lld, ", (long long)dims[i]);
        count *= (size_t)dims[i];
    }
    head[7] = 0;
    head[8] = HEADER - 10;
    head[9] = 0;
    const int n =
        snprintf(head + 10, HEADER - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                 types[type].descr, shape);
    memset(head + 10 + n, ' ', (size_t)(HEADER - 11 - n));
    head[HEADER - 1] = '\n';
    TR_TRY(tr_commit_open(&c, path, HEADER + count * types[type].nbytes));
    TR_TRY(tr_commit_write(&c, 0, head, HEADER));
    TR_TRY(tr_commit_write(&c, HEADER, values, count * types[type].nbytes));
    TR_TRY(tr_commit_finish(&c));
out:
    tr_commit_close(&c);
    return st;
}
