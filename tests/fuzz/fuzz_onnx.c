/* links: trireme_onnx trireme_onnx_messages
 * libFuzzer: an ONNX file, read as a user's would be, beside a file of values `v` and a folder `d`
 * with another: any bytes end in a network or in an error with a text, and nothing is left; what
 * was read is written and read again.
 *   fuzz_onnx NEW_FOLDER tests/fuzz/corpus/onnx -max_len=32768 -max_total_time=600
 * Inputs are changed as messages (message.h) and as graphs: nodes put in, outputs taken from
 * within, tensors of another size or type. Bytes that are no message are changed as bytes. The
 * corpus: of the unit tests' models in several opsets and of small ones that torch.onnx.export
 * wrote, the fewest that reach what all of them do (-set_cover_merge=1). */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz_data.h"
#include "fuzz_folder.h"
#include "message.h"
#include "optimize/onnx/fold.h"
#include "optimize/onnx/ops/ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t na, const uint8_t *b, size_t nb,
                                 uint8_t *out, size_t most, unsigned seed);

/* ---- Words ----------------------------------------------------------------------------------- */

enum { OPERATORS = 256 };

/* Every operator that is read, by itself, on constants, or in patterns and views of several. */
static const char *const *operators(size_t *n)
{
    static const char *v[OPERATORS];
    static const char *const inside[] = {
        "Abs",         "And", "Attention",      "Erf",       "GRU",   "Greater", "LSTM", "Less",
        "LessOrEqual", "Max", "QuantizeLinear", "ReduceMax", "Round", "Split"};
    static const tr_onnx_family *const families[] = {
#define X(name) &tr_onnx_##name,
        TR_ONNX_FAMILIES(X)
#undef X
    };
    static size_t count;
    if (count == 0) {
        for (size_t i = 0; i < TR_COUNT(inside); i++) v[count++] = inside[i];
        for (size_t i = 0; tr_onnx_fold_type(i); i++) v[count++] = tr_onnx_fold_type(i);
        for (size_t i = 0; i < TR_COUNT(families); i++) {
            const tr_onnx_operator *o = families[i]->operators;
            const tr_onnx_pattern *p = families[i]->patterns;
            for (; o && o->type && count < OPERATORS; o++) v[count++] = o->type;
            for (; p && p->last && count < OPERATORS; p++) v[count++] = p->last;
        }
    }
    *n = count;
    return v;
}

static const char *word(chance *c, const ProtobufCFieldDescriptor *f)
{
    static const char *const attributes[] = {"activations",
                                             "alpha",
                                             "allowzero",
                                             "antialias",
                                             "approximate",
                                             "auto_pad",
                                             "axes",
                                             "axis",
                                             "beta",
                                             "block_size",
                                             "ceil_mode",
                                             "clip",
                                             "coordinate_transformation_mode",
                                             "count_include_pad",
                                             "dilations",
                                             "direction",
                                             "end",
                                             "ends",
                                             "epsilon",
                                             "group",
                                             "hidden_size",
                                             "input_forget",
                                             "is_causal",
                                             "keepdims",
                                             "kernel_shape",
                                             "kv_num_heads",
                                             "layout",
                                             "linear_before_reset",
                                             "max",
                                             "min",
                                             "mode",
                                             "momentum",
                                             "nearest_mode",
                                             "num_groups",
                                             "num_outputs",
                                             "output_padding",
                                             "output_shape",
                                             "pads",
                                             "perm",
                                             "q_num_heads",
                                             "scale",
                                             "shape",
                                             "softcap",
                                             "split",
                                             "start",
                                             "starts",
                                             "steps",
                                             "strides",
                                             "to",
                                             "training_mode",
                                             "transA",
                                             "transB",
                                             "upper",
                                             "value",
                                             "value_float",
                                             "value_floats",
                                             "value_int",
                                             "value_ints"},
                             *const places[] = {"location",      "offset", "length", "v",   "d/w",
                                                "../v",          "64",     "0",      "256", "link",
                                                "trireme.config"};
    size_t n;
    if (strcmp(f->name, "op_type") == 0 && chance_pick(c, 4)) {
        const char *const *all = operators(&n);
        return all[chance_pick(c, n)];
    }
    if (strcmp(f->name, "name") == 0 && chance_pick(c, 4) == 0)
        return attributes[chance_pick(c, TR_COUNT(attributes))];
    if (strcmp(f->name, "key") == 0 || (strcmp(f->name, "value") == 0))
        return places[chance_pick(c, TR_COUNT(places))];
    return NULL;
}

/* ---- Changes of a graph ---------------------------------------------------------------------- */

