/* Tables of fields: what keys a map of the config takes, their kinds, bounds and defaults, and
 * where the values go. */
#ifndef TR_CONFIG_FIELDS_H
#define TR_CONFIG_FIELDS_H

#include "runtime/config/tree.h"

typedef enum {
    TR_FIELD_INT,     /* int64_t */
    TR_FIELD_REAL,    /* double */
    TR_FIELD_BOOL,    /* bool */
    TR_FIELD_STRING,  /* char *, owned by the struct's tr_fields_free */
    TR_FIELD_CHOICE,  /* int: index into choices */
    TR_FIELD_INTS,    /* tr_ints: a list, or one scalar for a list of one */
    TR_FIELD_REALS,   /* tr_reals: likewise */
    TR_FIELD_SPAN,    /* tr_span: a number in the field's unit, steps or epochs; or with its own:
                         `500 steps`, `2 epochs`, `5%` of the run */
    TR_FIELD_SPANS,   /* tr_spans: a list, or one */
    TR_FIELD_MAP,     /* a nested struct at offset, read by `fields` */
    TR_FIELD_BLOCK,   /* as MAP, but it may be absent: the struct begins with a bool that tells; an
                         absent block is neither read nor written */
    TR_FIELD_VARIANT, /* tr_variant at offset: a name, or a map of one name to its options:
                         `adamw`, `adamw: {lr: 0.1}`; each of `variants` brings its own fields. One
                         with a single field takes its value bare (`every: 2`). Options may also
                         stand beside the name, as an override `train.optimizer.lr=0.1` puts them */
    TR_FIELD_LIST,    /* tr_list at offset: a list whose items are written like a VARIANT, each with
                         a struct of options of its own; a variant may stand in it more than once */
    TR_FIELD_NODE     /* const tr_node *: kept as it is for a later reader */
} tr_field_kind;

#define TR_LIST_MAX 8
typedef struct {
    size_t count;
    int64_t v[TR_LIST_MAX];
} tr_ints;
#define TR_REALS_MAX 4096
typedef struct {
    size_t count;
    double *v; /* owned */
} tr_reals;

/* A stretch of a training. */
typedef enum { TR_SPAN_STEPS, TR_SPAN_EPOCHS, TR_SPAN_PERCENT } tr_span_unit;
typedef struct {
    double value;
    int unit; /* tr_span_unit */
} tr_span;
typedef struct {
    size_t count;
    tr_span v[TR_LIST_MAX];
} tr_spans;
/* In steps, to the nearest, of a run of `total` steps. */
uint64_t tr_span_steps(tr_span s, uint64_t total, uint64_t steps_per_epoch);

/* A word that stands for a value of an INT or REAL field, such as "none" for 0. */
typedef struct {
    const char *text; /* NULL ends a list */
    double value;
} tr_field_word;

/* What another value does to a training that goes on. */
typedef enum {
    TR_CHANGE_AS_ABOVE, /* as the map that the key stands in; at the top: the numbers */
    TR_CHANGE_NUMBERS,  /* makes another training of it */
    TR_CHANGE_MACHINE,  /* other numbers, of the same training */
    TR_CHANGE_NOTHING,  /* no weight */
    TR_CHANGE_THREADS,  /* among how many threads a CPU's sums are shared out */
    TR_CHANGE_KERNELS,  /* by which library's kernels GPUs compute */
    TR_CHANGE_SUMS,     /* in which order gradients of ranks, and squares of a norm, are summed */
    TR_CHANGE_EVALUATIONS, /* when they are made and of what, which only some settings act on */
    TR_CHANGE_LENGTH,      /* how long training goes on, which most schedules depend on */
    TR_CHANGE_START        /* the values that it began from */
} tr_change;

typedef struct tr_field tr_field;
typedef struct {
    const char *name;
    const tr_field *fields; /* offsets relative to the struct that holds the tr_variant's options */
    const char *doc;
    size_t size; /* LIST: of the struct of options; 0 where `fields` is NULL */
} tr_variant_def;

struct tr_field {
    const char *key; /* NULL ends a table */
    const char *was; /* another name that is read and never written; NULL */
    tr_field_kind kind;
    size_t offset;    /* in the struct */
    const char *dflt; /* text parsed as if the user had written it; NULL: required;
                         "" with STRING/NODE/INTS/REALS/MAP/VARIANT: absent (NULL / count 0 / all
                         defaults) */
    const char
        *auto_text; /* a word that stands for `auto_value` in INT and REAL fields, such as "auto" */
    double auto_value;
    double min, max; /* INT and REAL, and elements of INTS/REALS; min == max: unchecked */
    const char *const *choices; /* NULL-ended */
    const tr_field *fields;
    const tr_variant_def *variants; /* ended by name NULL */
    size_t variant_options; /* VARIANT: offset of the options struct (shared by all variants) */
    const char *unit;       /* "samples", "bytes", "s", ... or NULL */
    const char *doc;
    tr_change change;
    const char *schema;         /* NODE: the JSON schema of what may stand there; NULL: anything */
    const tr_field_word *words; /* INT and REAL: more words like auto_text; CHOICE: other words for
                                   an index, read and never written */
};

/* Entries of a table, one a line. `at`: offset in the struct; a number's `low` and `high` both 0:
 * unchecked; what stands behind the last argument is taken as further initializers of tr_field. */
