/* What a run tells: metrics.jsonl, TensorBoard events, the progress line, the end summary. Rank 0
 * only; all Local. Records are formatted into buffers made at open: nothing is allocated in the
 * step loop. */
#ifndef TR_METRICS_H
#define TR_METRICS_H

#include "runtime/base/base.h"

typedef struct tr_metrics tr_metrics;

typedef struct {
    const char *folder; /* the run folder; metrics.jsonl and events.out.tfevents.* go there */
    bool resume;        /* keep what is there up to `step`, drop records past it */
    uint64_t step;
    bool quiet;                         /* no progress line */
    uint64_t total_steps, total_epochs; /* 0: not known */
} tr_metrics_options;
tr_status tr_metrics_open(const tr_metrics_options *o, tr_metrics **out);
void tr_metrics_close(tr_metrics *m); /* flushes; NULL is fine */

/* The run folder is elsewhere, and the files with it. */
void tr_metrics_move(tr_metrics *m, const char *folder);

typedef struct {
    uint64_t step, epoch;
    double loss, lr, grad_norm, loss_scale;
    double samples_per_s, step_ms, compute_ms, comm_wait_ms,
        data_wait_ms; /* means since the last record */
    /* Of rank 0's GPU; NaN: left out. */
    double idle_ms;                        /* it waited for work; mean since the last record */
    double gpu_memory_mb, gpu_utilization; /* of all processes; percent */
    double tokens_per_s;                   /* targets, where a sample has several; 0: left out */
    const char *skipped;                   /* NULL, or why the update was skipped */
} tr_step_record;
typedef struct {
    uint64_t step, samples;
    double loss;
    double accuracy, top5, f1, auc, mae, r2; /* NaN: not measured, left out */
    double perplexity, bits_per_byte;        /* likewise */
    uint64_t targets; /* that counted, where a sample has several; 0: left out */
    double seconds;
} tr_eval_record;
/* Means over the samples of an epoch, or of its part up to where training ended. */
typedef struct {
    uint64_t step, epoch, samples;
    double loss, accuracy; /* accuracy NaN: not meant, left out */
    double seconds;        /* of this start, in the epoch */
    uint64_t targets;      /* that counted, where a sample has several; 0: left out */
} tr_epoch_record;

/* Generic record: {"event":EVENT, then key/value pairs as given}. Types by letter in `spec`:
 * "name:s name:u name:d name:b ..." s = const char *, u = uint64_t, d = double (NaN and inf as
 * null), o = double that is left out where it is NaN, b = int (bool). */
tr_status tr_metrics_event(tr_metrics *m, const char *event, const char *spec, ...);
tr_status tr_metrics_step(tr_metrics *m, const tr_step_record *r);
tr_status tr_metrics_eval(tr_metrics *m, const tr_eval_record *r);
tr_status tr_metrics_epoch(tr_metrics *m, const tr_epoch_record *r);
/* Training goes on from `step` again (a rollback): TensorBoard drops what it has past it. In
 * metrics.jsonl the caller's "rollback" record (with "to": the same step) says so. */
void tr_metrics_rewind(tr_metrics *m, uint64_t step);
/* The progress line: on a terminal a bar with what fits beside it, rewritten in place (at most 10
 * times a second), also where its width changes; in colour unless NO_COLOR is set. Else one plain
 * line every 10 s and at the end. */
typedef struct {
    uint64_t step, epoch;  /* the epoch from 0 */
    double loss, accuracy; /* of the step; of the epoch so far; NaN: unknown */
    double samples_per_s;
    double tokens_per_s; /* as of steps */
} tr_progress_record;
void tr_metrics_progress(tr_metrics *m, const tr_progress_record *r);
void tr_metrics_progress_end(tr_metrics *m);
/* Best effort after an error while writing: the first failure is logged once, training goes on. */

#endif
