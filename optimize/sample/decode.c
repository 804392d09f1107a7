/* The engine is a session of two plans that hold the same tensors: one takes a chunk of rows of
 * each sequence and leaves out whatever leads to the output alone, one takes a row and gives
 * logits. Sequences have as many ids as they have, each a count of its own. */
#include "optimize/sample/sample.h"

#include <string.h>

#include "optimize/inference/convert.h"
#include "optimize/inference/values.h"
#include "runtime/graph/ops/op.h"

enum { INPUTS = TR_DECODE_INPUTS };

struct tr_decoder {
    tr_decoder_options o;
    tr_model *model;
    tr_params *params;
    tr_session *session;
    tr_plan *fill, *one; /* fill: NULL where chunk is 0 */
    int32_t *in[INPUTS]; /* ids (sequences, chunk or 1), then as tr_decode says; copies can start
                            from them */
    void *fetched;       /* on a device: the output on its way */
    size_t own;          /* bytes of the plans and their kernels, such as tables of rotary places */
    float *logits;
    int32_t *past; /* [sequences] */
};

/* Ids that an embedding of the model can look up. */
static int64_t ids_of(const tr_model *m)
{
    return m->inputs[0].ids;
}

static int64_t width_of(const tr_model *m)
{
    return m->layers[m->nlayers - 1].output.dims[1];
}

tr_status tr_decoder_takes(const tr_model *m)
{
    const tr_layer *last = &m->layers[m->nlayers - 1];
    tr_status st = TR_OK;
    TR_TRY(tr_graph_decodes(m));
    TR_NEED(m->classes > 0, TR_UNSUPPORTED,
            "the model's loss is %s: what layer \"%s\" gives is no logits to choose an id by; "
            "expected cross_entropy",
            m->loss->name, last->name);
    TR_NEED(m->loss->applies != last->def, TR_UNSUPPORTED,
            "layer \"%s\" is %s, which %s applies itself: the model was trained on %s of %s, and "
            "gives no logits to choose an id by",
            last->name, last->def->name, m->loss->name, last->def->name, last->def->name);
    TR_NEED(width_of(m) >= ids_of(m), TR_UNSUPPORTED,
            "layer \"%s\" gives %lld logits, but the model reads ids from 0 to %lld: expected a "
            "logit for each of %lld",
            last->name, (long long)width_of(m), (long long)ids_of(m) - 1, (long long)ids_of(m));
out:
    return st;
}

tr_status tr_decoder_holds(const tr_model *m, const tr_decoder_options *o, size_t *nbytes)
{
    tr_graph *g = NULL;
    const tr_graph_options of = {.batch = o->sequences,
                                 .mode = TR_MODE_INFER,
                                 .precision = o->precision,
                                 .ranks = 1,
                                 .decode = {.rows = 1, .cache = o->rows}};
    const tr_status st = tr_graph_open(m, &of, &g);
    if (st == TR_OK) *nbytes = g->held;
    tr_graph_close(g);
    return st;
}

/* A row of each sequence, and what fills them. */
static void decodes_of(const tr_decoder_options *o, tr_decode decodes[2])
{
    decodes[0] = (tr_decode){.rows = 1, .cache = o->rows};
    decodes[1] = (tr_decode){.rows = o->chunk, .cache = o->rows, .fill = true};
}

/* params NULL: only planned. */
static tr_session_options session_options(const tr_decoder_options *o, const tr_model *m,
                                          const tr_params *params, const tr_decode decodes[2])
{
    return (tr_session_options){.model = m,
                                .backend = o->backend,
                                .backend_ctx = o->backend_ctx,
                                .params = params,
                                .threads = o->threads < 1 ? 1 : o->threads,
                                .precision = o->precision,
                                .ranks = 1,
                                .skip_passes = o->skip_passes,
                                .decodes = decodes,
                                .ndecodes = o->chunk > 0 ? 2 : 1,
                                .sequences = o->sequences,
                                .dry = !params};
}

