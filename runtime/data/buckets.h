/* Samples by how long they are: which steps run at fewer rows than the model's, and an epoch's
 * order in which samples of like length come together. Private to the data room. All Local, pure
 * once open. */
#ifndef TR_DATA_BUCKETS_H
#define TR_DATA_BUCKETS_H

#include "runtime/data/internal.h"

/* Bucket b holds samples of up to rows[b] rows; the last one all others. */
typedef struct {
    size_t n; /* 0: there are none */
    int64_t rows[TR_LIST_MAX + 1];
    uint64_t samples;
    uint8_t *of;    /* [samples] */
    uint32_t *list; /* [samples] of them bucket by bucket; NULL: the order is the file's */
    uint64_t begin[TR_LIST_MAX + 2]; /* of each in `list` */
    bool idle;                       /* all samples are in the last one */
} tr_buckets;

/* Of m's `shorter`; shuffles: an epoch's order is asked for. *held grows by what is allocated. */
tr_status tr_buckets_open(const tr_config *c, tr_dataset *d, const tr_model *m, bool shuffles,
                          tr_buckets *out, size_t *held);
void tr_buckets_close(tr_buckets *b);
/* The sample at a place of an epoch in steps of `batch`. Every sample has one place. Whole steps
 * come in an order drawn anew each epoch; of their samples the first is anyone's, so that any is as
 * likely to be in the short step at the end. */
uint64_t tr_buckets_sample(const tr_buckets *b, uint64_t seed, uint64_t epoch, uint64_t batch,
                           uint64_t place);
/* The bucket of the longest sample of a step, whose places these are. Takes no permutation but the
 * step's. */
size_t tr_buckets_longest(const tr_buckets *b, uint64_t seed, uint64_t epoch, uint64_t batch,
                          tr_range step);

#endif
