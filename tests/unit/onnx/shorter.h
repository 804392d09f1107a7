/* The same network for sequences of fewer rows: by row of features, with the first rows of tables
 * that have a row for each. */
#ifndef TR_TESTS_ONNX_SHORTER_H
#define TR_TESTS_ONNX_SHORTER_H

#include "runtime/graph/maker.h"
#include "tests/unit/onnx/cases.h"

/* Takes the network. */
static inline tr_network *net_shorter(tr_network *n, int64_t rows)
{
    tr_model *m = NULL;
    tr_network *s = NULL;
    ok(tr_model_copy_rows(n->model, rows, &m));
    ok(tr_network_open(m, &s));
    assert_int_equal(m->nparams, n->model->nparams);
    assert_int_equal(m->nstates, n->model->nstates);
    for (size_t i = 0; i < m->nparams; i++) {
        const tr_param *to = &m->params[i], *from = &n->model->params[i];
        assert_true(to->count == from->count || (from->by_row && to->count < from->count));
        memcpy(s->params + to->offset, n->params + from->offset, to->count * sizeof(float));
    }
    for (size_t i = 0; i < m->nstates; i++) {
        assert_int_equal(m->states[i].count, n->model->states[i].count);
        memcpy(s->states + m->states[i].offset, n->states + n->model->states[i].offset,
               m->states[i].count * sizeof(float));
    }
    tr_network_close(n);
    return s;
}

#endif
