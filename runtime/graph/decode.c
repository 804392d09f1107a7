/* Which models can be decoded: rows of ids come one after the other, and each row of the output is
 * made of them and of what layers hold of the rows before (tr_op_def.rows); and what their graphs
 * have beside others: inputs, tensors that are held. */
#include "runtime/graph/builder.h"

#include <string.h>

/* ---- Building -------------------------------------------------------------------------------- */

int tr_build_past(const tr_builder *b)
{
    return b->o->decode.rows > 0 ? b->g->inputs[TR_DECODE_PAST] : -1;
}

int tr_build_count(const tr_builder *b)
{
    return b->o->decode.rows > 0 ? b->g->inputs[TR_DECODE_COUNT] : -1;
}

int64_t tr_build_cache(const tr_builder *b)
{
    return b->o->decode.cache;
}

int tr_build_held(tr_builder *b, const tr_layer *l, const char *what, tr_dtype dtype, int ndim,
                  const int64_t *dims)
{
    const int id = tr_build_new(b, l->name, what, dtype, ndim, dims);
    tr_tensor *t = &b->g->tensors[id];
    t->role = TR_ROLE_HELD;
    t->at = b->g->held;
    b->g->held += tr_align_up(t->nbytes, TR_HELD_ALIGN);
    return id;
}

const int64_t *tr_build_rows(const tr_builder *b, const int64_t *sample, int64_t *room)
{
    if (b->o->decode.rows == 0) return sample;
    memcpy(room, sample, TR_MAX_DIMS * sizeof *room);
    room[0] = b->o->decode.rows;
    return room;
}

/* ---- Which models ---------------------------------------------------------------------------- */

/* A sequence of as many rows as ids go in. */
static bool is_rows(const tr_shape *s, int64_t rows)
{
    return s->ndim == 2 && s->dims[0] == rows && s->layout == TR_LAYOUT_PLAIN;
}

/* It sees rows behind a row for certain; NULL: it does not, or that is not known. */
static const char *why_ahead(const tr_layer *l)
{
    return l->def->together ? l->def->together(l) : NULL;
}

/* NULL: a row of its output is made of those up to it alone. */
static const char *why_together(const tr_layer *l)
{
    return l->def->rows == TR_ROWS_TOGETHER ? "it makes a row of others than those before it"
                                            : why_ahead(l);
}

static tr_status check_layer(const tr_layer *l, int64_t rows)
{
    char text[TR_SHAPE_TEXT];
    const char *why = why_together(l);
    if (why)
        return tr_layer_fail(l, TR_UNSUPPORTED, "%s: such a model makes no sequence row by row",
                             why);
    if (!is_rows(&l->output, rows))
        return tr_layer_fail(l, TR_UNSUPPORTED,
                             "its output is %s, not a row for each of %lld ids: such a model makes "
                             "no sequence row by row",
                             tr_shape_text(&l->output, text), (long long)rows);
    return TR_OK;
}

tr_status tr_graph_decodes(const tr_model *m)
{
    tr_status st = TR_OK;
    const tr_input *in = &m->inputs[0];
    TR_NEED(in->ndim == 1 && in->ids > 0 && !in->lengths, TR_UNSUPPORTED,
            "the model's input \"%s\" is no sequence of ids: expected the first input to be one "
            "(positions), which an embedding reads",
            in->name);
    for (size_t i = 1; i < m->ninputs; i++)
        TR_NEED(m->inputs[i].lengths, TR_UNSUPPORTED,
                "the model's input \"%s\" is no length: expected none beside the sequence of ids, "
                "\"%s\", but how many of its rows count",
                m->inputs[i].name, in->name);
    for (size_t i = 0; i < m->nlayers; i++) TR_TRY(check_layer(&m->layers[i], in->dims[0]));
out:
    return st;
}

void tr_graph_warn_ahead(const tr_model *m)
{
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        const char *why = why_ahead(l);
        if (!why) continue;
        tr_log_once(
            TR_LOG_WARN, "next tokens",
            "%s%slayer \"%s\": %s: it may see the next tokens, which are what data.train "
            "has the model say: the loss then measures copying, and `sample` refuses such a "
            "model",
            l->where ? l->where : "", l->where ? ": " : "", l->name, why);
        return;
    }
}

int64_t tr_graph_most_rows(const tr_model *m, const char **layer)
{
    int64_t most = 0;
    for (size_t i = 0; i < m->nlayers; i++) {
        const tr_layer *l = &m->layers[i];
        const int64_t n = l->def->most_rows ? l->def->most_rows(l) : 0;
        if (n == 0 || (most > 0 && n >= most)) continue;
        most = n;
        if (layer) *layer = l->name;
    }
    return most;
}
