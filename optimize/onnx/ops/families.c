/* The families, and what is looked up in them. */
#include "optimize/onnx/ops/ops.h"

#include <string.h>

static const tr_onnx_family *const families[] = {
#define X(name) &tr_onnx_##name,
    TR_ONNX_FAMILIES(X)
#undef X
};

const tr_onnx_layer *tr_onnx_layer_of(const char *type)
{
    for (size_t f = 0; f < TR_COUNT(families); f++)
        for (const tr_onnx_layer *l = families[f]->layers; l->layer; l++)
            if (strcmp(l->layer, type) == 0) return l;
    return NULL;
}

const tr_onnx_operator *tr_onnx_operator_of(const char *type)
{
    for (size_t f = 0; f < TR_COUNT(families); f++)
        for (const tr_onnx_operator *o = families[f]->operators; o && o->type; o++)
            if (strcmp(o->type, type) == 0) return o;
    return NULL;
}

const tr_onnx_pattern *tr_onnx_pattern_of(const tr_onnx_reader *r, tr_onnx_step *s)
{
    for (size_t f = 0; f < TR_COUNT(families); f++)
        for (const tr_onnx_pattern *p = families[f]->patterns; p && p->last; p++)
            if (strcmp(p->last, s->type) == 0 && p->match(r, s, s->operands, &s->noperands))
                return p;
    return NULL;
}

const char *tr_onnx_missing(const char *type)
{
    const tr_onnx_layer *l = tr_onnx_layer_of(type);
    return !l ? "there is no mapping of it" : l->write ? NULL : l->reason;
}
