/* A model in the making: what the files that parse, shape and lay out a model share. Private. */
#ifndef TR_GRAPH_MAKER_H
#define TR_GRAPH_MAKER_H

#include "runtime/graph/ops/op.h"

/* What every layer takes beside its attributes; stands in front of them in tr_layer.storage. */
typedef struct {
    char *name;
    const tr_node *from;
} tr_common;
#define TR_COMMON_SIZE  16
#define TR_LAYER_FIELDS 16
/* Layer names leave room in TR_NAME for what tensor names add. */
#define TR_LAYER_NAME 48
#define TR_LAYERS_MAX 65536

/* A name that `from:` can refer to. */
typedef struct {
    char name[TR_LAYER_NAME];
    int value;
} tr_named;

/* How many layers of a type the text has so far: default names. */
typedef struct {
    const char *type;
    int count;
} tr_counter;
#define TR_COUNTERS 64

struct tr_maker {
    const tr_config *config;
    tr_model *m;
    size_t cap_layers, cap_params, cap_states;
    tr_named *names;
    size_t nnames, cap_names;
    int *slots; /* hash table of names: place + 1, 0 empty; a power of two, at most half full */
    size_t nslots;
    tr_counter counters[TR_COUNTERS];
    char suffix[TR_LAYER_NAME]; /* ".2.1" in the repeats around */
    int depth, nblocks, block;
};

/* Grows *array to hold `need` elements. */
tr_status tr_grow(void *array, size_t *cap, size_t need, size_t size);

/* types.c: layer types, structural ones too. */
typedef struct {
    int64_t times;
    const tr_node *layers;
} tr_repeat_attrs;
typedef struct {
    const tr_node *body, *shortcut;
} tr_residual_attrs;
extern const tr_op_def tr_type_residual, tr_type_repeat;
/* NULL when there is none. */
const tr_op_def *tr_type_find(const char *name);
size_t tr_type_count(void);
const tr_op_def *tr_type_at(size_t i);
/* name, from and the type's own fields, at their places in tr_layer.storage. */
void tr_type_fields(const tr_op_def *type, tr_field out[TR_LAYER_FIELDS]);
/* The type and options of a list item: `relu`, or `conv2d: {...}`. *options NULL: none written. */
tr_status tr_type_of(const tr_node *item, const tr_op_def **type, const tr_node **options);
/* Reads the options into new storage. l->def, l->at, l->name are set. */
tr_status tr_type_read(const tr_config *c, tr_layer *l, const tr_node *options);
void tr_type_free(tr_layer *l);

/* names.c */
/* The layer's name: the one written, else type plus number; with the suffix of the repeats around.
 */
tr_status tr_name_layer(tr_maker *mk, tr_layer *l, const tr_node *options);
tr_status tr_name_add(tr_maker *mk, const tr_node *at, const char *name, int value);
/* The value that `from:` names, from inside the innermost repeat outwards. */
tr_status tr_name_find(tr_maker *mk, const tr_node *at, const char *layer, int *value);
bool tr_name_valid(const char *name);

/* parse.c: fills m->inputs, m->layers with shapes, parameters and states. */
tr_status tr_parse_inputs(tr_maker *mk);
tr_status tr_parse_layers(tr_maker *mk, int *output);
tr_shape tr_value_shape(const tr_maker *mk, int value);
const char *tr_value_name(const tr_maker *mk, int value);
/* target.c: loss, target and outputs from the last layer's shape. */
tr_status tr_parse_loss(tr_maker *mk, const tr_layer *last);
/* layout.c: offsets and buckets. */
tr_status tr_layout(tr_model *m, size_t bucket_bytes);

#endif
