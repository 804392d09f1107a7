/* Messages of protobuf-c changed by what their descriptors say: fields set to other values,
 * elements of lists left out, doubled or moved, messages and texts taken from elsewhere in the same
 * file. */
#ifndef TR_FUZZ_MESSAGE_H
#define TR_FUZZ_MESSAGE_H

#include <math.h>
#include <string.h>

#include "optimize/onnx/pool.h"
#include "tests/fuzz/chance.h"

enum { FUZZ_MESSAGES = 4096, FUZZ_TEXTS = 4096, FUZZ_BYTES = 8192 };

typedef struct {
    chance *c;
    tr_pool *pool; /* of all messages */
    size_t n, ntexts;
    ProtobufCMessage *v[FUZZ_MESSAGES]; /* all of the file, the root first */
    const char *texts[FUZZ_TEXTS];      /* in it */
    /* A text for this field; NULL: one of those in the file. May be NULL. */
    const char *(*word)(chance *c, const ProtobufCFieldDescriptor *f);
} message_tree;

static void *message_alloc(void *pool, size_t n)
{
    return tr_pool_get(pool, n, 1);
}

static void message_free(void *pool, void *p)
{
    (void)pool, (void)p; /* with the pool */
}

/* NULL: no such message, or no memory. */
static ProtobufCMessage *message_unpack(tr_pool *pool, const ProtobufCMessageDescriptor *d,
                                        const uint8_t *bytes, size_t n)
{
    ProtobufCAllocator memory = {
        .alloc = message_alloc, .free = message_free, .allocator_data = pool};
    return protobuf_c_message_unpack(d, &memory, n, bytes);
}

static void *message_field(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    return (char *)m + f->offset;
}

/* The count of a list, the presence of a number, which of several is there. */
static void *message_quantity(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    return (char *)m + f->quantifier_offset;
}

static size_t message_size_of(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    default:
        return 4;
    }
}

static bool message_oneof(const ProtobufCFieldDescriptor *f)
{
    return f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
}

static bool message_list(const ProtobufCFieldDescriptor *f)
{
    return f->label == PROTOBUF_C_LABEL_REPEATED;
}

/* Elements of a field: of a list, else 1 or 0. */
static size_t message_count(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    if (message_list(f)) return *(size_t *)message_quantity(m, f);
    if (message_oneof(f)) return *(uint32_t *)message_quantity(m, f) == f->id;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE || f->type == PROTOBUF_C_TYPE_STRING) {
        const void *p = *(void **)message_field(m, f);
        return p != NULL && p != f->default_value;
    }
    return f->label != PROTOBUF_C_LABEL_OPTIONAL || *(protobuf_c_boolean *)message_quantity(m, f);
}

static char *message_elements(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    return message_list(f) ? *(char **)message_field(m, f) : message_field(m, f);
}

/* All messages and texts below m. */
static void message_walk(message_tree *t, ProtobufCMessage *m)
{
    if (t->n == FUZZ_MESSAGES) return;
    t->v[t->n++] = m;
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        const size_t n = message_count(m, f);
        if (f->type != PROTOBUF_C_TYPE_MESSAGE && f->type != PROTOBUF_C_TYPE_STRING) continue;
        for (size_t k = 0; k < n; k++) {
            void *at = ((void **)message_elements(m, f))[k];
            if (f->type == PROTOBUF_C_TYPE_MESSAGE)
                message_walk(t, at);
            else if (t->ntexts < FUZZ_TEXTS)
                t->texts[t->ntexts++] = at;
        }
    }
}

/* Puts `item` before the element `at` of a list of pointers, whose room is as large as it was
 * packed. */
