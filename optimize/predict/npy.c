/* NPY 1.0: one array of float32, [samples, ...], the probabilities or, with `raw`, what the model
 * puts out. */
#include "optimize/predict/internal.h"

#include <inttypes.h>
#include <string.h>

static tr_status npy_open(tr_predict_sink *s)
{
    const tr_predictions *o = s->o;
    char head[256] = "\x93NUMPY\x01";
    size_t n = 10;
    n += (size_t)snprintf(head + n, sizeof head - n,
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ",",
                          o->samples);
    for (int d = 0; d < o->ndim; d++)
        n += (size_t)snprintf(head + n, sizeof head - n, " %" PRId64 ",", o->dims[d]);
    n += (size_t)snprintf(head + n, sizeof head - n, "), }");
    const size_t whole = tr_align_up(n + 1, 64);
    memset(head + n, ' ', whole - n - 1);
    head[whole - 1] = '\n';
    head[8] = (char)(whole - 10);
    head[9] = (char)((whole - 10) >> 8);
    return tr_predict_put(s, head, whole);
}

static tr_status npy_rows(tr_predict_sink *s, const tr_predict_rows *r)
{
    return tr_predict_put(s, s->o->raw ? r->raw : r->values,
                          (size_t)r->count * s->o->outputs * sizeof(float));
}

static tr_status npy_end(tr_predict_sink *s)
{
    (void)s;
    return TR_OK;
}

const tr_predict_writer tr_predict_npy = {npy_open, npy_rows, npy_end, NULL};
