/* A config as text: the tree of maps, lists and scalars that its YAML stands for, and parameters in
 * it. */
#ifndef TR_CONFIG_TREE_H
#define TR_CONFIG_TREE_H

#include "runtime/base/base.h"

typedef enum { TR_NODE_SCALAR, TR_NODE_MAP, TR_NODE_LIST } tr_node_kind;

typedef struct tr_node tr_node;
struct tr_node {
    tr_node_kind kind;
    const char *source; /* file name, or "command line: " and the override as typed */
    int line, column;   /* from 1; an aliased node shows where its anchor's text stands */
    char *text;         /* scalar: its text; "" for an empty one */
    bool quoted;        /* scalar: quoted or block style, hence a string whatever it looks like */
    bool override;      /* a map's key: an override put it there */
    size_t count;       /* children of a map or list */
    tr_node **keys;     /* map: scalar nodes, in file order; list: NULL */
    tr_node **values;
};

/* A parsed document and the overrides applied to it; owns its nodes. Anchors, aliases and merge
 * keys (<<) are resolved (alias expansion is bounded: a billion-laughs file is an error); duplicate
 * keys, several documents, non-UTF-8, too deep nesting (64) are TR_CONFIG errors "file:line:column:
 * ...". */
typedef struct tr_document {
    tr_node *root;
    void *storage;
} tr_document;

tr_status tr_document_parse(const char *source, const char *text, size_t nbytes, tr_document *out);
/* `key.path=value`, value in YAML flow syntax: replaces or adds the node at that path (list
 * elements by index: model.layers.0.conv2d.out=8; or by name, where only one goes by it:
 * pipeline.quantize.samples=64 is pipeline.3.quantize.samples=64). Errors name the override as
 * typed. */
tr_status tr_document_override(tr_document *doc, const char *assignment);
/* The same with a path and a value that stand in another document, which errors then point into: it
 * must stay open as long as `doc`. */
tr_status tr_document_set(tr_document *doc, const tr_node *key, const tr_node *value);
/* Without what stands at `key.path`, of maps alone. */
void tr_document_drop(tr_document *doc, const char *path);
/* Its text was written, for what stands at `source`: its nodes have no lines of their own, and
 * errors name that place alone. */
void tr_document_written(tr_document *doc);
/* Its text was written out of `from`: a node has the place of what stands at its path there, or of
 * the nearest above. */
tr_status tr_document_placed(tr_document *doc, const tr_document *from);
void tr_document_close(tr_document *doc);

const tr_node *tr_node_get(const tr_node *map, const char *key); /* NULL when absent or not a map */
/* What stands at a dotted path below `root` (NULL: nothing), "" itself: in maps by key; in lists by
 * place ("pipeline.1"), or by the name of an item ("pipeline.prune"): the first that is this word,
 * or what stands behind it in the first map with this key. A map's only key may be left out, but
 * not the root's: "optimizer.lr" of `optimizer: {adamw: {lr: 1}}`. NULL: nothing is there. *nearest
 * (NULL: not asked for): the node, else the last one on the way to it. */
const tr_node *tr_node_at(const tr_node *root, const char *path, const tr_node **nearest);
/* "file:line:column"; the source alone where there are no lines. Allocated; NULL: no memory. */
char *tr_node_place(const tr_node *n);
/* TR_FAIL(TR_CONFIG, ...) at this place: tr_fail_place. */
tr_status tr_node_fail(const tr_node *at, const char *fmt, ...) TR_PRINTF(2, 3);
/* Hands a failure on, told at this place; NULL: at none. */
tr_status tr_node_blame(const tr_node *at, tr_status st);
/* Writes the tree as YAML that parses back to it; what has no more lists or maps inside on one
 * line. */
tr_status tr_node_write(const tr_node *n, FILE *to);
/* `n`: one name, a list of names, "" or NULL; each stands in `names`, or TR_CONFIG at its place
 * with the nearest: "KEY: there is no WHAT ...". found: [count]: those that are named. */
tr_status tr_node_names(const tr_node *n, const char *key, const char *what,
                        const char *const *names, size_t count, bool *found);
/* The same in one line, as it can stand behind the = of an override. Allocated. */
tr_status tr_node_line(const tr_node *n, char **out);
/* Key by key what is not the same; of lists of different lengths the whole. was, now: NULL where it
 * is not given. What is returned but TR_OK ends it. */
typedef tr_status tr_node_differs(void *ctx, const char *path, const tr_node *was,
                                  const tr_node *now);
tr_status tr_node_compare(const char *path, const tr_node *was, const tr_node *now,
                          tr_node_differs *differs, void *ctx);
/* In one line; the beginning of what is long; NULL: "not given". */
void tr_node_brief(const tr_node *n, char *text, size_t size);
/* A text as a scalar between quotes, whatever is in it, on one line. Allocated; NULL: no memory. */
char *tr_yaml_quoted(const char *text);
/* Whether a text may stand in a comment as it is: one line of UTF-8 without control characters. */
bool tr_yaml_comment(const char *text);

/* ---- Parameters in a tree: template.c -------------------------------------------------------- */

#define TR_PARAMETERS 64 /* that count at one place */
#define TR_PARAMETER  48 /* bytes of a name */
typedef struct {
    const char *name;
    const tr_node *value;
} tr_parameter;
/* Owns the nodes that it makes. */
typedef struct tr_template tr_template;
tr_status tr_template_open(tr_template **out);
void tr_template_close(tr_template *t);
/* Letters, digits and _, no digit first. */
bool tr_parameter_valid(const char *name);
/* A copy of `from` with `$name` replaced by the parameter's node, `($a + 2) * 4` by the number, and
 * `${name}` within a text by the parameter's text; of two of one name the last counts. What is
 * below the key `layers` of a map that also has `params` (a list of names, or a map) keeps these as
 * they are. TR_CONFIG at its place: a name that is not bound, no number, a division by 0 or with a
 * remainder, 2^22 nodes of one template. The copy is the template's. */
tr_status tr_template_bind(tr_template *t, const tr_node *from, const tr_parameter *bound,
                           size_t count, const tr_node **out);

#endif
