/* Names of arrays in files beside those of a network's rows. Private. All Local. */
#ifndef TR_TENSORS_NAMES_H
#define TR_TENSORS_NAMES_H

#include "optimize/tensors/arrays.h"

/* TR_CONFIG "KEY.map: ...", at its place. */
tr_status tr_map_fail(const tr_renames *r, const char *fmt, ...) TR_PRINTF(2, 3);
/* What a file's array is called in the model; "": it is left out. */
tr_status tr_name_in_model(const tr_renames *r, const char *name, char out[TR_ARRAY_NAME]);
/* The one name that a file has for a row of the model: the one that tr_name_in_model makes the
 * row's, by a rule, or as it is where no rule makes it. TR_CONFIG: there is none, or there are
 * two. */
tr_status tr_name_in_file(const tr_renames *r, const char *row, char out[TR_ARRAY_NAME]);
/* Whether a file has the matrix as (in, out). */
bool tr_name_transposed(const tr_renames *r, const char *name, int ndim);
/* Of how many dimensions a file has it, where it says more than the `ndim` without those of 1 in
 * front. */
int tr_name_ndim(const tr_renames *r, const char *name, int ndim);
/* A pattern of transpose or ndim that names nothing was meant for something: a square matrix would
 * be taken as it is. TR_CONFIG. at(all, i): of `count` arrays. */
typedef struct {
    const void *all;
    size_t count;
    const char *(*at)(const void *all, size_t i, int *ndim);
    const char *what; /* of messages: "model.safetensors" */
} tr_names;
tr_status tr_names_check(const tr_renames *r, const tr_names *names);

#endif