tr_status tr_decoder_needs(const tr_model *m, const tr_decoder_options *o, size_t *nbytes)
{
    tr_status st;
    tr_decode decodes[2];
    tr_session *dry = NULL;
    tr_memory_plan plan;
    decodes_of(o, decodes);
    const tr_session_options of = session_options(o, m, NULL, decodes);
    TR_TRY(tr_session_open(&of, &dry));
    tr_session_memory(dry, &plan);
    *nbytes = (o->backend->host ? m->state_count : m->flat_count + m->state_count) * sizeof(float);
    for (int k = 0; k < TR_MEM_KINDS; k++) *nbytes += plan.bytes[k];
out:
    tr_session_close(dry);
    return st;
}

static tr_status open_session(tr_decoder *d)
{
    tr_decode decodes[2];
    decodes_of(&d->o, decodes);
    const tr_session_options o = session_options(&d->o, d->model, d->params, decodes);
    tr_status st = TR_OK;
    const size_t before = tr_mem_held(TR_MEM_OTHER);
    TR_TRY(tr_session_open(&o, &d->session));
    d->own = tr_mem_held(TR_MEM_OTHER) - before;
    TR_TRY(tr_session_release(d->session));
    d->one = tr_session_decoder(d->session, &decodes[0]);
    if (d->o.chunk > 0) d->fill = tr_session_decoder(d->session, &decodes[1]);
out:
    return st;
}

static tr_status make_room(tr_decoder *d)
{
    const tr_device_memory *m = d->o.backend->memory;
    const tr_graph *g = tr_plan_graph(d->one);
    const tr_tensor *t = &g->tensors[g->logits];
    const size_t n = (size_t)d->o.sequences, ids = n * (size_t)(d->o.chunk > 0 ? d->o.chunk : 1);
    tr_status st = TR_OK;
    for (int i = 0; i < INPUTS; i++)
        TR_HAVE(d->in[i] = m->host_alloc(d->o.backend_ctx, TR_MEM_IO,
                                         (i == 0 ? ids : n) * sizeof(int32_t)));
    if (!d->o.backend->host)
        TR_HAVE(d->fetched = m->host_alloc(d->o.backend_ctx, TR_MEM_IO, t->nbytes));
    TR_HAVE(d->logits = tr_alloc(TR_MEM_IO, t->count, sizeof *d->logits));
    TR_HAVE(d->past = tr_alloc(TR_MEM_OTHER, n, sizeof *d->past));
out:
    return st;
}

tr_status tr_decoder_open(tr_network *n, const tr_decoder_options *o, tr_decoder **out)
{
    tr_status st = TR_OK;
    tr_decoder *d = TR_NEW(TR_MEM_OTHER, tr_decoder);
    if (!d) return tr_last_status();
    d->o = *o;
    if (o->threads < 1) d->o.threads = 1;
    TR_TRY(tr_decoder_takes(n->model));
    TR_TRY(tr_model_copy(n->model, NULL, NULL, 0, &d->model));
    TR_TRY(tr_inference_take_values(n, d->model, o->backend, o->backend_ctx, &d->params));
    TR_TRY(open_session(d));
    TR_TRY(make_room(d));
    *out = d;
out:
    if (st != TR_OK) tr_decoder_close(d);
    return st;
}

void tr_decoder_close(tr_decoder *d)
{
    if (!d) return;
    const tr_device_memory *m = d->o.backend->memory;
    tr_session_close(d->session);
    tr_params_close(d->params);
    for (int i = 0; i < INPUTS; i++) m->host_free(d->o.backend_ctx, d->in[i]);
    m->host_free(d->o.backend_ctx, d->fetched);
    tr_free(d->logits);
    tr_free(d->past);
    tr_model_close(d->model);
    tr_free(d);
}

tr_status tr_decoder_reset(tr_decoder *d)
{
    memset(d->past, 0, (size_t)d->o.sequences * sizeof *d->past);
    return tr_session_forget(d->session);
}

/* Past an embedding's rows lies what is not its own. */
static tr_status check_id(const tr_decoder *d, int32_t id)
{
    if (id >= 0 && id < ids_of(d->model)) return TR_OK;
    return TR_FAIL(TR_USAGE, "id %d, but the model knows ids from 0 to %lld", id,
                   (long long)ids_of(d->model) - 1);
}

