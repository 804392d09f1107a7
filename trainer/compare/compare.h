/* Runs beside each other: in what their configs differ, and what came of each. All Local. */
#ifndef TR_TRAINER_COMPARE_H
#define TR_TRAINER_COMPARE_H

#include "runtime/config/tree.h"
#include "runtime/store/store.h"

/* What evaluations measure; docs/records.md. */
#define TR_COMPARED_METRICS(X)                                                                     \
    X(loss, false)                                                                                 \
    X(accuracy, true)                                                                              \
    X(top5, true)                                                                                  \
    X(f1, true)                                                                                    \
    X(auc, true)                                                                                   \
    X(mae, false)                                                                                  \
    X(r2, true)                                                                                    \
    X(perplexity, false)                                                                           \
    X(bits_per_byte, false)
typedef enum {
#define X(name, more) TR_COMPARED_##name,
    TR_COMPARED_METRICS(X)
#undef X
        TR_COMPARED_COUNT
} tr_compared_metric;
typedef struct {
    const char *name;
    bool more; /* is better */
} tr_compared_metric_def;
extern const tr_compared_metric_def tr_compared_metrics[TR_COMPARED_COUNT];

/* Columns of as many rows, by rising step. */
typedef struct {
    size_t count;
    double *step, *value[TR_COMPARED_COUNT]; /* NaN: not measured */
} tr_curve;

/* A run folder, or a run file. */
typedef struct {
    char *path;
    char *status;                  /* "done", "stopped on request", ...; "unfinished" */
    tr_document config;            /* as resolved; no root: it has none */
    double parameters;             /* NaN: unknown, as all that follows */
    double steps, seconds;         /* of all starts */
    double samples_per_s;          /* of the last start */
    tr_curve training, evaluation; /* of training the loss alone */
} tr_compared;

typedef struct {
    size_t count;
    tr_compared *runs;
    size_t unread; /* runs that were left out */
} tr_comparison;

/* Each path: a run folder, a run file, or a sweep's folder, which stands for its trials. TR_FILE
 * where one is none of these; TR_USAGE where they are fewer than two runs. What cannot be read is
 * warned of, and gone on without; TR_DATA where fewer than two are left. */
tr_status tr_comparison_open(size_t npaths, char *const *paths, tr_comparison *out);
void tr_comparison_close(tr_comparison *c);

/* The best and the last one of a metric; *best NaN where none was measured. */
void tr_compared_best(const tr_compared *r, tr_compared_metric m, double *best, double *step,
                      double *last);

/* Key and value by run. */
typedef struct {
    char *key;
    char **values; /* [runs]; NULL: it has none */
} tr_difference;
typedef struct {
    size_t count, nruns;
    tr_difference *v;
} tr_differences;
/* Keys whose resolved values are not the same in all runs, in the order of the first config that
 * has them; where a run lies (`output`) is none, nor are defaults of a stage that a run lacks. */
tr_status tr_differences_find(const tr_comparison *c, tr_differences *out);
void tr_differences_free(tr_differences *d);

tr_status tr_comparison_write_text(const tr_comparison *c, const tr_differences *d, int width,
                                   FILE *to);
tr_status tr_comparison_write_csv(const tr_comparison *c, const tr_differences *d, FILE *to);
tr_status tr_comparison_write_json(const tr_comparison *c, const tr_differences *d, FILE *to);
/* Curves of the loss in training, and the evaluations' as points; another metric: of evaluations
 * alone. */
tr_status tr_comparison_write_svg(const tr_comparison *c, tr_compared_metric m, FILE *to);

#endif
