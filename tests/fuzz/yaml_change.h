/* A config's YAML changed as a tree: keys, words and numbers in the place of others, parts left
 * out, doubled, moved and taken from elsewhere, layers put in. Keys and words are those of the
 * config's tables and of the layers. */
#ifndef TR_FUZZ_YAML_CHANGE_H
#define TR_FUZZ_YAML_CHANGE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/config/internal.h"
#include "runtime/graph/ops/op.h"
#include "tests/fuzz/chance.h"

enum { YAML_WORDS = 4096, YAML_NODES = 4096, YAML_ROOM = 1 << 20 };

/* ---- Words ----------------------------------------------------------------------------------- */

typedef struct {
    const char *v[YAML_WORDS];
    size_t n;
} yaml_words;

static void yaml_add_word(yaml_words *w, const char *text)
{
    if (!text || !*text || w->n == YAML_WORDS) return;
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->v[i], text) == 0) return;
    w->v[w->n++] = text;
}

static void yaml_add_fields(yaml_words *w, const tr_field *f)
{
    for (; f && f->key; f++) {
        yaml_add_word(w, f->key);
        yaml_add_word(w, f->auto_text);
        for (size_t i = 0; f->choices && f->choices[i]; i++) yaml_add_word(w, f->choices[i]);
        for (const tr_variant_def *v = f->variants; v && v->name; v++) {
            yaml_add_word(w, v->name);
            yaml_add_fields(w, v->fields);
        }
        yaml_add_fields(w, f->fields);
    }
}

/* Further tables whose words count; NULL ends them. */
static const tr_field *const *yaml_more;

static const yaml_words *yaml_words_of_configs(void)
{
    static const char *const more[] = {
        "true",      "false",  "null",   "from",   "name",     "params", "$a",   "${a}",  "$a*2",
        "weight_of", "blocks", "freeze", "[1, 2]", "5 epochs", "50%",    "same", "input", "1.5.2"};
    static yaml_words w;
    static tr_config_table table;
    if (w.n > 0) return &w;
    yaml_add_fields(&w, tr_config_fields(NULL, &table));
    for (size_t i = 0; i < tr_op_count(); i++) {
        const tr_op_def *d = tr_op_at(i);
        if (!d->doc) continue;
        yaml_add_word(&w, d->name);
        yaml_add_fields(&w, d->fields);
    }
    for (size_t i = 0; yaml_more && yaml_more[i]; i++) yaml_add_fields(&w, yaml_more[i]);
    for (size_t i = 0; i < TR_COUNT(more); i++) yaml_add_word(&w, more[i]);
    return &w;
}

/* A layer as its documentation shows it. */
static const char *yaml_layer(chance *c)
{
    for (;;) {
        const tr_op_def *d = tr_op_at(chance_pick(c, tr_op_count()));
        if (d->doc) return d->example ? d->example : d->name;
    }
}

/* ---- Trees ----------------------------------------------------------------------------------- */

typedef struct {
    chance *c;
    tr_node *nodes[YAML_NODES]; /* values, the root first */
    size_t n;
    size_t used; /* of the room */
    _Alignas(16) char room[YAML_ROOM];
} yaml_tree;

static void *yaml_get(yaml_tree *t, size_t nbytes)
{
    nbytes = tr_align_up(nbytes, 16);
    if (nbytes > YAML_ROOM - t->used) return NULL;
    void *p = t->room + t->used;
    t->used += nbytes;
    return memset(p, 0, nbytes);
}

static tr_node *yaml_scalar(yaml_tree *t, const char *text)
{
    tr_node *n = yaml_get(t, sizeof *n);
    char *copy = yaml_get(t, strlen(text) + 1);
    if (!n || !copy) return NULL;
    strcpy(copy, text);
    *n = (tr_node){.kind = TR_NODE_SCALAR, .source = "", .text = copy};
    return n;
}

/* NULL: no room. Lists have room for one more. */
static tr_node *yaml_copy(yaml_tree *t, const tr_node *from)
{
    if (from->kind == TR_NODE_SCALAR) {
        tr_node *n = yaml_scalar(t, from->text);
        if (n) n->quoted = from->quoted;
        return n;
    }
    tr_node *n = yaml_get(t, sizeof *n), **keys = NULL,
            **values = yaml_get(t, (from->count + 1) * sizeof *values);
    if (from->kind == TR_NODE_MAP) keys = yaml_get(t, (from->count + 1) * sizeof *keys);
    if (!n || !values || (from->kind == TR_NODE_MAP && !keys)) return NULL;
    for (size_t i = 0; i < from->count; i++) {
        values[i] = yaml_copy(t, from->values[i]);
        if (keys) keys[i] = yaml_copy(t, from->keys[i]);
        if (!values[i] || (keys && !keys[i])) return NULL;
    }
    *n = *from;
    n->keys = keys;
    n->values = values;
    return n;
}

static void yaml_walk(yaml_tree *t, tr_node *n)
{
    if (t->n == YAML_NODES) return;
    t->nodes[t->n++] = n;
    for (size_t i = 0; n->kind != TR_NODE_SCALAR && i < n->count; i++) yaml_walk(t, n->values[i]);
}

/* Whether b says what a does; what was plain may be quoted in it. */
__attribute__((unused)) static bool yaml_same(const tr_node *a, const tr_node *b)
{
    if (a->kind != b->kind || a->count != b->count) return false;
    if (a->kind == TR_NODE_SCALAR && (strcmp(a->text, b->text) != 0 || (a->quoted && !b->quoted)))
        return false;
    for (size_t i = 0; i < a->count; i++) {
        if (a->keys && strcmp(a->keys[i]->text, b->keys[i]->text) != 0) return false;
        if (!yaml_same(a->values[i], b->values[i])) return false;
    }
    return true;
}

