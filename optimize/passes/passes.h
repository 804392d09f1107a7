/* Passes from model to model: each makes a network that computes the same in evaluation with less.
 * Each is *proven on data*: the outputs of what it made are compared with those before it, and
 * where they are further apart than the bound, it is undone and said. */
#ifndef TR_PASSES_H
#define TR_PASSES_H

#include "optimize/network/network.h"

/* One pass over a network. */
typedef struct tr_rewrite tr_rewrite;
typedef struct {
    const char *name; /* for `skip` */
    const char *doc;  /* one sentence */
    /* *Local.* Notes what is to become of the network, and counts it. */
    tr_status (*run)(tr_rewrite *rw, size_t *count);
} tr_pass;

size_t tr_pass_count(void);
const tr_pass *tr_pass_at(size_t i); /* in the order in which they run */

/* A network as it is fed: `raw`: with data that data.normalize has not touched. */
typedef struct {
    const tr_network *network;
    bool raw;
} tr_pass_subject;

typedef struct {
    const char *const *skip; /* names of passes */
    size_t nskip;
    /* What the data is normalized by; NULL: it is not, or that is to stay. */
    const tr_normalize_config *normalize;
    size_t nnormalize;
    double bound; /* on the difference */
    /* *Collective* where it likes to be: every rank must come to the same number. The largest
     * difference of an output, over the largest output before or 1, whichever is more; NaN counts
     * as above any bound. NULL: nothing is proven. */
    tr_status (*differ)(void *ctx, const tr_pass_subject *before, const tr_pass_subject *after,
                        double *difference);
    void *ctx;
} tr_passes_options;

#define TR_PASS_NOTE 160
typedef struct {
    size_t count;      /* what it found and changed */
    double difference; /* the largest that was measured; 0: nothing was */
    bool skipped, undone;
    char note[TR_PASS_NOTE]; /* why it left something alone; "": nothing to say */
} tr_pass_report;

/* *Local* but for `differ`. All passes in their order, again and again until none finds anything.
 * *raw: the network takes data as it is in the file: its config needs TR_PASSES_RAW. `reports`:
 * [tr_pass_count()], also of use when it fails. */
tr_status tr_passes_run(const tr_network *n, const tr_passes_options *o, tr_network **out,
                        bool *raw, tr_pass_report *reports);
#define TR_PASSES_RAW "data.normalize={}"
#endif
