/* What the files of this room share: attribute sets, the image that is written and
 * the index that is read. Nothing outside runtime/store includes it. All Local. */
#ifndef TR_STORE_INTERNAL_H
#define TR_STORE_INTERNAL_H

#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/h5/h5.h"
#include "runtime/store/store.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "raw array bytes go to and from the file as they are: little-endian hosts only"
#endif

#define TR_FORMAT_NAME    "trireme"
#define TR_FORMAT_VERSION 2 /* the newest one that is read */
#define TR_FORMAT_PLAIN   1
#define TR_FORMAT_PACKED  2    /* rows in fewer bits: checksums together, long texts deflated */
#define TR_TOGETHER       4096 /* packed files: smaller arrays have a checksum together */
#define TR_FAULT          320  /* what is wrong with a part of a file, in words */
#define TR_STORE_DIMS     8    /* most dims an array in a file may have */

/* ---- Attribute sets (attrs.c) --------------------------------------------------------------- */

/* Writes them on an open object, with "crc32c" over all of them; `packed`: long texts are deflated.
 * Under the HDF5 lock. */
tr_status tr_attrs_write(const tr_attrs *a, hid_t object, const char *path, const char *where,
                         bool packed);
uint32_t tr_attrs_checksum(const tr_attrs *a); /* what "crc32c" must be */
/* Reads the ones of our types. fault: gets what is wrong with them as a set, if anything is. */
typedef struct tr_header tr_header;
tr_status tr_attrs_read(tr_attrs *a, const tr_header *h, const char *where, char fault[TR_FAULT]);

/* Deflated texts (packed.c): attributes that are arrays of bytes. */
/* *out is allocated, or NULL where it would bring nothing, or where so much that a reader would not
 * believe it. */
tr_status tr_text_deflate(const char *text, void **out, size_t *nbytes);
/* *out is allocated, or NULL where it is no whole text of at most `most` bytes. */
tr_status tr_text_inflate(const void *bytes, size_t nbytes, size_t most, char **out);

/* Attributes of /train to and from the struct (train.c). */
tr_status tr_train_to_attrs(const tr_train_state *t, tr_attrs *a);
tr_status tr_train_from_attrs(const char *of, const tr_attrs *a, tr_train_state *t);

/* ---- Writing (image.c) ---------------------------------------------------------------------- */

typedef struct tr_image tr_image;
tr_status tr_image_open(const char *path, bool packed, tr_image **out);
tr_status tr_image_group(tr_image *im, const char *where); /* and the ones above it */
/* The same with room for so many links, of names of so many bytes together: links that come later
 * take more. */
tr_status tr_image_group_of(tr_image *im, const char *where, size_t nlinks, size_t nbytes);
/* `data` is read at commit: it must stay until then. */
tr_status tr_image_array(tr_image *im, const char *where, tr_dtype type, int ndim,
                         const int64_t *dims, const void *data);
/* The same of data that lies in pieces, of `nbytes` each; NULL: zeros. `mapped`: as in
 * tr_flat_parts. */
typedef struct {
    const void *data;
    size_t nbytes;
    bool mapped;
} tr_image_piece;
tr_status tr_image_pieces(tr_image *im, const char *where, tr_dtype type, int ndim,
                          const int64_t *dims, const tr_image_piece *v, size_t count);
/* The same of memory of tr_alloc, which is the image's, also when it fails. */
tr_status tr_image_take(tr_image *im, const char *where, tr_dtype type, int ndim,
                        const int64_t *dims, void *data);
tr_status tr_image_attrs(tr_image *im, const char *where, const tr_attrs *a);
tr_status tr_image_commit(tr_image *im, size_t *nbytes);
void tr_image_close(tr_image *im);

/* ---- Reading (index.c, entry.c) ------------------------------------------------------------- */

/* One dataset, or one thing that should have been one (fault says why it is not). */
typedef struct {
    char *where; /* "/model/params/conv2d1/weight" */
    tr_dtype type;
    int ndim;
    int64_t dims[TR_STORE_DIMS];
    size_t count, nbytes;
    uint64_t offset; /* in the file */
    uint32_t crc;
    bool together; /* its checksum is part of the file's: `crc` is what was found at opening */
    char fault[TR_FAULT]; /* "": well */
} tr_entry;

