/* Private to the config room: the arena that owns a document's nodes, and small helpers on
 * nodes. */
#ifndef TR_CONFIG_INTERNAL_H
#define TR_CONFIG_INTERNAL_H

#include "runtime/config/init_from.h"

#define TR_YAML_DEPTH    64        /* nested maps and lists */
#define TR_YAML_BYTES    (1 << 20) /* of one document */
#define TR_YAML_KEYS     1024      /* of one map */
#define TR_YAML_ANCHORS  1024      /* of one document */
#define TR_YAML_EXPANDED 100000    /* nodes made by aliases */
#define TR_YAML_KEY      256       /* bytes of a key */
#define TR_COMMAND_LINE  "command line: "

/* ---- tree.c -------------------------------------------------------------------------------- */

typedef struct tr_arena tr_arena;
tr_arena *tr_arena_open(void);                  /* NULL with an error record */
void tr_arena_close(tr_arena *a);               /* NULL is fine */
void *tr_arena_get(tr_arena *a, size_t nbytes); /* zeroed; NULL with an error record */
char *tr_arena_text(tr_arena *a, const char *text, size_t nbytes); /* NUL added */

typedef struct {
    const char *source;
    int line, column;
} tr_place;

tr_node *tr_node_new(tr_arena *a, tr_node_kind kind, tr_place at);
tr_node *tr_node_scalar(tr_arena *a, tr_place at, const char *text, size_t nbytes, bool quoted);
/* Appends; `key` NULL for a list. */
tr_status tr_node_add(tr_arena *a, tr_node *to, tr_node *key, tr_node *value);
/* Deep copy; *budget is counted down a node and TR_CONFIG fails at `at` when it is used up. */
tr_status tr_node_copy(tr_arena *a, const tr_node *from, tr_place at, size_t *budget,
                       tr_node **out);
/* Index of the key in a map, or SIZE_MAX. */
size_t tr_node_index(const tr_node *map, const char *key);
/* Nothing written: an empty plain scalar, ~ or null. NULL counts too. */
bool tr_node_empty(const tr_node *n);
tr_status tr_place_fail(tr_place at, const char *fmt, ...) TR_PRINTF(2, 3);
/* What stands there, for an error: `"abc"`, a map, a list of 3. Safe on a terminal. Returns buf. */
#define TR_SHOW 80
const char *tr_node_show(const tr_node *n, char buf[TR_SHOW]);
const char *tr_text_show(const char *text, char buf[TR_SHOW]);

/* ---- yaml.c, text.c, emit.c, value.c --------------------------------------------------------- */

/* Parses one document into nodes of `a`; `depth` is what the caller has used up of
 * TR_YAML_DEPTH. */
tr_status tr_yaml_read(tr_arena *a, const char *source, const char *text, size_t nbytes, int depth,
                       tr_node **out);
/* Well-formed UTF-8 without NUL and control characters, not too long; else "source:line:column". */
tr_status tr_text_check(const char *source, const char *text, size_t nbytes);
/* Writes the tree, every line `indent` spaces in. */
tr_status tr_emit(const tr_node *n, int indent, FILE *to);

typedef enum { TR_NUMBER_OK, TR_NUMBER_MALFORMED, TR_NUMBER_RANGE } tr_number;
/* Whole text, decimal: -12, 7. No 0x, no 1_000, no leading zeros. */
tr_number tr_parse_int(const char *text, int64_t *out);
/* Whole text, decimal: 1, 1.5, .5, 1e-3. Never nan or inf. */
tr_number tr_parse_real(const char *text, double *out);

/* ---- simple.c, fields.c, schema.c, check.c --------------------------------------------------- */

/* "path.key", or "key" where path is empty. Returns buf. */
#define TR_PATH 256
const char *tr_path_join(const char *path, const char *key, char buf[TR_PATH]);
/* "KEY: there is no WHAT "n"", with `near` (NULL: none is), else the first few of the names. */
tr_status tr_name_missing(const tr_node *n, const char *key, const char *what, const char *near,
                          const char *const *names, size_t count);
size_t tr_fields_count(const tr_field *fields);
/* "an integer from 1 to 8, or auto". Returns buf. */
const char *tr_field_expected(const tr_field *f, char *buf, size_t size);
/* "path: found X, expected Y", with the nearest name where names are expected. */
tr_status tr_field_unexpected(const tr_field *f, const tr_node *n, const char *path);
/* Of a plain number (tr_span_unit). */
int tr_span_default(const tr_field *f);
/* Reads every kind but MAP, BLOCK and VARIANT into *to. */
tr_status tr_field_read_simple(const tr_field *f, const tr_node *n, const char *path, void *to);
void tr_text_append(char *buf, size_t size, const char *fmt, ...) TR_PRINTF(3, 4);

/* The config's table with what its pipeline may hold (NULL: nothing). Returns t->fields. */
typedef struct {
    tr_field fields[16];
    char first[64]; /* the default pipeline */
} tr_config_table;
const tr_field *tr_config_fields(const tr_variant_def *stages, tr_config_table *t);
/* c->data.normalize.inputs from what is written there. */
tr_status tr_normalize_read(tr_config *c);
/* c->data.normalize_targets likewise. */
tr_status tr_normalize_targets_read(tr_config *c);
void tr_normalize_free(tr_config *c);
/* Fails unless a map's key is one of the model's inputs, whose names these are. */
tr_status tr_input_check(const tr_node *key, const char *path, const char *const *names,
                         size_t count);
/* The names that a config gives the model's inputs. Returns how many, at most TR_YAML_KEYS. */
size_t tr_input_names(const tr_config *c, const char *names[TR_YAML_KEYS]);
/* run.memory_limit. */
tr_status tr_memory_check(const tr_config *c);
/* The key at this path is about to be set: it is none that memory chose any more. */
void tr_chosen_forget(tr_document *doc, const char *path);
/* What one key's table cannot say: keys that belong together, and defaults that depend on
 * others. */
tr_status tr_config_check(tr_config *c);
tr_status tr_config_check_data(tr_config *c);
tr_status tr_config_check_metrics(tr_config *c);

#endif
