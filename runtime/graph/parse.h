/* A config's list of layers while it is read: parse.c and define.c. Private. */
#ifndef TR_GRAPH_PARSE_H
#define TR_GRAPH_PARSE_H

#include "runtime/graph/maker.h"

#define TR_ITEMS_MAX (2 * TR_LAYERS_MAX)

/* One block of model.define. */
typedef struct {
    const char *name;
    const tr_node *params, *layers; /* params NULL: none */
    bool open;                      /* its layers are being read */
} tr_define;

typedef struct {
    tr_maker *mk;
    tr_template *t;
    int depth;     /* of lists in lists */
    int64_t items; /* read so far */
    size_t nparams, ndefines;
    tr_parameter params[TR_PARAMETERS]; /* of the model */
    tr_define defines[TR_DEFINES];
} tr_parser;

tr_status tr_parse_list(tr_parser *p, const tr_node *list, int value, int *output);
/* Layers that a structure `l` stands for, written out as a config's list: one block, whose names
 * begin with `path` and in which `input` is the value of that name, and l's second input that of
 * TR_NAME_LENGTHS. Frees `text`, which NULL is for want of memory. */
tr_status tr_parse_written(tr_parser *p, const tr_layer *l, const char *path, char *text, int input,
                           int *output);
/* `name`: of a block that has none of its own, or NULL. */
tr_status tr_parse_item(tr_parser *p, const tr_node *item, const char *name, int before,
                        int *output);
/* The word and the options of a list item: `relu`, or `conv2d: {...}`. *options NULL: none written.
 * NULL: it is no such thing. */
const tr_node *tr_item_type(const tr_node *item, const tr_node **options);

/* ---- recurrent.c: the layers that `l` stands for. */
tr_status tr_parse_recurrent(tr_parser *p, const tr_layer *l, int *output);
/* ---- patches.c: the layers that `l` stands for. */
tr_status tr_parse_patches(tr_parser *p, const tr_layer *l, int *output);
/* ---- transformer.c: the layers that `l` stands for. */
tr_status tr_parse_transformer(tr_parser *p, const tr_layer *l, int *output);

/* ---- define.c */
/* model.params and model.define. */
tr_status tr_defines_read(tr_parser *p, const tr_config *c);
tr_define *tr_define_find(tr_parser *p, const char *name); /* NULL: there is none */
const char *tr_define_nearest(const tr_parser *p, const char *word);
/* Is the list item a block of the config, without a name? */
bool tr_define_unnamed(tr_parser *p, const tr_node *item);
/* Its layers, with the options in place of its parameters. `at`: where it stands. */
tr_status tr_define_use(tr_parser *p, tr_define *d, const tr_node *at, const tr_node *options,
                        const char *name, int before, int *output);

#endif
