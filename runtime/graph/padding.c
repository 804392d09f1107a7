/* Rows behind a sample's end, in a model whose layers have lengths: the first layer that makes one
 * row of all and does not know where a sample ends. Layer by layer, by what is known of each
 * value's rows. O(layers). */
#include "runtime/graph/maker.h"
#include "runtime/graph/ops/registry.h"

typedef enum { UNKNOWN, ROWS, COLUMNS } counted; /* some of them are behind a sample's end */

typedef struct {
    counted along;
    bool held; /* the last one is each sample's own */
} value;

static bool keeps_rows(const tr_layer *l)
{
    return l->output.ndim == 2 && l->inputs[0].ndim == 2 &&
           l->output.dims[0] == l->inputs[0].dims[0];
}

static bool has_lengths(const tr_model *m, const tr_layer *l)
{
    const int last = l->in[l->nin - 1];
    return (size_t)last < m->ninputs && m->inputs[last].lengths;
}

static value make(const tr_model *m, const tr_layer *l, const value *of)
{
    const tr_shape *x = &l->inputs[0];
    const bool lengths = has_lengths(m, l), apart = l->def->rows == TR_ROWS_APART;
    value y = {.held = (apart && of[l->in[0]].held) || (l->def->holds && l->def->holds(l))};
    const counted along = lengths ? ROWS : of[l->in[0]].along;
    if (along != UNKNOWN && keeps_rows(l))
        y.along = along;
    else if (along == ROWS && x->ndim == 2 && l->output.ndim == 2 &&
             l->output.dims[1] == x->dims[0])
        y.along = COLUMNS;
    return y;
}

static bool takes_padding(const tr_model *m, const tr_layer *l, const value *x)
{
    if (has_lengths(m, l)) return false;
    if (x->along == COLUMNS)
        return tr_shape_places(&l->inputs[0]) > 1 && tr_shape_places(&l->output) == 1;
    return x->along == ROWS && l->def->cut && !l->def->cut(l, x->held);
}

void tr_model_warn_padding(const tr_model *m)
{
    value *of = tr_alloc(TR_MEM_OTHER, m->ninputs + m->nlayers, sizeof *of);
    for (size_t i = 0; of && i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        if (takes_padding(m, l, &of[l->in[0]]))
            tr_log_once(TR_LOG_WARN, l->name,
                        "%s%slayer \"%s\": %s takes in rows behind a sample's end, which do not "
                        "count in layers before it: expected `select` or `mean_rows` with the "
                        "lengths as a second input",
                        l->where ? l->where : "", l->where ? ": " : "", l->name, l->def->name);
        of[m->ninputs + i] = make(m, l, of);
    }
    tr_free(of);
}
