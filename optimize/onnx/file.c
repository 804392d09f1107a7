/* A message as a file, packed straight into it; large ones with their values in a second file,
 * which is there before the first. */
#include <string.h>
#include <unistd.h>

#include "optimize/onnx/writer.h"
#include "runtime/base/file.h"

enum {
    PIECE = 1 << 16,
    ALIGN = 64,    /* of values in a file of their own */
    LITTLE = 1024, /* bytes: what stays with the graph in any case */
};
/* A message of the format has less than 2 GB. */
#define MESSAGE_MAX ((uint64_t)INT32_MAX)

typedef struct {
    ProtobufCBuffer base;
    tr_commit *file;
    tr_status st;
    uint64_t at; /* bytes written */
    size_t n;
    uint8_t bytes[PIECE];
} stream;

static void flush(stream *s)
{
    if (s->st == TR_OK && s->n) s->st = tr_commit_write(s->file, s->at, s->bytes, s->n);
    s->at += s->n;
    s->n = 0;
}

static void append(ProtobufCBuffer *base, size_t n, const uint8_t *bytes)
{
    stream *s = (stream *)base;
    if (s->n + n > PIECE) flush(s);
    if (n > PIECE) {
        if (s->st == TR_OK) s->st = tr_commit_write(s->file, s->at, bytes, n);
        s->at += n;
        return;
    }
    memcpy(s->bytes + s->n, bytes, n);
    s->n += n;
}

static tr_status write_message(const char *path, const ProtobufCMessage *m)
{
    tr_status st = TR_OK;
    tr_commit file = {.fd = -1};
    stream *s = TR_NEW(TR_MEM_OTHER, stream);
    TR_HAVE(s);
    TR_TRY(tr_commit_open(&file, path, protobuf_c_message_get_packed_size(m)));
    s->base.append = append;
    s->file = &file;
    protobuf_c_message_pack_to_buffer(m, &s->base);
    flush(s);
    TR_TRY(s->st);
    st = tr_commit_finish(&file);
out:
    tr_commit_close(&file);
    tr_free(s);
    return st;
}

static void say(tr_pool *p, Onnx__TensorProto *t, const char *key, char *value)
{
    Onnx__StringStringEntryProto *e =
        TR_MESSAGE(p, Onnx__StringStringEntryProto, ONNX__STRING_STRING_ENTRY_PROTO__INIT);
    if (!e) return;
    e->key = tr_pool_copy(p, key);
    e->value = value;
    tr_pool_push(p, &t->external_data, &t->n_external_data, e);
}

static bool goes_out(const Onnx__TensorProto *t)
{
    return t->has_raw_data && t->raw_data.len > LITTLE;
}

/* Puts every tensor of some size into NAME, beside the graph's file, and says so in the tensor. */
static tr_status write_values(const char *path, const char *name, Onnx__GraphProto *g, tr_pool *p)
{
    tr_status st = TR_OK;
    uint64_t at = 0;
    tr_commit file = {.fd = -1};
    for (size_t i = 0; i < g->n_initializer; i++)
        if (goes_out(g->initializer[i]))
            at = tr_align_up(at, ALIGN) + g->initializer[i]->raw_data.len;
    TR_TRY(tr_commit_open(&file, path, at));
    at = 0;
    for (size_t i = 0; i < g->n_initializer; i++) {
        Onnx__TensorProto *t = g->initializer[i];
        if (!goes_out(t)) continue;
        at = tr_align_up(at, ALIGN);
        TR_TRY(tr_commit_write(&file, at, t->raw_data.data, t->raw_data.len));
        say(p, t, "location", tr_pool_copy(p, name));
        say(p, t, "offset", tr_pool_text(p, "%llu", (unsigned long long)at));
        say(p, t, "length", tr_pool_text(p, "%zu", t->raw_data.len));
        at += t->raw_data.len;
        t->has_raw_data = false;
        t->has_data_location = true;
        t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    }
    TR_TRY(p->st);
    st = tr_commit_finish(&file);
out:
    tr_commit_close(&file);
    return st;
}

static tr_status check_size(const char *path, uint64_t nbytes, uint64_t most)
{
    if (nbytes <= most) return TR_OK;
    return TR_FAIL(TR_UNSUPPORTED,
                   "%s: the graph has %llu bytes without its values, ONNX files have at most %llu",
                   path, (unsigned long long)nbytes, (unsigned long long)most);
}

tr_status tr_onnx_save(const char *path, const Onnx__ModelProto *model, const tr_onnx_options *o,
                       tr_pool *pool)
{
    tr_status st = TR_OK;
    const uint64_t most = o->message_max ? o->message_max : MESSAGE_MAX;
    uint64_t values = 0, whole = protobuf_c_message_get_packed_size(&model->base);
    for (size_t i = 0; i < model->graph->n_initializer; i++)
        values += model->graph->initializer[i]->raw_data.len;
    const bool apart = whole > most || (o->external_over > 0 && values >= o->external_over);
    const char *slash = strrchr(path, '/');
    char *data = tr_pool_text(pool, "%s.data", path);
    char *name = tr_pool_text(pool, "%s.data", slash ? slash + 1 : path);
    TR_TRY(pool->st);
    if (apart) {
        TR_TRY(check_size(path, whole - values, most)); /* before what is there goes */
        unlink(path); /* an older graph would be read with the newer values */
        st = write_values(data, name, model->graph, pool);
        whole = protobuf_c_message_get_packed_size(&model->base);
        if (st == TR_OK) st = check_size(path, whole, most);
    }
    if (st == TR_OK) st = write_message(path, &model->base);
    if (apart == (st != TR_OK)) unlink(data); /* of an older graph, or of none */
out:
    return st;
}
