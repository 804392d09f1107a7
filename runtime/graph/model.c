/* Opening and closing a model. */
#include "runtime/graph/maker.h"

tr_status tr_model_open(const tr_config *config, size_t bucket_bytes, tr_model **out)
{
    tr_status st = TR_OK;
    tr_maker mk = {.config = config, .block = -1};
    int output;
    mk.m = TR_NEW(TR_MEM_OTHER, tr_model);
    if (!mk.m) return TR_MEMORY;
    mk.m->config = config;
    TR_TRY(tr_parse_inputs(&mk));
    TR_TRY(tr_parse_layers(&mk, &output));
    TR_TRY(tr_parse_loss(&mk, &mk.m->layers[(size_t)output - mk.m->ninputs]));
    mk.m->output = output;
    TR_TRY(tr_layout(mk.m, bucket_bytes));
out:
    tr_free(mk.names);
    tr_free(mk.slots);
    if (st != TR_OK) {
        tr_model_close(mk.m);
        return st;
    }
    *out = mk.m;
    return TR_OK;
}

void tr_model_close(tr_model *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->nlayers; i++) tr_type_free(&m->layers[i]);
    tr_free(m->layers);
    tr_free(m->inputs);
    tr_free(m->params);
    tr_free(m->states);
    tr_free(m->buckets);
    tr_free((void *)m->loss_attrs);
    tr_free(m);
}
