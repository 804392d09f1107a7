/* Private to the data room: opening what data.train or data.eval names. */
#ifndef TR_DATA_SOURCE_H
#define TR_DATA_SOURCE_H

#include "runtime/data/internal.h"

typedef struct {
    const tr_config *c;
    const tr_source_config *s;
    const tr_model *m;
    const char *block; /* "data.train", "data.eval" or "data.predict", for messages */
    bool unlabeled;    /* *targets stays NULL */
    bool looks;        /* tr_dataset_look: nothing is opened */
    bool evaluated;    /* it is data.eval, or what data.split holds out */
} tr_opening;
/* TR_CONFIG at the key of its block. */
tr_status tr_opening_fail(const tr_opening *o, const char *key, const char *fmt, ...)
    TR_PRINTF(3, 4);
/* Hands a failure on, told of the key there likewise. */
tr_status tr_opening_blame(const tr_opening *o, const char *key, tr_status st);

/* inputs: one array for each of the model's, targets: one, weights: one where the source names
 * them. What was opened before a failure is left there for the caller to close; the rest is
 * untouched. budget: bytes of memory that may be held. */
tr_status tr_source_open(const tr_opening *o, uint64_t budget, tr_array **inputs,
                         tr_array **targets, tr_array **weights);

/* What a failure to open what `s` names is to be: where one of its files cannot be read, with its
 * key and where that stands before the record's text, which has no place yet. */
tr_status tr_source_failed(const tr_config *c, const tr_source_config *s, const char *block,
                           tr_status st);

/* A folder of images. */
tr_status tr_images_open(const tr_opening *o, tr_array **inputs, tr_array **targets);

/* Windows of tokens. type: tr_tokens_type, or -1: the bytes of a text. */
tr_status tr_tokens_open(const tr_opening *o, int type, tr_array **inputs, tr_array **targets);

#endif
