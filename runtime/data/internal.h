/* Private to the data room: files that are read by offset, arrays of samples in any format, and the
 * steps from a raw sample to what a kernel reads. All Local. */
#ifndef TR_DATA_INTERNAL_H
#define TR_DATA_INTERNAL_H

#include <time.h>

#include "runtime/data/arrays.h"
#include "runtime/data/data.h"

/* ---- Preparing ------------------------------------------------------------------------------- */

/* Whether float32 has not all of a type's values: 32 and 64-bit integers, float64. A mean is
 * subtracted from these before they are rounded: milliseconds since 1970 are 131,072 apart in
 * float32. */
bool tr_elem_wide(tr_elem e);
/* What data.normalize says of an input; NULL: nothing. */
const tr_normalize_config *tr_normalize_of(const tr_config *c, const tr_input *in);
/* out[k] = raw[k] - mean[k / run % n] */
void tr_elem_minus(tr_elem e, const void *raw, size_t count, const double *mean, size_t n,
                   size_t run, float *out);
/* out[k] = (raw[k] - mean) / std, rounded to nearest even for bf16. scratch: `count` floats, used
 * for element types other than u8 and f32. */
void tr_normalize_f32(tr_elem e, const void *raw, size_t count, double mean, float std, float *out);
void tr_normalize_bf16(tr_elem e, const void *raw, size_t count, double mean, float std,
                       float *scratch, tr_bf16 *out);
void tr_round_bf16(const float *in, size_t count, tr_bf16 *out);
void tr_round_f16(const float *in, size_t count, tr_f16 *out);
/* To one of these two. */
void tr_round_to(tr_dtype type, const float *in, size_t count, void *out);

/* Streams of TR_RNG_AUGMENT. */
enum {
    TR_STREAM_CUT,
    TR_STREAM_RESIZED_CROP,
    TR_STREAM_JITTER,
    TR_STREAM_AFFINE,
    TR_STREAM_ERASING,
    TR_STREAM_MIX, /* of steps, where the others are of samples */
    TR_STREAM_MIX_SHARE,
    TR_STREAM_MIX_PARTNER
};

/* ---- Files ----------------------------------------------------------------------------------- */

/* A regular file read by pread, never mapped: a file that shrinks is a short read, not a SIGBUS. */
typedef struct {
    char *path;
    int fd; /* -1: closed; the path stays for messages */
    uint64_t device, inode, size;
    struct timespec mtime;
} tr_data_file;

tr_status tr_data_file_open(const char *path, tr_data_file *f);
/* All of [offset, offset + nbytes), or TR_DATA naming the offset. */
tr_status tr_data_file_read(const tr_data_file *f, uint64_t offset, void *to, size_t nbytes);
/* TR_DATA if size or modification time moved since it was opened. */
tr_status tr_data_file_unchanged(const tr_data_file *f);
void tr_data_file_shut(tr_data_file *f);  /* closes the descriptor */
void tr_data_file_close(tr_data_file *f); /* and frees the path */

/* ---- Arrays of samples ----------------------------------------------------------------------- */

/* `samples` times one sample of dims[0..ndim). Readable from any thread once it is open. */
typedef struct tr_array tr_array;
struct tr_array {
    char *name; /* for messages: "PATH", "PATH: dataset NAME" */
    tr_elem elem;
    uint64_t samples;
    int ndim;
    int64_t dims[TR_MAX_DIMS];
    size_t count, nbytes; /* of one sample */
    void *held;           /* samples * nbytes, once held in memory */
    bool computed;        /* made up as it is read: never held */
    bool lazy;            /* decoded as it is read: kept by itself, if at all */
    bool kept;            /* of a lazy array: nothing is read from the file any more; set by keep */
    /* Samples follow each other in a text, where data.split holds out the last ones; so many before
     * one have tokens in common with it. */
    bool follows;
    uint64_t overlap;
    /* Of a text that is evaluated: its samples become windows `stride` apart (0: as they are), in
     * which each target of samples [first, end), and of what is behind the last sample of all,
     * counts once. NULL of others. */
    void (*once)(tr_array *a, uint64_t first, uint64_t end, uint64_t stride);
    size_t unit;  /* bytes unpacked to read one sample, where that is more than it has */
    size_t cache; /* bytes that reading it keeps, until release; counted as TR_MEM_DATA */
    /* n consecutive samples, in the machine's byte order */
    tr_status (*read)(tr_array *a, uint64_t first, uint64_t n, void *to);
    /* one sample as training takes it, by the numbers of (seed, ordinal); NULL: as read */
    tr_status (*draw)(tr_array *a, uint64_t i, uint64_t seed, uint64_t ordinal, void *to);
    /* of a lazy array, NULL of others: sample i will be read; and, once all were named, room to
     * keep these, if that takes no more than `budget` bytes; *cache: all that is held, with what
     * the threads of data.workers decode in */
    void (*use)(tr_array *a, uint64_t i);
    tr_status (*keep)(tr_array *a, uint64_t budget, size_t *cache);
    const char *(*file)(const tr_array *a, uint64_t i); /* that it lies in by itself; NULL: none */
    int64_t (*rows)(const tr_array *a,
                    uint64_t i); /* of sample i that count; NULL: not known here */
    void (*where)(const tr_array *a, uint64_t i, char *buf, size_t size); /* NULL: by name */
    const char *(*column)(const tr_array *a,
                          size_t place); /* of a sample's value; NULL: nameless */
    void (*release)(tr_array *a);        /* gives up descriptors: once held, and on close */
    void (*fini)(tr_array *a);           /* frees the rest, on close; NULL: nothing */
};

