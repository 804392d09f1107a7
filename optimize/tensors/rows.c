/* The arrays of a network. */
#include "optimize/tensors/rows.h"

size_t tr_row_count(const tr_network *n)
{
    return n->model->nparams + n->model->nstates;
}

tr_row tr_row_at(const tr_network *n, size_t i)
{
    const tr_model *m = n->model;
    tr_row r = {.state = i >= m->nparams};
    if (r.state) {
        const tr_state *s = &m->states[i - m->nparams];
        snprintf(r.name, sizeof r.name, "%s.%s", s->layer, s->name);
        r.ndim = s->ndim;
        r.dims = s->dims;
        r.count = s->count;
        r.v = n->states + s->offset;
    } else {
        const tr_param *p = &m->params[i];
        snprintf(r.name, sizeof r.name, "%s.%s", p->layer, p->name);
        r.ndim = p->ndim;
        r.dims = p->dims;
        r.count = p->count;
        r.v = n->params + p->offset;
        r.sketch = p->sketch;
    }
    return r;
}

size_t tr_row_offset(const tr_network *n, size_t i)
{
    const tr_model *m = n->model;
    return i < m->nparams ? m->params[i].offset : m->states[i - m->nparams].offset;
}
