/* Closing a model, and making one from another. */
#include "runtime/graph/maker.h"
#include "runtime/graph/ops/registry.h"

#include <stdlib.h>
#include <string.h>

void tr_model_close(tr_model *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->nlayers; i++) tr_type_free(&m->layers[i]);
    tr_free(m->layers);
    tr_free(m->inputs);
    tr_free(m->params);
    tr_free(m->states);
    tr_free(m->buckets);
    tr_free(m->rounded);
    for (size_t i = 0; i < m->nshorter; i++) tr_model_close(m->shorter[i]);
    tr_free((void *)m->loss_attrs);
    tr_fields_free(tr_loss_fields, &m->loss_config);
    tr_free(m);
}

const tr_layer *tr_model_layer(const tr_model *m, const char *name)
{
    for (size_t i = 0; i < m->nlayers; i++)
        if (strcmp(m->layers[i].name, name) == 0) return &m->layers[i];
    return NULL;
}

const char *tr_model_user(const tr_model *m, size_t row, int i)
{
    for (size_t l = 0; l < m->nlayers; l++)
        for (int k = 0; k < m->layers[l].nparams; k++)
            if ((size_t)m->layers[l].params[k] == row && i-- == 0) return m->layers[l].name;
    return NULL;
}

static tr_status options_text(const tr_layer *l, char **text)
{
    size_t n;
    FILE *f = open_memstream(text, &n);
    if (!f) return TR_FAIL(TR_MEMORY, "out of memory for the options of layer \"%s\"", l->name);
    tr_status st = tr_layer_write_options(l, 0, f);
    if (ftell(f) == 0) fputs("{}", f);
    if (fclose(f) != 0 && st == TR_OK)
        st = TR_FAIL(TR_MEMORY, "out of memory for the options of layer \"%s\"", l->name);
    return st;
}

/* Options that another type has not got. */
static void drop_foreign(tr_document *doc, const tr_op_def *type)
{
    tr_field fields[TR_LAYER_FIELDS];
    tr_type_fields(type, fields);
    for (size_t i = doc->root->count; i-- > 0;) {
        const char *key = doc->root->keys[i]->text;
        const tr_field *f = fields;
        while (f->key && strcmp(f->key, key) != 0) f++;
        if (!f->key) tr_document_drop(doc, key);
    }
}

/* By way of the text, so that a copy is checked as what anybody writes. */
tr_status tr_maker_copy(tr_maker *mk, const tr_layer *l, const tr_layer_changes *changes, int nin,
                        const int *in, int *value)
{
    char *text = NULL;
    tr_document doc = {NULL, NULL};
    tr_layer_given given = {.type = l->def->name, .name = l->name, .nin = nin, .in = in};
    tr_status st = TR_OK;
    if (changes && changes->name) given.name = changes->name;
    if (changes && changes->type) given.type = changes->type;
    if (!changes || !changes->type || changes->kept) {
        TR_TRY(options_text(l, &text));
        TR_TRY(tr_document_parse(l->name, text, strlen(text), &doc));
        if (changes && changes->type) drop_foreign(&doc, tr_type_find(given.type));
        for (size_t i = 0; changes && i < changes->noptions; i++)
            TR_TRY(tr_document_override(&doc, changes->options[i]));
        given.options = doc.root;
    }
    st = tr_maker_layer(mk, &given, value);
out:
    tr_document_close(&doc);
    free(text);
    return st;
}

static tr_status copy_layers(tr_maker *mk, const tr_model *m, tr_model_edit edit, void *ctx,
                             int *values)
{
    tr_status st = TR_OK;
    int block = -1;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        int in[TR_MAX_IN], *value = &values[m->ninputs + i];
        if (l->block != block) {
            if (block >= 0) tr_maker_close_block(mk);
            if (l->block >= 0) tr_maker_open_block(mk);
            block = l->block;
        }
        for (int k = 0; k < l->nin; k++) in[k] = values[l->in[k]];
        *value = -1;
        if (edit) TR_TRY(edit(ctx, mk, l, in, value));
        if (*value < 0) TR_TRY(tr_maker_copy(mk, l, NULL, l->nin, in, value));
    }
out:
    return st;
}

/* rows: 0, or of sequences in the place of those that they have. */
static tr_status copy(const tr_model *m, int64_t rows, tr_model_edit edit, void *ctx,
                      size_t bucket_bytes, tr_model **out)
{
    tr_status st = TR_OK;
    tr_maker *mk = NULL;
    int *values = tr_alloc(TR_MEM_OTHER, m->ninputs + m->nlayers, sizeof *values);
    if (!values) return tr_last_status();
    TR_TRY(tr_maker_open(TR_INIT_KAIMING, &mk)); /* each layer says its own */
    for (size_t i = 0; i < m->ninputs; i++) {
        tr_input in = m->inputs[i];
        if (rows > 0 && tr_input_rows(m, &in)) in.dims[0] = rows;
        TR_TRY(tr_maker_input(mk, in.name, in.ndim, in.dims, &values[i]));
    }
    TR_TRY(copy_layers(mk, m, edit, ctx, values));
    TR_TRY(tr_maker_loss(mk, &m->loss_config));
    TR_TRY(tr_maker_finish(mk, bucket_bytes, out));
    (*out)->skip_passes = m->skip_passes;
out:
    tr_maker_close(mk);
    tr_free(values);
    return st;
}

tr_status tr_model_copy(const tr_model *m, tr_model_edit edit, void *ctx, size_t bucket_bytes,
                        tr_model **out)
{
    return copy(m, 0, edit, ctx, bucket_bytes, out);
}

tr_status tr_model_copy_rows(const tr_model *m, int64_t rows, tr_model **out)
{
    return copy(m, rows, NULL, NULL, 0, out);
}