/* From the dims of the whole array: the first counts samples. TR_DATA when they are no array of
 * samples: 1 to TR_MAX_DIMS dims, all positive, a size that fits. */
tr_status tr_array_shape(tr_array *a, tr_elem elem, int ndim, const uint64_t *dims);
/* Of samples that whoever made it puts into a->held, TR_MEM_DATA. */
tr_status tr_array_held_open(const char *name, const tr_header *h, tr_array **out);
/* Reads all samples into memory and lets go of the file. */
tr_status tr_array_hold(tr_array *a);
void tr_array_close(tr_array *a);
/* Puts in the place of *a, which it owns from then on, an array of n of its samples: of those in
 * `rows`, copied, or, where that is NULL, of those from `first` on. On failure *a is as before. */
tr_status tr_array_select(tr_array **a, const uint64_t *rows, uint64_t first, uint64_t n);
/* One sample: a pointer into the held bytes, or `scratch` (a->nbytes) filled. */
tr_status tr_array_at(tr_array *a, uint64_t i, void *scratch, const void **raw);
/* "PATH: sample 3 (byte 147)" */
void tr_array_where(const tr_array *a, uint64_t i, char *buf, size_t size);

/* Samples at a fixed stride in one file or several, one after the other. */
typedef struct {
    tr_data_file file;
    uint64_t offset, stride, samples;
} tr_file_segment;
/* Takes over the files of `segments`, on failure too. Shape and name are the caller's to set. */
tr_status tr_flat_open(const tr_file_segment *segments, size_t nsegments, bool swap,
                       tr_array **out);

/* The formats. *out is written on success only. */
tr_status tr_idx_open(const char *path, uint64_t unpack_limit, tr_array **out);
tr_status tr_npy_open(const char *path, tr_array **out);
/* Whether a header's array counts samples, in C order. As tr_npy_parse. */
tr_status tr_npy_check(const tr_header *h);
/* One array of an archive. `limit`: bytes that may be held; what is deflated must fit. */
tr_status tr_npz_open(const char *path, const char *name, uint64_t limit, tr_array **out);
/* Which one of several datasets a failure is about. */
typedef struct {
    size_t at;    /* its place among the names; their count: none */
    bool missing; /* the file is read, and has no such name */
} tr_failed_set;
/* Datasets of one file, looked at in one process; out: `count` of them. failed: may be NULL. */
tr_status tr_hdf5_arrays_open(const char *path, const char *const *datasets, size_t count,
                              tr_array **out, tr_failed_set *failed);
/* The same look at them alone, after which opening them starts no process, here and wherever it was
 * handed on (tr_data_known_write). Those from `needed` on may fail. */
tr_status tr_hdf5_arrays_look(const char *path, const char *const *datasets, size_t needed,
                              size_t count, tr_failed_set *failed);
/* An opening is over: of files that may change without their times telling, nothing is known any
 * more. */
void tr_hdf5_forget_new(void);
/* paths: count of them. labels: NULL, or "fine" or "coarse" for CIFAR-100. */
tr_status tr_cifar_open(char *const *paths, size_t count, bool hundred, const char *labels,
                        tr_array **inputs, tr_array **targets);
/* Which of the two a .bin file is, by its size. */
tr_status tr_cifar_kind(const char *path, bool *hundred);

typedef struct {
    uint64_t seed, samples;
    uint32_t set;    /* training 0, evaluation 1: other samples, same classes */
    int64_t classes; /* 0: regression */
    bool binary;     /* regression targets 0 or 1 */
} tr_synthetic;
tr_status tr_synthetic_input(const tr_synthetic *s, const tr_model *m, size_t input,
                             tr_array **out);
tr_status tr_synthetic_target(const tr_synthetic *s, const tr_model *m, tr_array **out);

/* Headers as bytes, for the readers above and for the fuzzers. `nbytes` may be less than the file:
 * at least TR_IDX_HEADER, or all of it. */
#define TR_IDX_HEADER 1024
tr_status tr_idx_parse(const char *path, const uint8_t *bytes, size_t nbytes, tr_header *h);
/* A file of tokens, as tr_npy_parse; `size`: of the file; type: tr_tokens_type, of one that does
 * not tell. */
tr_status tr_tokens_parse(const char *path, const uint8_t *bytes, size_t nbytes, uint64_t size,
                          int type, tr_header *h);
