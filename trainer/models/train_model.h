/* The model that a config's training is of. All Local. */
#ifndef TR_TRAIN_MODEL_H
#define TR_TRAIN_MODEL_H

#include "runtime/device/backend.h"
#include "runtime/graph/model.h"

/* The config's model. Fails where nothing of it can be trained. */
tr_status tr_train_model(const tr_config *c, tr_model **out);
/* Cuts its buckets as run.bucket_mb says, or for what computes. */
tr_status tr_train_buckets(const tr_config *c, const tr_backend *b, tr_model *m);
/* Cells of the confusion matrix of evaluations: classes squared, 0 beyond 1024 classes (8 MiB) and
 * for regression. */
size_t tr_confusion_cells(const tr_model *m);

#endif
