/* Datasets and the loader: samples by index from files of any supported format, the order of an
 * epoch, rank shares, and threads that keep prepared batches ahead of the step loop. All Local:
 * ranks agree by computing the same. */
#ifndef TR_DATA_H
#define TR_DATA_H

#include "runtime/device/backend.h"

/* ---- Datasets -------------------------------------------------------------------------------- */

/* A set of samples, readable by index from any thread: inputs channels first as in the file, in the
 * file's own element type (8 to 64 bit integers, float32, float64), and their targets. */
typedef struct tr_dataset tr_dataset;

/* Opens and checks a source of the config against the model: counts agree, the sample shape has the
 * model's element count and dims (dimensions of 1 in front may be missing, and either side may be
 * flat), labels in range. TR_DATA errors name file, dataset or offset, value and what was expected;
 * what the config names wrongly is TR_CONFIG. Keeps the targets, then the inputs, in memory as far
 * as data.cache_mb goes; the rest is read by pread, or by HDF5 selections through a cache of 4 MiB,
 * or of one chunk where that is more. Both are counted as TR_MEM_DATA.
 * With data.split, data.train is what is not held out, and data.eval, where the config has none,
 * what is. Neither `c` nor `m` is kept. `s` is &c->data.train, &c->data.eval, or &c->data.predict,
 * which is opened without targets, whether it names any or not. */
tr_status tr_dataset_open(const tr_config *c, const tr_source_config *s, const tr_model *m,
                          tr_dataset **out);
void tr_dataset_close(tr_dataset *d);
/* What tr_dataset_open looks at in a process of its own (HDF5), no more, and for other formats
 * nothing. Fails as that does. What it saw is known to this process from then on, until the file
 * changes: tr_dataset_open starts no other. Where data.eval is in data.train's file, either call
 * for data.train looks at both. */
tr_status tr_dataset_look(const tr_config *c, const tr_source_config *s, const tr_model *m);
/* Writes what this process knows of files by such looks, for others that see the same files;
 * returns how many bytes. */
#define TR_DATA_KNOWN ((size_t)32 << 10)
size_t tr_data_known_write(void *to); /* to: room for TR_DATA_KNOWN */
/* Takes that in. False, and nothing is taken, for bytes that are none of this program's. */
bool tr_data_known_take(const void *bytes, size_t nbytes);
uint64_t tr_dataset_samples(const tr_dataset *d);
const char *tr_dataset_name(const tr_dataset *d); /* where they are, for messages */
/* What the samples in use hold, a line an array: samples, element type, shape, a checksum of the
 * values (of synthetic ones none), whatever files they lie in, and one of the names where each is a
 * file. Ranks that bring the same text hold the same data, as far as was looked: an array of up to
 * 32 MiB is read whole, of others 256 samples (4096 where it is held in memory; fewer where a
 * sample or its chunk is large, but 4) at places that depend on `seed`. `block`: begins each
 * line. */
tr_status tr_dataset_describe(tr_dataset *d, const char *block, uint64_t seed, FILE *to);
/* Bytes held in memory, chunk caches included. */
/* "FILE: sample 3 (byte 147)" of the first input. */
void tr_dataset_where(const tr_dataset *d, uint64_t i, char *buf, size_t size);
/* Reads all inputs: TR_DATA names the first value that is not finite, or no id. Writes what there
 * is, a line "# ..." an input. Targets were looked at when it was opened. */
tr_status tr_dataset_check(tr_dataset *d, const tr_config *c, const tr_model *m, FILE *to);
/* Where each sample is a file (tr_dataset_file): reads all of them. TR_DATA if any is bad: a line
 * "# bad: ..." each, for the first 20. */
tr_status tr_dataset_check_files(tr_dataset *d, FILE *to);
/* The texts of a column of data.train's table, sorted, as a YAML list. */
tr_status tr_table_categories(const tr_config *c, const char *column, FILE *to);
/* The classes of data.train, a folder of images, as a YAML list. */
tr_status tr_folder_class_names(const tr_config *c, FILE *to);
/* The file that sample i of the first input is, below the source's folder; NULL: it is none by
 * itself. */
const char *tr_dataset_file(const tr_dataset *d, uint64_t i);
/* A number that stands for all of these in their order; 0: there are none. */
uint64_t tr_dataset_names(const tr_dataset *d);
/* Samples of each class: counts[classes]. */
tr_status tr_dataset_class_counts(tr_dataset *d, uint64_t *counts);

/* Mean, and sum of squared distances from it, of so many values; all 0: of none. */
typedef struct {
    double count, mean, m2;
} tr_moments;
void tr_moments_merge(tr_moments *to, const tr_moments *from);
/* That an input or the targets have: a channel of an image each, else a feature, the last
 * dimension. */
size_t tr_dataset_places(const tr_model *m, size_t input);
size_t tr_dataset_target_places(const tr_model *m);
/* Values of one of these that follow each other in a target, channels first as in the file: a
 * channel's, else one. */
