/* What the loader is made of: loader_open.c makes it, loader.c runs it. Private. */
#ifndef TR_DATA_LOADER_H
#define TR_DATA_LOADER_H

#include <pthread.h>

#include "runtime/data/buckets.h"
#include "runtime/data/mix.h"

typedef struct {
    void *inputs[TR_MAX_IN];
    void *targets;
    float *weights;
    int64_t rows;  /* that its samples keep (data.buckets); 0: all */
    uint64_t done; /* q + 1 of the micro-batch it holds; 0: none */
    bool failed;
    tr_error error;
} slot;

/* A worker's own buffers */
typedef struct {
    tr_loader *loader;
    pthread_t thread;
    void *raw;
    float *scratch;
    float *own, *other; /* a sample before it is rounded and what is mixed into it; NULL: none is */
} worker;

/* Elements of a sample that are left in slots. */
typedef struct {
    size_t inputs[TR_MAX_IN], target;
} kept_of;

struct tr_loader {
    tr_dataset *dataset;
    const tr_backend *backend;
    void *backend_ctx;
    tr_prepare prepare;
    bool train, shuffle, drop_last;
    uint64_t seed, samples, steps;
    int64_t batch;
    int micro_batches, rank, size;
    tr_dtype dtype;      /* of inputs in slots */
    size_t target_count; /* elements of a sample's target in slots */
    tr_buckets buckets;
    /* By bucket; without any the first alone. */
    kept_of kept[TR_LIST_MAX + 1];
    size_t held;

    size_t nslots;
    slot *slots;
    int nworkers, running; /* running: threads that were started */
    worker *workers;       /* at least one, for its buffers */

    pthread_mutex_t mutex;
    pthread_cond_t work,
        ready; /* work: something to claim, or stop; ready: a slot or a worker is done */
    /* under the mutex */
    bool started, stop;
    uint64_t start;          /* global step of q = 0 */
    uint64_t claimed, taken; /* see above */
    uint64_t total; /* evaluation: micro-batches from start to the end; training: UINT64_MAX */
    bool handed;    /* the caller holds `taken` */
    int busy;
};

/* A worker's thread, of a `worker`. */
void *tr_loader_work(void *arg);

#endif