/* What lies in the first inputs, and as many rows of each sequence as counts say. */
static tr_status run(tr_decoder *d, tr_plan *p)
{
    static const tr_run nothing;
    const size_t n = (size_t)d->o.sequences;
    int32_t *count = d->in[TR_DECODE_COUNT];
    tr_status st = TR_OK;
    for (size_t s = 0; s < n; s++)
        TR_NEED(count[s] <= d->o.rows - d->past[s], TR_INTERNAL, "%d ids more for %lld that fit",
                count[s], (long long)d->o.rows - d->past[s]);
    memcpy(d->in[TR_DECODE_PAST], d->past, n * sizeof *d->past);
    TR_TRY(tr_session_stage(d->session));
    for (size_t i = 0; i < INPUTS; i++) TR_TRY(tr_plan_set_input(p, i, d->in[i]));
    TR_TRY(tr_plan_run(p, &nothing));
    for (size_t s = 0; s < n; s++) d->past[s] += count[s];
out:
    return st;
}

tr_status tr_decoder_feed(tr_decoder *d, const int32_t *const *ids, const size_t *counts)
{
    const size_t n = (size_t)d->o.sequences, chunk = (size_t)d->o.chunk;
    tr_status st = TR_OK;
    for (size_t s = 0; s < n; s++) {
        TR_NEED(counts[s] == 0 || d->fill, TR_INTERNAL,
                "a decoder that is fed nothing was opened, and is fed %zu ids", counts[s]);
        for (size_t i = 0; i < counts[s]; i++) TR_TRY(check_id(d, ids[s][i]));
    }
    for (size_t from = 0;; from += chunk) {
        bool any = false;
        for (size_t s = 0; s < n; s++) {
            const size_t left = counts[s] > from ? counts[s] - from : 0;
            const size_t some = left < chunk ? left : chunk;
            d->in[TR_DECODE_COUNT][s] = (int32_t)some;
            memset(d->in[0] + s * chunk, 0, chunk * sizeof(int32_t));
            if (some > 0) memcpy(d->in[0] + s * chunk, ids[s] + from, some * sizeof(int32_t));
            any |= some > 0;
        }
        if (!any) break;
        TR_TRY(run(d, d->fill));
        TR_TRY(tr_device_finish(d->o.backend, d->o.backend_ctx)); /* the inputs are written anew */
    }
out:
    return st;
}

/* Heads are padded: logits of ids that no embedding knows are left out, of each row. */
static void leave_out(tr_decoder *d)
{
    const size_t width = (size_t)width_of(d->model), ids = (size_t)ids_of(d->model);
    for (size_t s = 1; width > ids && s < (size_t)d->o.sequences; s++)
        memmove(d->logits + s * ids, d->logits + s * width, ids * sizeof *d->logits);
}

tr_status tr_decoder_step(tr_decoder *d, const int32_t *ids, const bool *live, const float **logits)
{
    const tr_graph *g = tr_plan_graph(d->one);
    const tr_tensor *t = &g->tensors[g->logits];
    const void *from;
    tr_status st = TR_OK;
    for (int64_t s = 0; s < d->o.sequences; s++) {
        if (live[s]) TR_TRY(check_id(d, ids[s]));
        d->in[0][s] = live[s] ? ids[s] : 0;
        d->in[TR_DECODE_COUNT][s] = live[s];
    }
    TR_TRY(run(d, d->one));
    from = tr_plan_tensor(d->one, g->logits);
    if (d->fetched) {
        TR_TRY(d->o.backend->memory->download(d->o.backend_ctx, d->fetched, from, t->nbytes));
        from = d->fetched;
    }
    tr_convert_out(t, from, d->logits);
    leave_out(d);
    *logits = d->logits;
out:
    return st;
}

int64_t tr_decoder_vocabulary(const tr_decoder *d)
{
    return ids_of(d->model);
}

int64_t tr_decoder_sequences(const tr_decoder *d)
{
    return d->o.sequences;
}

int64_t tr_decoder_chunk(const tr_decoder *d)
{
    return d->o.chunk;
}

int64_t tr_decoder_rows(const tr_decoder *d)
{
    return d->o.rows;
}

void tr_decoder_memory(const tr_decoder *d, tr_memory_plan *out, size_t *held)
{
    tr_session_memory(d->session, out);
    out->bytes[TR_MEM_WEIGHTS] += tr_session_weights(d->session);
    out->bytes[TR_MEM_OTHER] += d->own;
    *held = tr_session_held(d->session);
}

tr_plan *tr_decoder_plan(tr_decoder *d)
{
    return d->one;
}