/* How many tokens a file has, and the greatest. type: as above, -1: a text. */
tr_status tr_tokens_count(const char *path, int type, uint64_t *tokens, uint64_t *most);
bool tr_tokens_known(const char *path); /* it has llm.c's header */
bool tr_tokens_wide(const char *path);  /* it does not tell, and looks like 32 bits a token */
/* The array's bytes that follow; TR_DATA unless they end exactly at `size`, without the file's
 * name. */
tr_status tr_header_check(const tr_header *h, uint64_t size, uint64_t *nbytes);
/* The array of a plain file; takes the descriptor out of `file`. */
tr_status tr_header_open(tr_data_file *file, const char *path, const tr_header *h, tr_array **out);

/* ---- The dataset ----------------------------------------------------------------------------- */

struct tr_dataset {
    uint64_t samples;
    size_t ninputs;
    tr_array *inputs[TR_MAX_IN];
    tr_array *targets;      /* NULL: there are none */
    tr_array *weights;      /* of samples; NULL: all 1 */
    bool weighted;          /* the model wants them */
    size_t target_count;    /* elements a sample */
    size_t target_channels; /* of values (C, H, W): stored channels-last; else 1 */
    bool labels;            /* int32 classes, else float32 values */
    int64_t classes;
    bool unit; /* values must be in [0, 1]: bce, focal, and with `whole` must add up to 1:
                  probabilities */
    bool whole;
    bool ignores; /* labels: this one is fine, too */
    int32_t ignore_index;
    /* Of values: (v - mean) / std. nstats: 0: as they are; 1: for all; else one for each channel of
     * an image, of which `run` values follow each other, or for each of the last dimension. */
    size_t nstats, run;
    double *mean;
    float *std;
    size_t held;
    bool idle_told; /* that data.buckets save nothing of it */
};

/* TR_DATA where there is nothing to part. */
tr_status tr_split_check(const tr_dataset *d);
/* How many of n samples, two or more, are held out: at least one, and not all. */
uint64_t tr_split_part(const tr_split_config *s, uint64_t n);
/* Leaves the part of d's samples that is held out, or the other one. */
tr_status tr_split_take(const tr_config *c, tr_dataset *d, bool held_out);
/* Raw targets of samples i.. as int32 or float32, each checked. */
tr_status tr_targets_convert(const tr_dataset *d, const void *raw, uint64_t i, uint64_t n,
                             void *out);
/* Weights likewise: finite and at least 0. */
tr_status tr_weights_convert(const tr_dataset *d, const void *raw, uint64_t i, uint64_t n,
                             float *out);
/* Warns, once a program, of columns of inputs and targets whose values are so far from 0 that
 * float32, which models compute in, tells few of them apart, and of which no mean is subtracted
 * before they are rounded to it. */
void tr_coarse_warn(const tr_dataset *d, const tr_config *c, const tr_model *m);
/* Targets of sample i alone, as kernels read it: images channels-last. scratch: target_count
 * floats. */
tr_status tr_targets_prepare(const tr_dataset *d, const void *raw, uint64_t i, float *scratch,
                             void *out);

/* ---- From raw to ready ----------------------------------------------------------------------- */

/* Which steps mix samples, and how. */
typedef struct {
    bool on;
    tr_mix_config up, cut;
    int64_t height, width; /* of images, all alike where `cut` is present */
} tr_mixing;

/* Values, or a class, for each place of an image; rows of a sequence, (positions, classes), are
 * none. */
bool tr_target_is_image(const tr_model *m);

/* What every sample goes through; constant after open. */
typedef struct {
    int ninputs;
    struct {
        bool image;  /* (C, H, W): stored channels-last, augmented */
        int64_t ids; /* tr_input.ids */
        /* of lengths: a layer that goes by them; "" of others */
        char taker[TR_NAME];
        size_t size;   /* bytes of an element when it is ready */
        size_t count;  /* elements */
        size_t nstats; /* mean and std: 0, 1, or one a channel of an image, else one a feature */
        double *mean;
        float *std;
        int64_t c, h, w;
    } in[TR_MAX_IN];
    tr_dtype dtype;
    uint64_t seed;
    int64_t crop;
    bool flip;
    struct tr_changes *changes; /* beyond these two (change.c); NULL: none */
    tr_mixing mixing;     /* of samples when they are ready (mix.c), so that dtype is float32 */
    size_t scratch_count; /* floats in each of a worker's scratch arrays */
} tr_prepare;

tr_status tr_prepare_init(const tr_config *c, const tr_model *m, bool train, tr_dtype dtype,
                          tr_prepare *p);
void tr_prepare_fini(tr_prepare *p);
/* Sample `ordinal` of input k, values, from raw to `out`. scratch: 2 * p->scratch_count floats. */
void tr_prepare_sample(const tr_prepare *p, int k, tr_elem elem, const void *raw, uint64_t ordinal,
                       float *scratch, void *out);
/* Input k, ids: sample i of `a`, each element checked. */
tr_status tr_prepare_ids(const tr_prepare *p, int k, const tr_array *a, const void *raw, uint64_t i,
                         int32_t *out);

#endif
