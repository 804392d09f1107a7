/* A network: a model with its values. What stages read, change and write; what an inference engine
 * is opened on. All Local; with the same file every rank gets the same bytes. */
#ifndef TR_NETWORK_H
#define TR_NETWORK_H

#include "runtime/config/config.h"
#include "runtime/graph/model.h"

typedef struct {
    tr_model *model;        /* owned */
    float *params, *states; /* owned; [model->flat_count], [model->state_count], by its offsets */
} tr_network;

/* Takes the model, also when it fails. All values are zero. */
tr_status tr_network_open(tr_model *model, tr_network **out);
void tr_network_close(tr_network *n);

/* The network of a run file (a model or a checkpoint) and the config in it, which is checked as
 * one from a config file is; `overrides`: key.path=value, below no `model`. TR_FILE where the file
 * is damaged or none of ours. `config` may be NULL. `stages`: as tr_config_open takes them; NULL:
 * the file's pipeline is not looked at. */
tr_status tr_network_read(const char *path, const char *const *overrides, size_t noverrides,
                          const tr_variant_def *stages, tr_network **out, tr_config **config);

/* A network made from `n` as tr_model_copy makes a model; edit NULL: the same. Rows whose layer,
 * name and shape are there in both have their values of `n`; the others are initialized as for
 * training with seed 0, and are the caller's to set. */
tr_status tr_network_edit(const tr_network *n, tr_model_edit edit, void *ctx, tr_network **out);

/* Weights that the model's file keeps in fewer bits become what it can hold, where they are not:
 * rounded, those of 8 bits by scales of their own. trained: also those in 8 bits that learn, which
 * a training rounds when it writes its file. TR_CONFIG: one does not fit. */
tr_status tr_network_hold(tr_network *n, bool trained);
/* Whether some of them are frozen, and so are not rounded by a training. */
bool tr_network_keeps_bits(const tr_model *m);

/* Elements [begin, end) of the flat space of `m`, the same model but for what is frozen, which lies
 * elsewhere; padding zero. */
void tr_network_values(const tr_network *n, const tr_model *m, size_t begin, size_t end, float *to);

/* The row of a layer's parameter or state; NULL where there is none. */
const tr_param *tr_network_row(const tr_network *n, const char *layer, const char *name);
const tr_state *tr_network_state_row(const tr_network *n, const char *layer, const char *name);
/* Its values; NULL where there is no such row. */
float *tr_network_param(const tr_network *n, const char *layer, const char *name);
float *tr_network_state(const tr_network *n, const char *layer, const char *name);

/* Multiply-adds of one sample's way through the model's products and convolutions. */
tr_status tr_model_multiply_adds(const tr_model *m, double *out);

#endif