/* clang-format off */
#define TR_ENTRY(key_, type, at, text, doc_, ...) \
    {.key = (key_), .kind = TR_FIELD_##type, .offset = (at), .dflt = (text), .doc = (doc_), __VA_ARGS__}
#define TR_NUMBER(key, type, at, dflt, low, high, unit_, doc, ...) \
    TR_ENTRY(key, type, at, dflt, doc, .min = (low), .max = (high), .unit = (unit_), __VA_ARGS__)
#define TR_INT(key, ...)   TR_NUMBER(key, INT, __VA_ARGS__, )   /* at, dflt, low, high, unit, doc */
#define TR_REAL(key, ...)  TR_NUMBER(key, REAL, __VA_ARGS__, )  /* likewise */
#define TR_INTS(key, ...)  TR_NUMBER(key, INTS, __VA_ARGS__, )  /* likewise */
#define TR_REALS(key, ...) TR_NUMBER(key, REALS, __VA_ARGS__, ) /* likewise */
#define TR_SPAN(key, ...)  TR_NUMBER(key, SPAN, __VA_ARGS__, )  /* likewise */
#define TR_SPANS(key, ...) TR_NUMBER(key, SPANS, __VA_ARGS__, ) /* likewise */
#define TR_BOOL(key, at, ...) TR_ENTRY(key, BOOL, at, __VA_ARGS__, )   /* dflt, doc */
#define TR_TEXT(key, at, ...) TR_ENTRY(key, STRING, at, __VA_ARGS__, ) /* likewise */
#define TR_NODE(key, at, ...) TR_ENTRY(key, NODE, at, __VA_ARGS__, )   /* likewise */
#define TR_LIST(key, at, ...) TR_ENTRY(key, LIST, at, __VA_ARGS__, )   /* likewise */
#define TR_SHAPED(key, at, dflt, doc, ...) /* shape */ \
    TR_ENTRY(key, NODE, at, dflt, doc, .schema = __VA_ARGS__)
#define TR_CHOICE(key, at, names, ...) TR_ENTRY(key, CHOICE, at, __VA_ARGS__, .choices = (names))
#define TR_MAP(key, at, table, ...) TR_ENTRY(key, MAP, at, __VA_ARGS__, .fields = (table))
#define TR_BLOCK(key, at, table, ...) TR_ENTRY(key, BLOCK, at, __VA_ARGS__, .fields = (table))
#define TR_VARIANT(key, at, defs, options, ...) \
    TR_ENTRY(key, VARIANT, at, __VA_ARGS__, .variants = (defs), .variant_options = (options))
#define TR_END {.key = NULL}
/* clang-format on */

/* JSON schemas of what a NODE may hold. */
#define TR_SCHEMA_LAYERS "{\"$ref\":\"#/$defs/layers\"}"
#define TR_SCHEMA_MAP    "{\"type\":\"object\"}"
#define TR_SCHEMA_LIST   "{\"type\":\"array\"}"
#define TR_SCHEMA_INPUTS                                                                           \
    "{\"type\":\"object\",\"minProperties\":1,\"additionalProperties\":{\"type\":\"array\","       \
    "\"minItems\":1,\"items\":{\"type\":\"integer\",\"minimum\":1}}}"
#define TR_SCHEMA_SOURCES                                                                          \
    "{\"type\":[\"string\",\"number\",\"array\"]},{\"type\":\"object\","                           \
    "\"additionalProperties\":{\"type\":[\"string\",\"number\",\"array\"]}}"
#define TR_SCHEMA_NORMALIZE                                                                        \
    "{\"anyOf\":[{\"const\":\"auto\"},{\"$ref\":\"#/$defs/"                                        \
    "normalize-one\"},{\"type\":\"object\",\"minProperties\":1,\"not\":{"                          \
    "\"propertyNames\":{\"enum\":[\"mean\",\"std\"]}},\"additionalProperties\":{\"$ref\":\"#/"     \
    "$defs/normalize-one\"}}]}"
#define TR_SCHEMA_NAMES "{\"type\":\"array\",\"items\":{\"type\":\"string\"}},{\"type\":\"string\"}"

typedef struct {
    int which; /* index into variants; -1: absent */
} tr_variant;

typedef struct {
    int which;         /* index into variants */
    void *options;     /* owned; NULL for a variant without options */
    const tr_node *at; /* for errors; of a default: the map that lacks the key */
} tr_list_item;
typedef struct {
    size_t count;
    tr_list_item *items; /* owned */
} tr_list;

/* Reads a map node into `out` by a table: fills defaults, checks types and ranges, and fails on an
 * unknown key with the nearest known one. `n` NULL: all defaults (at NULL a required key fails with
 * `what` as its place). */
tr_status tr_fields_read(const tr_node *n, const tr_field *fields, const char *what, void *out);
void tr_fields_free(const tr_field *fields, void *out);
/* Writes `key: value` lines of everything resolved, `indent` spaces in, keys in table order. */
tr_status tr_fields_write(const tr_field *fields, const void *in, int indent, FILE *to);
/* Whether what was read by this field into the struct is what it would be had it not been given. Of
 * one without parts of its own (no MAP, BLOCK, VARIANT, LIST). */
tr_status tr_field_is_default(const tr_field *f, const void *in, bool *is);
/* Writes the reference of a table: key, type, default, unit, meaning, under the heading `path`. */
void tr_fields_help(const tr_field *fields, const char *path, FILE *to);
/* Writes the JSON schema of a table. `open`: any value may be a text with a $ in it. */
void tr_fields_schema(const tr_field *fields, bool open, FILE *to);
/* A text as JSON's; of documentation, so without control characters. */
void tr_schema_text(const char *text, FILE *to);

#endif