/* ---- Changes --------------------------------------------------------------------------------- */

static tr_node *yaml_any_scalar(yaml_tree *t)
{
    const yaml_words *w = yaml_words_of_configs();
    char text[64];
    switch (chance_pick(t->c, 5)) {
    case 0:
        snprintf(text, sizeof text, "%lld", (long long)chance_whole(t->c));
        return yaml_scalar(t, text);
    case 1:
        snprintf(text, sizeof text, "%.9g", chance_real(t->c));
        return yaml_scalar(t, text);
    case 2:
        snprintf(text, sizeof text, "%zu", 1 + chance_pick(t->c, 16));
        return yaml_scalar(t, text);
    default:
        return yaml_scalar(t, w->v[chance_pick(t->c, w->n)]);
    }
}

/* A copy of some part, a word, a number or a layer. */
static tr_node *yaml_any(yaml_tree *t)
{
    const size_t how = chance_pick(t->c, 4);
    if (how == 0) return yaml_copy(t, t->nodes[chance_pick(t->c, t->n)]);
    if (how > 1) return yaml_any_scalar(t);
    tr_document d;
    const char *layer = yaml_layer(t->c);
    if (tr_document_parse("layer", layer, strlen(layer), &d) != TR_OK) return NULL;
    tr_node *n = yaml_copy(t, d.root);
    tr_document_close(&d);
    return n;
}

/* Another key: of the tables, or one of the tree. */
static tr_node *yaml_any_key(yaml_tree *t)
{
    const yaml_words *w = yaml_words_of_configs();
    const tr_node *n = t->nodes[chance_pick(t->c, t->n)];
    if (n->kind == TR_NODE_MAP && n->count > 0 && chance_pick(t->c, 2))
        return yaml_copy(t, n->keys[chance_pick(t->c, n->count)]);
    return yaml_scalar(t, w->v[chance_pick(t->c, w->n)]);
}

static void yaml_change_children(yaml_tree *t, tr_node *n)
{
    const size_t at = chance_pick(t->c, n->count), to = chance_pick(t->c, n->count),
                 how = n->count > 0 ? chance_pick(t->c, 5) : 4;
    tr_node *value, *key = NULL;
    switch (how) {
    case 0: /* left out */
        n->count--;
        for (size_t i = at; i < n->count; i++) {
            n->values[i] = n->values[i + 1];
            if (n->keys) n->keys[i] = n->keys[i + 1];
        }
        break;
    case 1:
        value = n->values[at];
        n->values[at] = n->values[to];
        n->values[to] = value;
        break;
    case 2:
        if (n->keys && (key = yaml_any_key(t))) n->keys[at] = key;
        break;
    case 3:
        if ((value = yaml_any(t))) n->values[at] = value;
        break;
    default: /* one more; a tree that was changed before may have no more room in this list */
        value =
            n->count > 0 && chance_pick(t->c, 3) == 0 ? yaml_copy(t, n->values[at]) : yaml_any(t);
        if (n->keys) key = yaml_any_key(t);
        if (!value || (n->keys && !key)) return;
        n->values[n->count] = n->values[0];
        if (n->keys) n->keys[n->count] = n->keys[0];
        n->values[n->count > 0 ? at : 0] = value;
        if (n->keys) n->keys[n->count > 0 ? at : 0] = key;
        n->count++;
    }
}

static void yaml_change(yaml_tree *t)
{
    tr_node *n = t->nodes[chance_pick(t->c, t->n)];
    if (n->kind != TR_NODE_SCALAR) {
        yaml_change_children(t, n);
        return;
    }
    const tr_node *other = yaml_any_scalar(t);
    if (!other) return;
    n->text = other->text;
    n->quoted = chance_pick(t->c, 20) == 0;
}

/* As libFuzzer wants it: changed in place, at most `most` bytes. A first line that begins with `#!`
 * stays. */
static size_t yaml_mutate(uint8_t *bytes, size_t n, size_t most, unsigned seed)
{
    static yaml_tree t;
    chance c = {.state = seed};
    tr_document d;
    char *text = NULL;
    size_t now = 0;
    const uint8_t *end = n > 2 && memcmp(bytes, "#!", 2) == 0 ? memchr(bytes, '\n', n) : NULL;
    const size_t head = end ? (size_t)(end - bytes) + 1 : 0;
    if (chance_pick(&c, 12) == 0 ||
        tr_document_parse("f", (char *)bytes + head, n - head, &d) != TR_OK)
        return LLVMFuzzerMutate(bytes, n, most);
    t.used = 0;
    t.c = &c;
    tr_node *root = yaml_copy(&t, d.root);
    for (size_t k = chance_pick(&c, 3); root && k < 3; k++) {
        t.n = 0;
        yaml_walk(&t, root);
        yaml_change(&t);
        if (k < 2) root = yaml_copy(&t, root); /* with room in every list again */
    }
    FILE *to = open_memstream(&text, &now);
    const bool ok = root && to && tr_node_write(root, to) == TR_OK;
    if (to) fclose(to);
    tr_document_close(&d);
    if (ok && head + now <= most) {
        memcpy(bytes + head, text, now);
        n = head + now;
    } else {
        n = LLVMFuzzerMutate(bytes, n, most);
    }
    free(text);
    return n;
}

#endif