static const char *some_value(message_tree *t, const Onnx__GraphProto *g)
{
    const size_t how = chance_pick(t->c, 4);
    if (how == 0 && g->n_input > 0) return g->input[chance_pick(t->c, g->n_input)]->name;
    if (how == 1 && g->n_initializer > 0)
        return g->initializer[chance_pick(t->c, g->n_initializer)]->name;
    const Onnx__NodeProto *n = g->n_node > 0 ? g->node[chance_pick(t->c, g->n_node)] : NULL;
    return n && n->n_output > 0 ? n->output[chance_pick(t->c, n->n_output)] : NULL;
}

/* A node between one of another's operands and this one; its further operands are any values. */
static void put_node(message_tree *t, Onnx__GraphProto *g)
{
    size_t types;
    const char *const *all = operators(&types);
    if (g->n_node == 0) return;
    const size_t at = chance_pick(t->c, g->n_node);
    Onnx__NodeProto *reader = g->node[at];
    Onnx__NodeProto *n = TR_MESSAGE(t->pool, Onnx__NodeProto, ONNX__NODE_PROTO__INIT);
    if (!n || reader->n_input == 0) return;
    const size_t operand = chance_pick(t->c, reader->n_input);
    char *name = tr_pool_text(t->pool, "f%u", (unsigned)chance_bits(t->c) % 1000);
    n->op_type = tr_pool_copy(t->pool, all[chance_pick(t->c, types)]);
    tr_pool_push(t->pool, &n->input, &n->n_input, reader->input[operand]);
    for (size_t k = chance_pick(t->c, 6); k < 3; k++)
        tr_pool_push(t->pool, &n->input, &n->n_input, (char *)some_value(t, g));
    tr_pool_push(t->pool, &n->output, &n->n_output, name);
    if (t->pool->st != TR_OK) return;
    reader->input[operand] = name;
    message_put(t->pool, &g->node, &g->n_node, at, n);
}

/* The graph up to one of its values, or with other edges. */
static void move_edge(message_tree *t, Onnx__GraphProto *g)
{
    const char *name = some_value(t, g);
    if (!name) return;
    if (chance_pick(t->c, 2) && g->n_output > 0) {
        g->output[chance_pick(t->c, g->n_output)]->name = (char *)name;
    } else if (g->n_node > 0) {
        Onnx__NodeProto *n = g->node[chance_pick(t->c, g->n_node)];
        if (n->n_input > 0) n->input[chance_pick(t->c, n->n_input)] = (char *)name;
    }
}

static size_t element(int type)
{
    static const unsigned char sizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2};
    return type > 0 && type < (int)TR_COUNT(sizes) ? sizes[type] : 0;
}

/* Other dimensions or another type, with as many values as these say; now and then in a file of
 * their own. */
static void resize_tensor(message_tree *t, Onnx__TensorProto *x)
{
    size_t n = 1;
    if (x->n_dims > 0 && chance_pick(t->c, 3))
        x->dims[chance_pick(t->c, x->n_dims)] = (int64_t)chance_pick(t->c, 20);
    else if (x->n_dims > 1 && chance_pick(t->c, 2))
        x->n_dims--;
    else if (chance_pick(t->c, 2))
        x->data_type = 1 + (int)chance_pick(t->c, 16);
    for (size_t d = 0; d < x->n_dims && n < FUZZ_BYTES; d++)
        n *= x->dims[d] < 0 ? 0 : x->dims[d] > FUZZ_BYTES ? FUZZ_BYTES : (size_t)x->dims[d];
    n *= element(x->data_type);
    if (n > FUZZ_BYTES) return;
    if (chance_pick(t->c, 8) == 0) {
        x->has_raw_data = false;
        x->has_data_location = true;
        x->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
        Onnx__StringStringEntryProto *e = TR_MESSAGE(t->pool, Onnx__StringStringEntryProto,
                                                     ONNX__STRING_STRING_ENTRY_PROTO__INIT);
        if (!e) return;
        e->key = (char *)"location";
        e->value = (char *)(chance_pick(t->c, 2) ? "v" : "d/w");
        message_put(t->pool, &x->external_data, &x->n_external_data, 0, e);
        return;
    }
    uint8_t *v = tr_pool_get(t->pool, n + 1, 1);
    if (!v) return;
    for (size_t i = 0; i < n && x->raw_data.len > 0; i++)
        v[i] = x->raw_data.data[i % x->raw_data.len];
    x->raw_data = (ProtobufCBinaryData){.data = v, .len = n};
    x->has_raw_data = true;
}