size_t tr_dataset_target_run(const tr_model *m);
/* Of the file's values of samples [begin, end); input -1: the targets. out: [places]. TR_DATA as
 * tr_dataset_check. */
tr_status tr_dataset_moments(tr_dataset *d, const tr_model *m, int input, tr_range samples,
                             tr_moments *out);
size_t tr_dataset_held(const tr_dataset *d);

/* ---- The order ------------------------------------------------------------------------------- */

/* Pure. How an epoch is cut: step s of an epoch covers places [s*batch, min((s+1)*batch, samples))
 * of the epoch's order (the last may be short, or is left out with drop_last). A step's places are
 * dealt to `micro_batches` groups, group `micro` to ranks: consecutive, sizes differing by at most
 * one, larger first. So one micro-batch of all ranks together is one consecutive run of samples,
 * whatever the number of ranks. A short step is dealt to as few groups, of no more samples than a
 * full one's, as hold it: the others are empty, on all ranks. */
uint64_t tr_steps_per_epoch(uint64_t samples, int64_t batch, bool drop_last);
tr_range tr_share(uint64_t samples, int64_t batch, uint64_t step_in_epoch, int micro_batches,
                  int micro, int rank, int size);
/* Every share size that (rank, size) meets over an epoch, distinct, descending; returns how many
 * (<= 8). */
int tr_share_sizes(uint64_t samples, int64_t batch, int micro_batches, int rank, int size,
                   bool drop_last, int64_t sizes[8]);

/* ---- The loader ------------------------------------------------------------------------------ */

typedef struct tr_loader tr_loader;

typedef struct {
    const tr_config *config;
    const tr_model *model;
    tr_dataset *dataset; /* not owned */
    bool train;          /* shuffled (if data.shuffle) and augmented; else in file order, once */
    bool cut;            /* batches may be of fewer rows: those of model->shorter */
    uint64_t samples;    /* only the first so many; 0, or more than there are: all */
    int64_t batch;       /* global */
    int micro_batches;   /* a step */
    int rank, size;
    tr_dtype dtype;            /* of inputs that are values: the graph's activation type */
    const tr_backend *backend; /* whose host_alloc batches are kept in; NULL: plain memory */
    void *backend_ctx;
    int workers, prefetch;
    const int *cpus; /* to bind worker threads to; NULL: not bound */
    size_t ncpus;
} tr_loader_options;

/* Does what data.normalize and data.augment say apply to the model's inputs, and train.metrics to
 * its outputs? TR_CONFIG where not. */
tr_status tr_data_check(const tr_config *c, const tr_model *m);

/* Buffers and threads; nothing is allocated after it. Config and model are not kept. Augmentation
 * applies to image inputs (3-D samples), normalization to those that it names, or where it names
 * none, to all, which then must be images or have none among them; neither ever to ids. A list of
 * means or stds has one value for each of an image's channels, or for each of another input's
 * features, its last dimension. */
tr_status tr_loader_open(const tr_loader_options *o, tr_loader **out);
void tr_loader_close(tr_loader *l); /* stops and joins the workers */
/* Starts (again) at a global step: epoch = step / steps per epoch. Evaluation: step in [0, steps).
 * Preparing ahead begins here; without a seek, with the first tr_loader_next, at step 0. */
tr_status tr_loader_seek(tr_loader *l, uint64_t step);
/* The dataset's sample of an ordinal (tr_batch), epoch * samples + place. */
uint64_t tr_loader_sample(const tr_loader *l, uint64_t ordinal);

/* The rank's next micro-batch, in order: copies nothing, waits if it must. */
typedef struct {
    uint64_t step, epoch;
    int micro;                     /* which of the step */
    uint64_t ordinal;              /* of its first sample: epoch * samples + place */
    int64_t count;                 /* samples; may be 0 */
    int64_t rows;                  /* of sequences, as one of model->shorter; 0: as the model's */
    const void *inputs[TR_MAX_IN]; /* stored layout, options.dtype or int32 ids; valid until the
                                      next call */
    /* int32 labels or float32 values; stored layout: of samples (C, H, W) channels-last, like the
     * output it is compared with; in training with data.augment.mixup or cutmix float32
     * probabilities (count, classes) in the place of labels; NULL: the dataset has none */
    const void *targets;
    const float *weights; /* of samples; NULL: the model has none */
    double waited;        /* seconds this call blocked */
} tr_batch;
/* On failure (the worker's own error record) it fails the same way until the next seek. */
tr_status tr_loader_next(tr_loader *l, tr_batch *out);
/* After the last step of an evaluation, tr_loader_next gives count 0 and step == steps. */
uint64_t tr_loader_steps_per_epoch(const tr_loader *l);
size_t tr_loader_held(const tr_loader *l); /* bytes of its buffers */

#endif
