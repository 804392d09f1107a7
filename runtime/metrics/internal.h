/* Private to the metrics room: append-only files, one record's text, TensorBoard events, the
 * progress line. Nothing here allocates after it was opened. */
#ifndef TR_METRICS_INTERNAL_H
#define TR_METRICS_INTERNAL_H

#include "runtime/metrics/metrics.h"

#include <limits.h>
#include <pthread.h>
#include <sys/types.h>

/* ---- append.c: a file that only ever grows by whole records ---------------------------------- */

typedef struct {
    int fd; /* -1: not open */
    off_t size;
    bool failed; /* a failure was logged */
    char path[PATH_MAX];
} tr_append;

/* `fresh`: empties what is there. The path is in a->path. */
tr_status tr_append_open(tr_append *a, bool fresh);
/* All of it or nothing: a partial write is cut off again. A failure is logged, the first time. */
void tr_append_write(tr_append *a, const void *bytes, size_t nbytes);
void tr_append_close(tr_append *a);
/* Drops records past `step` from a metrics.jsonl, and what is no whole record; atomically. */
tr_status tr_append_rewind(const char *path, uint64_t step);

/* ---- record.c: one line of JSON -------------------------------------------------------------- */

#define TR_LINE 16384
typedef struct {
    size_t used;
    bool overflow;
    char text[TR_LINE];
} tr_record;

void tr_record_begin(tr_record *r, const char *event);
void tr_record_text(tr_record *r, const char *key, const char *value);
void tr_record_uint(tr_record *r, const char *key, uint64_t value);
void tr_record_bool(tr_record *r, const char *key, bool value);
/* `digits`: significant ones, 0 for as many as read back to the same number. NaN, inf: null. */
void tr_record_real(tr_record *r, const char *key, double value, int digits);
/* The same; NaN: the key is left out. */
void tr_record_known(tr_record *r, const char *key, double value, int digits);
/* Closes the object and the line; false when it did not fit. */
bool tr_record_end(tr_record *r);

/* ---- events.c: TensorBoard ------------------------------------------------------------------- */

typedef struct {
    const char *tag;
    double value;
} tr_scalar;

#define TR_EVENT 4096
/* A framed Event that says which version the file has; returns its bytes, at most TR_EVENT. */
size_t tr_event_version(unsigned char out[TR_EVENT], double wall_time);
/* A framed Event that says: a new start, what stands at `step` and past it is void. */
size_t tr_event_restart(unsigned char out[TR_EVENT], double wall_time, uint64_t step);
size_t tr_event_scalars(unsigned char out[TR_EVENT], double wall_time, uint64_t step,
                        const tr_scalar *scalars, size_t count);

/* ---- progress.c ------------------------------------------------------------------------------ */

typedef struct {
    pthread_mutex_t lock; /* other threads log too */
    int fd;
    int tty; /* whose width counts; -1: none, `columns` is fixed */
    bool on, terminal, color;
    bool pending; /* the newest state was not written */
    bool hidden;  /* wiped for a log line */
    uint64_t total, epochs;
    uint64_t first_step;
    double first_time, last_time;
    tr_progress_record now;
    double time;                     /* of `now` */
    double eval_loss, eval_accuracy; /* of the last evaluation; NaN: none yet, or without */
    size_t columns;
    size_t shown;       /* columns of the line that stands on the terminal; 0: none does */
    size_t used, width; /* bytes of `line`; columns, without what sets colours */
    char line[512];
} tr_progress;

/* The terminal that fd 2 ends at, also through mpirun's pipe: a descriptor to be closed; -1: there
 * is none, or it cannot be drawn on (TERM). */
int tr_progress_terminal(void);
/* `tty` is taken. `columns`: where it is -1. Colour as NO_COLOR says. */
void tr_progress_init(tr_progress *p, int fd, bool terminal, int tty, size_t columns,
                      const tr_metrics_options *o);
void tr_progress_fini(tr_progress *p);
void tr_progress_step(tr_progress *p, double now, const tr_progress_record *r);
void tr_progress_eval(tr_progress *p, double loss, double accuracy);
void tr_progress_end(tr_progress *p);
void tr_progress_before_log(void *progress);
void tr_progress_after_log(void *progress);

#endif
