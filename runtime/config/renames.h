/* How the arrays of a file are called in a model: model.init_from reads by it, the stage `export`
 * writes by it. Local. */
#ifndef TR_CONFIG_RENAMES_H
#define TR_CONFIG_RENAMES_H

#include "runtime/config/tree.h"

/* A pattern of the file's names and what these become in the model: no more * than in `from`; "":
 * left out. Both are the config's. */
typedef struct {
    const char *from, *to;
} tr_rename;

/* Nodes that may be empty. */
typedef struct {
    const tr_node *map, *transpose, *ndim;
} tr_renames_written;

typedef struct {
    char key[48];          /* of messages: "model.init_from" */
    char map_key[48];      /* the same of `map`, where it stands elsewhere; "": `key` */
    tr_renames_written at; /* where these point; NULL: nowhere */
    size_t nrules, ntransposed, nranks;
    tr_rename *rules;      /* owned; the first that matches counts */
    tr_rename *transposed; /* owned; `from` alone: matrices that the file has as (in, out) */
    tr_rename *ranks;      /* owned; `to`: of how many dimensions, those of 1 in front, "3" */
} tr_renames;

/* TR_CONFIG at the place of what is wrong: "KEY.map: ...". Beside a failure there is nothing to
 * free. */
enum { TR_RENAMES_NDIM = 8 }; /* at most */
tr_status tr_renames_read(const tr_renames_written *w, const char *key, tr_renames *out);
void tr_renames_free(tr_renames *r);

#endif
