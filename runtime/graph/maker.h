/* A model in the making: what the files that make, shape and lay out a model share. Private. */
#ifndef TR_GRAPH_MAKER_H
#define TR_GRAPH_MAKER_H

#include "runtime/graph/ops/op.h"

/* What every layer takes beside its attributes; stands in front of them in tr_layer.storage. */
typedef struct {
    char *name;
    const tr_node *from; /* only while the layer is made */
    /* Of types that have parameters: */
    char *weight_of; /* the layer whose weight it uses; NULL: its own */
    double init_factor, lr_factor, decay_factor;
    bool freeze, masked, learn_scale;
    int stored; /* of its weight: place in tr_stored_types */
} tr_common;
enum { TR_STORED_INT8_TENSOR = 4 };
extern const tr_dtype tr_stored_types[];
#define TR_COMMON_SIZE  64
#define TR_LAYER_FIELDS 24
/* Layer names leave room in TR_NAME for what tensor names add. */
#define TR_LAYER_NAME 48
#define TR_LAYERS_MAX 65536

/* A name that `from:` can refer to. */
typedef struct {
    char name[TR_LAYER_NAME];
    int value;
} tr_named;

/* How many layers of a type there are so far: default names. */
typedef struct {
    const char *type;
    int count;
} tr_counter;
#define TR_COUNTERS 128 /* layer types and the config's own */
#define TR_DEFINES  32
/* The number of the next layer of a type. */
int tr_count_next(tr_counter counters[TR_COUNTERS], const char *type);

#define TR_NAME_LENGTHS "/lengths"
/* Names are path + NAME + suffix, and are looked for from the innermost scope outwards. */
typedef struct tr_scope tr_scope;
struct tr_scope {
    tr_scope *outer;
    char path[TR_LAYER_NAME];   /* "layer1.0.", or "" */
    char suffix[TR_LAYER_NAME]; /* ".2.1" in repeats that number names so */
    int input;                  /* the value that "input" names; -1: none of its own */
    int lengths;                /* the one of TR_NAME_LENGTHS, which no layer can be named; or -1 */
};

struct tr_maker {
    tr_model *m;
    tr_init_kind init;
    int last;                           /* value of the last layer, else 0 */
    bool loose;                         /* tr_maker_loose */
    const tr_node *input_at[TR_MAX_IN]; /* where inputs stand in a file, or NULL */
    size_t cap_inputs, cap_layers, cap_params, cap_states;
    tr_named *names;
    size_t nnames, cap_names;
    int *slots; /* hash table of names: place + 1, 0 empty; a power of two, at most half full */
    size_t nslots;
    tr_counter counters[TR_COUNTERS];
    tr_scope *scope; /* never NULL */
    int nblocks, block;
    size_t block_begin; /* layers before the block */
    tr_scope whole;
};

/* ---- model.c: a copy whose sequences have so many rows; shorter.c: which inputs are sequences. */
tr_status tr_model_copy_rows(const tr_model *m, int64_t rows, tr_model **out);
bool tr_input_rows(const tr_model *m, const tr_input *in);

/* Grows *array to hold `need` elements. */
tr_status tr_grow(void *array, size_t *cap, size_t need, size_t size);

/* ---- types.c: layer types, structural ones too. */
typedef enum { TR_NAMES_SUFFIX, TR_NAMES_PATH, TR_NAMES_NONE } tr_names_kind;
typedef struct {
    int64_t times; /* -1: as often as there are values */
    const tr_node *params, *values;
    int names; /* tr_names_kind */
    const tr_node *layers;
} tr_repeat_attrs;
typedef struct {
    const tr_node *body, *shortcut;
} tr_residual_attrs;
typedef struct {
    const tr_node *layers;
} tr_block_attrs;
extern const tr_op_def tr_type_residual, tr_type_repeat, tr_type_block;
extern const tr_op_def tr_type_lstm, tr_type_gru; /* recurrent.c */
extern const tr_op_def tr_type_transformer;       /* transformer.c */
extern const tr_op_def tr_type_patch_embedding;   /* patches.c */
/* NULL when there is none. */
const tr_op_def *tr_type_find(const char *name);
/* The nearest one to a word that names none; NULL: none is near. */
const char *tr_type_nearest(const char *word);
size_t tr_type_count(void);
const tr_op_def *tr_type_at(size_t i);
bool tr_type_is_structure(const tr_op_def *type);
/* The common options that the type has and its own fields, at their places in tr_layer.storage. */
void tr_type_fields(const tr_op_def *type, tr_field out[TR_LAYER_FIELDS]);
/* Reads the options into new storage. l->def and l->name are set. `at`: where it stands, or
 * NULL. */
tr_status tr_type_read(const tr_maker *mk, tr_layer *l, const tr_node *at, const tr_node *options);
void tr_type_free(tr_layer *l);

/* ---- names.c */
/* Sets l->name: `name`, or the one written in the options, else type plus number; with the scope's
 * path and suffix. */
tr_status tr_name_layer(tr_maker *mk, tr_layer *l, const char *name, const tr_node *options);
tr_status tr_name_add(tr_maker *mk, const char *where, const char *name, int value);
/* Names are made in `s` from here on, until tr_scope_close. `path`: they begin with it and a dot;
 * else `suffix` comes behind those of the scope around. TR_CONFIG of layer `l`: too long. */
tr_status tr_scope_open(tr_maker *mk, tr_scope *s, const tr_layer *l, const char *path,
                        const char *suffix);
void tr_scope_close(tr_maker *mk);
/* The value that `name` names, from the innermost scope outwards, -1: none; and the fault. */
int tr_name_find(const tr_maker *mk, const char *name);
tr_status tr_name_unknown(const tr_maker *mk, const tr_node *at, const tr_layer *l,
                          const char *name);
bool tr_name_valid(const char *name);

/* ---- maker.c */
/* "place: text", TR_CONFIG; the place of `at`, else `where`, else none. */
tr_status tr_maker_fail(const tr_node *at, const char *where, const char *fmt, ...) TR_PRINTF(3, 4);
tr_status tr_make_input(tr_maker *mk, const tr_node *at, const char *name, size_t ndim,
                        const int64_t *dims, int *value);
/* The steps of a layer, which is to be freed by tr_type_free until it is appended (also when that
 * fails). Name and options; inputs: those given, else those of `from`, else `before`. */
tr_status tr_make_begin(tr_maker *mk, tr_layer *l, const tr_op_def *def, const tr_node *at,
                        const char *name, const tr_node *options);
tr_status tr_make_inputs(tr_maker *mk, tr_layer *l, int nin, const int *in, int before);
tr_status tr_make_append(tr_maker *mk, tr_layer *l, int *value);
const char *tr_value_name(const tr_maker *mk, int value);

/* ---- layer.c: the layer's weight_of, once its weight is found, is that of the row's first
 * layer. */
tr_status tr_layer_tied(tr_maker *mk, tr_layer *l);
/* ---- layer.c: the row of its int8 weight's scales, the last of the layer's; no operand of its
 * op. */
tr_status tr_layer_learned_scale(tr_maker *mk, tr_layer *l);

/* ---- layout.c: offsets and buckets. */
tr_status tr_layout(tr_model *m, size_t bucket_bytes);

/* ---- write.c */
/* A layer's attributes and common options but name and inputs, as lines of a map. */
tr_status tr_layer_write_options(const tr_layer *l, int indent, FILE *to);

/* Where a model's layers have lengths, warns of each that makes one row of all without them:
 * padding.c. */
void tr_model_warn_padding(const tr_model *m);

#endif
