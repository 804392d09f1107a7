/* Where a newcomer starts: data and configs that are written for them. *Local.* */
#ifndef TR_TRAINER_START_H
#define TR_TRAINER_START_H

#include "runtime/data/look.h"

typedef enum { TR_NPY_U8, TR_NPY_F32 } tr_npy_type;
/* Writes an array, row by row, whole or not at all; dims: [ndim], ndim at most 4. TR_IO. */
tr_status tr_npy_write(const char *path, tr_npy_type type, int ndim, const int64_t *dims,
                       const void *values);

/* A made data set: each sample follows from its index alone. */
typedef struct {
    const char *name, *doc;
    int64_t train, eval; /* samples */
    int ndim;
    int64_t dims[3]; /* of a sample */
    int64_t outputs; /* of values; 0: class labels */
    /* x: [dims]; y: [outputs], or one label */
    void (*make)(uint64_t index, float *x, float *y);
    const char *config; /* below `data:`; its first %s is the name */
} tr_demo;
extern const tr_demo tr_demos[];
extern const size_t tr_demo_count;

/* A config for what was looked at; NULL: for made samples, with how to name others. `file`: what it
 * will be called. Checks, and trains as it is. */
tr_status tr_new_config(const tr_look *look, const char *name, const char *file, FILE *to);
/* The rest of it, behind the head, of a text or tokens: a small transformer. */
tr_status tr_new_language_model(const tr_look *look, FILE *to);

#endif
