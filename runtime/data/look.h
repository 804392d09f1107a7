/* What lies in a data file, looked at without a config, for who writes one. All Local. */
#ifndef TR_DATA_LOOK_H
#define TR_DATA_LOOK_H

#include "runtime/data/data.h"

/* Dimensions of a sample in a file: channels, height, width; a gray image's. */
enum { TR_LOOK_IMAGE = 3, TR_LOOK_GRAY = 2 };

/* A column of a table that can be an input. */
typedef struct {
    char *name;
    size_t texts; /* different texts; 0: it holds numbers */
} tr_look_column;

/* A source as a config names it: all owned. */
typedef struct {
    char *path; /* NULL: `inputs` and `labels` are files */
    char *inputs,
        *labels; /* datasets, or files; a table's label column; of CIFAR and folders NULL */
} tr_look_source;

typedef struct {
    int format; /* tr_data_format */
    tr_look_source train,
        eval; /* eval: found beside train; its labels NULL and path NULL: there is none */
    uint64_t samples;
    int ndim;
    int64_t dims[TR_MAX_DIMS]; /* of a sample; of a table [numbers and texts' places] */
    bool bytes;                /* 8-bit elements, as of images */
    int64_t resize; /* of a folder of images: the shorter side before the middle is cut; else 0 */
    int64_t vocabulary; /* of a text, or tokens, of which there are `samples`: ids are below it;
                           else 0 */
    int dtype;          /* tr_tokens_type, of tokens */
    int64_t classes;    /* 0: targets are values, so many a sample: */
    int64_t outputs;
    uint64_t fewest; /* samples of the class with the fewest */
    bool binary;     /* values are all 0 or 1, of several columns */
    size_t ntargets; /* of a table, several columns of values in the place of train.labels */
    char **targets;
    char delimiter;  /* of a table */
    size_t ncolumns; /* of a table: inputs */
    tr_look_column *columns;
    bool no_header; /* its first line is a sample */
    size_t nnotes;  /* a line each: columns that are no input, and why; what else was assumed */
    char **notes;
    bool label_texts; /* a table's classes are texts, or numbers that do not count from 0 */
    bool missing;     /* a table has missing values in columns that are used */
} tr_look;

/* `path`: a file of any format that data.train takes, a folder of images, or several CIFAR files
 * with commas. `labels`: the dataset, file or column, or several columns with commas; NULL: found
 * by its name. TR_DATA names what was looked for, and what is there. */
tr_status tr_look_open(const char *path, const char *labels, tr_look *out);
void tr_look_close(tr_look *l);

#endif