/* The attributes of a group. */
typedef struct {
    char *where; /* "/stages/03-prune" */
    tr_attrs attrs;
    char fault[TR_FAULT]; /* "": well */
} tr_attr_set;

/* Everything there is to know of a run file but the arrays' bytes. */
typedef struct {
    char *path;
    char *of; /* before what is wrong with its arrays: "PATH: ", or "" where that is said once */
    int fd;
    uint64_t nbytes;
    bool starved; /* too few files may be open: nothing is known of this one; kept by tr_index_close
                   */
    bool newer;   /* of a format this program does not read yet; kept by tr_index_close */
    tr_attrs root, train;
    char root_fault[TR_FAULT], train_fault[TR_FAULT]; /* "": well */
    size_t count;
    tr_entry *entries;           /* sorted by where */
    uint32_t together, expected; /* checksum of those that have none of their own */
    size_t nsets;
    tr_attr_set *sets; /* of the groups below /stages, in the order of their names */
} tr_index;
/* TR_FILE when it is no run file of a version this program reads; lesser damage becomes faults. */
tr_status tr_index_open(const char *path, tr_index *ix);
void tr_index_close(tr_index *ix);
/* Every attribute and checksum of the file; read.c. */
tr_status tr_index_verify(const tr_index *ix, tr_train_state *train);
/* As tr_store_model_nbytes; size.c. */
uint64_t tr_index_model_nbytes(const tr_index *ix);
const tr_entry *tr_index_find(const tr_index *ix, const char *where);
/* "float32[16,3,3,3]"; returns buf. */
char *tr_entry_shape(tr_dtype type, int ndim, const int64_t *dims, char *buf, size_t size);
/* Describes the dataset of this header into *e. */
void tr_entry_describe(tr_entry *e, const tr_header *h, uint64_t file_nbytes);
void tr_entry_fault(tr_entry *e, const char *fmt, ...) TR_PRINTF(2, 3);

/* Small arrays of a packed file have no attribute "crc32c" (with what HDF5 needs for a first
 * attribute it is 62 bytes). Instead / has TR_TOGETHER_SUM, a uint32: the sum, modulo 2^32, of each
 * one's CRC-32C over its place, NUL, and the CRC-32C of its bytes. */
#define TR_TOGETHER_SUM "arrays_crc32c"
uint32_t tr_together_part(const char *where, uint32_t crc);
/* Reads the small ones, for ix->together; a fault each where / says nothing of them. */
tr_status tr_together_read(tr_index *ix, const tr_header *root);

/* ---- Stored types (stored.c) ----------------------------------------------------------------- */

/* One value that bfloat16, float16 or int8 holds: that of element i of `bytes`; int8: without its
 * scale. */
float tr_stored_value(tr_dtype type, const void *bytes, size_t i);
/* The values of a row as its stored type has them, allocated; `scale`: of an int8 row, [dims[0]].
 * TR_FILE where one is not what the type holds. */
tr_status tr_stored_pack(const char *path, const tr_param *p, const float *values,
                         const float *scale, void **bytes);
/* And back. */
void tr_stored_unpack(const tr_param *p, const void *bytes, const float *scale, float *values);

/* ---- Arrays in parts (parts.c) --------------------------------------------------------------- */

/* Of shared memory, which keeps its values: this process has these pages no longer. */
void tr_let_go(const void *p, size_t nbytes);

/* As tr_image_array: row p of it. */
tr_status tr_image_row(tr_image *im, const char *where, const tr_param *p, const tr_flat_parts *f);
/* As tr_entry_read: into row p of it. */
tr_status tr_entry_read_row(const tr_index *ix, const tr_entry *e, const tr_param *p,
                            const tr_flat_parts *f);

/* Passes the bytes through `take` (may be NULL) in pieces, or into `to` (may be NULL), and compares
 * the checksum. TR_FILE naming the dataset. */
typedef void tr_take(void *ctx, const void *bytes, size_t nbytes);
tr_status tr_entry_piece(const tr_index *ix, const tr_entry *e, size_t from, void *to,
                         size_t nbytes); /* as they are */
tr_status tr_entry_read(const tr_index *ix, const tr_entry *e, void *to, tr_take *take, void *ctx);

/* Whether the file is of this model, and has the slots of `s`: names and shapes alone. TR_FILE,
 * with what is another, else; read.c. */
tr_status tr_index_fits(const tr_index *ix, const tr_model *m, const tr_snapshot *s);