static void change(message_tree *t, Onnx__ModelProto *m)
{
    Onnx__GraphProto *g = m->graph;
    const size_t how = chance_pick(t->c, 10);
    if (g && how == 0)
        put_node(t, g);
    else if (g && how == 1)
        move_edge(t, g);
    else if (g && how == 2 && g->n_initializer > 0)
        resize_tensor(t, g->initializer[chance_pick(t->c, g->n_initializer)]);
    else if (g && how == 3 && g->n_node > 0)
        message_set(t, &g->node[chance_pick(t->c, g->n_node)]->base,
                    protobuf_c_message_descriptor_get_field_by_name(&onnx__node_proto__descriptor,
                                                                    "op_type"));
    else
        message_change(t);
}

/* ---- As libFuzzer calls it ------------------------------------------------------------------- */

static Onnx__ModelProto *model_of(tr_pool *pool, const uint8_t *bytes, size_t n)
{
    if (!tr_onnx_is_sound(bytes, n)) return NULL;
    return (Onnx__ModelProto *)message_unpack(pool, &onnx__model_proto__descriptor, bytes, n);
}

static size_t pack(const tr_pool *pool, const Onnx__ModelProto *m, uint8_t *bytes, size_t most)
{
    if (pool->st != TR_OK || onnx__model_proto__get_packed_size(m) > most) return 0;
    return onnx__model_proto__pack(m, bytes);
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed)
{
    static message_tree t;
    chance c = {.state = seed};
    tr_pool pool = {.most = 64 << 20};
    Onnx__ModelProto *m = chance_pick(&c, 16) ? model_of(&pool, bytes, n) : NULL;
    size_t now = 0;
    if (m) {
        for (size_t k = chance_pick(&c, 3); k < 3; k++) {
            t = (message_tree){.c = &c, .pool = &pool, .word = word};
            message_walk(&t, &m->base);
            change(&t, m);
        }
        now = pack(&pool, m, bytes, most);
    }
    tr_pool_close(&pool);
    return now > 0 ? now : LLVMFuzzerMutate(bytes, n, most);
}

/* Some node or tensor of the second file in the first. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t na, const uint8_t *b, size_t nb,
                                 uint8_t *out, size_t most, unsigned seed)
{
    chance c = {.state = seed};
    tr_pool pool = {.most = 64 << 20};
    Onnx__ModelProto *m = model_of(&pool, a, na), *other = model_of(&pool, b, nb);
    size_t n = 0;
    if (m && other && m->graph && other->graph) {
        Onnx__GraphProto *g = m->graph, *from = other->graph;
        for (size_t k = chance_pick(&c, 3); k < 3; k++)
            if (g->n_node > 0 && from->n_node > 0)
                g->node[chance_pick(&c, g->n_node)] = from->node[chance_pick(&c, from->n_node)];
        for (size_t i = 0; i < from->n_initializer; i++)
            if (chance_pick(&c, 2))
                message_put(&pool, &g->initializer, &g->n_initializer, 0, from->initializer[i]);
        n = pack(&pool, m, out, most);
    }
    tr_pool_close(&pool);
    return n;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static void make_folder(void)
{
    static const float values[256] = {1, -1, 0.5f, 2};
    char path[FUZZ_PATH];
    if (!fuzz_make_folder()) return;
    if (mkdir(fuzz_path("d", path), 0700) != 0) abort();
    if (symlink("v", fuzz_path("link", path)) != 0) abort();
    fuzz_write("v", values, sizeof values);
    fuzz_write("d/w", values, sizeof values);
}

static tr_network *read_file(const char *name, tr_onnx_found *found)
{
    const tr_onnx_import o = {.loss = NULL};
    tr_network *net = NULL;
    char path[FUZZ_PATH];
    if (tr_onnx_read(fuzz_path(name, path), &o, &net, found) != TR_OK && !*tr_last_error()->text)
        abort();
    return net;
}

static void again(const tr_network *net)
{
    const tr_onnx_options o = {.opset = 0};
    char path[FUZZ_PATH];
    if (tr_onnx_write(fuzz_path("again.onnx", path), net, &o) != TR_OK) {
        if (!*tr_last_error()->text) abort();
        return;
    }
    tr_network *back = read_file("again.onnx", NULL);
    if (!back) {
        fprintf(stderr, "read again: %s\n", tr_last_error()->text);
        abort();
    }
    tr_network_close(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_WEIGHTS);
    tr_onnx_found found = {0};
    make_folder();
    tr_log_init(0, 1, TR_LOG_ERROR);
    fuzz_write("m.onnx", bytes, n);
    tr_network *net = read_file("m.onnx", &found);
    if (net && net->model->flat_count < 1 << 16) again(net);
    tr_network_close(net);
    tr_onnx_found_free(&found);
    if (tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_WEIGHTS) != held) abort();
    return 0;
}