static void message_put(tr_pool *pool, void *list, size_t *n, size_t at, void *item)
{
    void **old, **v = tr_pool_get(pool, *n + 1, sizeof *v);
    if (!v || !item) return;
    memcpy(&old, list, sizeof old);
    if (at > 0) memcpy(v, old, at * sizeof *v);
    v[at] = item;
    if (*n > at) memcpy(v + at + 1, old + at, (*n - at) * sizeof *v);
    memcpy(list, &v, sizeof v);
    ++*n;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

/* NULL: no memory. */
static ProtobufCMessage *message_copy(tr_pool *pool, const ProtobufCMessage *m)
{
    uint8_t *bytes = tr_pool_get(pool, protobuf_c_message_get_packed_size(m) + 1, 1);
    if (!bytes) return NULL;
    return message_unpack(pool, m->descriptor, bytes, protobuf_c_message_pack(m, bytes));
}

/* A copy of some message of this kind, or an empty one. */
static ProtobufCMessage *message_another(message_tree *t, const ProtobufCMessageDescriptor *d)
{
    const size_t first = chance_pick(t->c, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const ProtobufCMessage *m = t->v[(first + i) % t->n];
        if (m->descriptor == d) return message_copy(t->pool, m);
    }
    return message_unpack(t->pool, d, NULL, 0);
}

/* ---- Values ---------------------------------------------------------------------------------- */

static char *message_text(message_tree *t, const ProtobufCFieldDescriptor *f, const char *now)
{
    const char *word = t->word ? t->word(t->c, f) : NULL;
    const size_t how = chance_pick(t->c, 8);
    if (!word && t->ntexts > 0) word = t->texts[chance_pick(t->c, t->ntexts)];
    if (how == 0 || !word) word = now ? now : "";
    char *text = tr_pool_text(t->pool, how == 1 ? "%s%u" : "%s", word, (unsigned)how);
    if (text && how == 0 && *text)
        text[chance_pick(t->c, strlen(text))] = "\0/.x %"[chance_pick(t->c, 6)];
    return text;
}

/* Values as tensors hold them, or other bytes, mostly as many as there were. */
static void message_bytes(message_tree *t, ProtobufCBinaryData *b)
{
    size_t n = b->len;
    const size_t how = chance_pick(t->c, 8);
    if (how == 0) n = chance_pick(t->c, 64);
    if (how == 1) n = n > FUZZ_BYTES ? FUZZ_BYTES : 2 * n;
    if (how == 2) n /= 2;
    uint8_t *v = tr_pool_get(t->pool, n + 8, 1);
    if (!v) return;
    if (b->len > 0) memcpy(v, b->data, n < b->len ? n : b->len);
    for (size_t k = 0; how > 2 && n >= 8 && k < 1 + how % 3; k++) {
        const int64_t whole = chance_whole(t->c);
        const float real = (float)chance_real(t->c);
        if (how < 5)
            memcpy(v + chance_pick(t->c, n / 8) * 8, &whole, 8);
        else if (how < 7)
            memcpy(v + chance_pick(t->c, n / 4) * 4, &real, 4);
        else
            v[chance_pick(t->c, n)] = (uint8_t)whole;
    }
    *b = (ProtobufCBinaryData){.data = v, .len = n};
}

static void message_value(message_tree *t, const ProtobufCFieldDescriptor *f, void *at)
{
    const int64_t whole = chance_whole(t->c);
    const int32_t narrow = (int32_t)whole;
    const double real = chance_real(t->c);
    const float single = (float)real;
    const protobuf_c_boolean yes = whole & 1;
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = message_text(t, f, *(char **)at);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        message_bytes(t, at);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = message_another(t, f->descriptor);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        memcpy(at, &single, sizeof single);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(at, &real, sizeof real);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        memcpy(at, &yes, sizeof yes);
        break;
    default:
        memcpy(at, message_size_of(f) == 8 ? (const void *)&whole : &narrow, message_size_of(f));
    }
}

/* ---- Fields ---------------------------------------------------------------------------------- */

/* Left out, doubled, moved, or another one put in. */
static void message_change_list(message_tree *t, ProtobufCMessage *m,
                                const ProtobufCFieldDescriptor *f)
{
    size_t *n = message_quantity(m, f);
    const size_t size = message_size_of(f), at = chance_pick(t->c, *n), to = chance_pick(t->c, *n);
    char *old = message_elements(m, f), *v = tr_pool_get(t->pool, *n + 1, size), swap[16];
    if (!v) return;
    if (*n > 0) memcpy(v, old, *n * size);
    *(char **)message_field(m, f) = v;
    switch (*n > 0 ? chance_pick(t->c, 4) : 0) {
    case 0: /* another one, at the end or in the place of one that goes there */
        message_value(t, f, v + *n * size);
        ++*n;
        memcpy(swap, v + at * size, size);
        memcpy(v + at * size, v + (*n - 1) * size, size);
        memcpy(v + (*n - 1) * size, swap, size);
        break;
    case 1:
        memmove(v + at * size, v + (at + 1) * size, (*n - at - 1) * size);
        --*n;
        break;
    case 2:
        memcpy(swap, v + at * size, size);
        memcpy(v + at * size, v + to * size, size);
        memcpy(v + to * size, swap, size);
        break;
    default:
        memcpy(v + *n * size, v + at * size, size);
        ++*n;
    }
}

static void message_set(message_tree *t, ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    void *at = message_field(m, f);
    const bool pointer = f->type == PROTOBUF_C_TYPE_MESSAGE || f->type == PROTOBUF_C_TYPE_STRING,
               there = message_count(m, f) > 0;
    if (there && chance_pick(t->c, 6) == 0) { /* left out */
        if (message_oneof(f))
            *(uint32_t *)message_quantity(m, f) = 0;
        else if (pointer)
            *(void **)at = NULL;
        else
            *(protobuf_c_boolean *)message_quantity(m, f) = false;
        return;
    }
    if (!there) memset(at, 0, message_size_of(f));
    message_value(t, f, at);
    if (message_oneof(f))
        *(uint32_t *)message_quantity(m, f) = f->id;
    else if (!pointer && f->label == PROTOBUF_C_LABEL_OPTIONAL)
        *(protobuf_c_boolean *)message_quantity(m, f) = true;
}

/* Some field of some message; those that are there are the likelier ones. */
static void message_change(message_tree *t)
{
    ProtobufCMessage *m = t->v[chance_pick(t->c, t->n)];
    const ProtobufCFieldDescriptor *f = NULL;
    for (int tries = 0; tries < 6; tries++) {
        f = &m->descriptor->fields[chance_pick(t->c, m->descriptor->n_fields)];
        if (message_count(m, f) > 0) break;
    }
    if (!message_list(f)) {
        message_set(t, m, f);
    } else if (message_count(m, f) == 0 || f->type == PROTOBUF_C_TYPE_MESSAGE ||
               chance_pick(t->c, 3) == 0) {
        message_change_list(t, m, f);
    } else {
        message_value(t, f,
                      message_elements(m, f) +
                          chance_pick(t->c, message_count(m, f)) * message_size_of(f));
    }
}

#endif