/* A run folder's step files (folder.c). */
/* Behind the name of a file that was set aside. */
#define TR_DAMAGED ".damaged"
#define TR_UNSOUND ".unsound"
typedef struct {
    uint64_t step;
    char *name;
} tr_step_file;
typedef struct {
    size_t count;
    tr_step_file *v;         /* newest first */
    size_t damaged, unsound; /* set aside at earlier starts */
    char *aside;             /* one of the unsound ones; NULL: there is none */
} tr_step_files;
/* `clean`: removes the temporaries of writers that are gone on the way. A folder that is not there
 * has no files. */
tr_status tr_step_files_list(const char *checkpoints, bool clean, tr_step_files *l);
void tr_step_files_free(tr_step_files *l);

/* /history (history.c) */
#define TR_HISTORY_COLUMNS 14
typedef struct {
    const char *name;
    bool eval, real; /* of evaluations, else of steps; float64, else uint64 */
    size_t offset;   /* in the row struct */
    bool maybe;      /* a file has it where some row's is a number; NaN where it is missing */
} tr_column;
extern const tr_column tr_history_columns[TR_HISTORY_COLUMNS];
/* Is it to be written? */
bool tr_history_has(const tr_history *h, const tr_column *c);
/* One column as an array (8 bytes a row), allocated. */
void *tr_history_column(const tr_history *h, const tr_column *c);
tr_status tr_history_read(const tr_index *ix, tr_history *h);

/* All but the last one, and where that began (configs.c). */
tr_status tr_past_configs_write(const tr_past_configs *p, tr_attrs *root);

/* /stages (lineage.c). The lineage must stay until the image is committed. */
tr_status tr_lineage_write(tr_image *im, const tr_lineage *l);
/* TR_FILE, "path: what, where", at the first thing that is not as it is written. */
tr_status tr_lineage_of(const tr_index *ix, tr_lineage *l);

/* ---- Saying (json.c, summary.c, plot.c, report*.c)
 * ------------------------------------------------- */

void tr_plain_text(const char *s, int max, FILE *to); /* control characters become '?' */

typedef struct {
    size_t count, zeros, nonfinite;
    double mean, std, norm, min, max; /* of the finite ones; norm: L2 */
} tr_stats;
typedef struct {
    tr_index ix;
    tr_stats *stats; /* one an entry; those of tr_entry_measured only */
    char **faults;   /* one an entry: structure or checksum; NULL when well */
    size_t nfaults;  /* of all: attributes too */
    tr_history history;
    char *history_fault;
    tr_lineage lineage;
    char *lineage_fault;
    tr_train_state train;
    bool has_train;
    char *name; /* of the config; may be NULL */
} tr_summary;
/* How the file's config trains its parameters (inspect_groups.c). */
enum { TR_TRAINED_USUAL = -1, TR_TRAINED_FROZEN = -2 };
#define TR_SHOWN_NAME (2 * TR_NAME + 2)
typedef struct {
    tr_document doc;
    const tr_node *groups; /* checked; NULL: none */
    size_t ngroups;
    int *of; /* one an entry: the group of a parameter, or one of the above */
} tr_trained;
tr_status tr_trained_open(const tr_summary *s, tr_trained *t);
void tr_trained_close(tr_trained *t);
void tr_trained_text(const tr_summary *s, const tr_trained *t, FILE *to);
void tr_trained_json(const tr_summary *s, const tr_trained *t, FILE *to);

bool tr_entry_measured(const tr_entry *e);
tr_status tr_summary_open(const char *path, tr_summary *s);
void tr_summary_close(tr_summary *s);
const char *tr_summary_text(const tr_summary *s, const char *attr); /* of /; "" when absent */
void tr_json_attrs(const tr_attrs *a, FILE *to);
void tr_inspect_stages_json(const tr_summary *s, FILE *to);
void tr_inspect_stages_text(const tr_summary *s, FILE *to);
void tr_inspect_json(const tr_summary *s, const tr_trained *t, FILE *to);
void tr_inspect_text(const tr_summary *s, const tr_trained *t, int width, FILE *to);
/* y over x as dots with axis labels, `width` columns wide in all. unicode: braille, else ASCII. */
tr_status tr_plot(const double *x, const double *y, size_t n, int width, int height, bool unicode,
                  const char *x_label, FILE *to);

#endif
