/* Generation: a language model, from ids (T) to a row of logits for each, goes on with sequences of
 * ids. All Local. */
#ifndef TR_SAMPLE_H
#define TR_SAMPLE_H

#include "optimize/network/network.h"
#include "runtime/plan/plan.h"

/* ---- decode.c: sequences go through the model, some ids at a time ---------------------------- */

typedef struct tr_decoder tr_decoder;

typedef struct {
    const tr_backend *backend; /* both borrowed */
    void *backend_ctx;
    int threads; /* of the host, for its kernels; 0: 1 */
    tr_precision precision;
    unsigned skip_passes; /* of the graphs: a set of TR_PASS_IS */
    int64_t sequences;    /* beside each other */
    int64_t rows;         /* ids that each can have, at most tr_graph_most_rows */
    int64_t chunk;        /* that tr_decoder_feed takes of each at a time */
} tr_decoder_options;

/* TR_UNSUPPORTED, with the reason: the model makes no sequence row by row (tr_graph_decodes), or
 * what it gives is no logit for each id that it reads. More logits than ids are fine: heads are
 * padded. */
tr_status tr_decoder_takes(const tr_model *m);
/* Bytes that layers of such a decoder hold of the ids before; nothing of it is allocated. */
tr_status tr_decoder_holds(const tr_model *m, const tr_decoder_options *o, size_t *nbytes);
/* Bytes of the backend's memory that a decoder takes in all, by planning one; on the host beside
 * the parameters, which the network holds already. */
tr_status tr_decoder_needs(const tr_model *m, const tr_decoder_options *o, size_t *nbytes);
/* `n` hands over its parameters as to tr_inference_take, and may be closed. TR_UNSUPPORTED: as
 * tr_decoder_takes. */
tr_status tr_decoder_open(tr_network *n, const tr_decoder_options *o, tr_decoder **out);
void tr_decoder_close(tr_decoder *d);
/* All sequences are empty again. */
tr_status tr_decoder_reset(tr_decoder *d);
/* counts[s] ids more for sequence s, of which nothing is wanted but that it has them. They fit into
 * `rows`. TR_USAGE: the model knows no such id. */
tr_status tr_decoder_feed(tr_decoder *d, const int32_t *const *ids, const size_t *counts);
/* One id more for each sequence that is live. *logits: (sequences, vocabulary), of what comes
 * behind it, until the next call; of sequences that are not live they mean nothing. Allocates
 * nothing. */
tr_status tr_decoder_step(tr_decoder *d, const int32_t *ids, const bool *live,
                          const float **logits);
int64_t tr_decoder_vocabulary(const tr_decoder *d); /* logits a row: the ids that the model reads */
int64_t tr_decoder_sequences(const tr_decoder *d);
int64_t tr_decoder_rows(const tr_decoder *d);
int64_t tr_decoder_chunk(const tr_decoder *d);
/* What it takes by kind; *held: of that, what layers hold of the ids before. */
void tr_decoder_memory(const tr_decoder *d, tr_memory_plan *out, size_t *held);
/* The plan of a step, to look at. */
tr_plan *tr_decoder_plan(tr_decoder *d);

/* ---- choose.c: which id comes next ----------------------------------------------------------- */

typedef struct {
    double temperature; /* logits are divided by it; 0: the largest one is taken, the first of equal
                           ones */
    int64_t top_k;      /* of the so many most probable ones; 0: of all */
    double top_p;       /* of the fewest most probable ones with at least so much probability (the
                           nucleus, Holtzman et al. 2020), of those that top_k leaves; 1: of all */
} tr_choice;
typedef struct {
    float weight;
    int32_t id;
} tr_candidate;
/* One of n logits, `uniform` in [0, 1) deciding; room: [n]. -1: no largest logit is there, for one
 * is NaN or all are -inf. */
int32_t tr_choose(const tr_choice *c, const float *logits, size_t n, double uniform,
                  tr_candidate *room);

/* ---- generate.c: prompts, and what is made of them ------------------------------------------- */

typedef struct {
    const int32_t *ids;
    size_t count;
} tr_ids;

typedef enum {
    TR_END_TOKENS,    /* as many as were asked for */
    TR_END_STOP,      /* a stop came, which is not told */
    TR_END_POSITIONS, /* the model can tell no more positions apart */
    TR_END_NONFINITE  /* a row of logits has no largest one */
} tr_end;

typedef struct {
    const tr_ids *prompts; /* each of at least one id */
    size_t nprompts;
    const tr_ids *stops; /* none is empty */
    size_t nstops;
    int64_t tokens; /* at most so many behind each prompt */
    int64_t below;  /* only ids below it are chosen; 0: any that the model reads */
    tr_choice choice;
    uint64_t seed;
    /* An id of prompt i's sequence, in order; those of different prompts come in any. */
    tr_status (*emit)(void *ctx, size_t prompt, int32_t id);
    tr_status (*end)(void *ctx, size_t prompt, tr_end why); /* it has no more */
    bool (*stop)(void *ctx); /* asked between ids and chunks of prompts: TR_STOPPED */
    void *ctx;
} tr_generation;

typedef struct {
    uint64_t prompt_ids, ids; /* put in, and made */
    double prompt_seconds, seconds;
} tr_generated;

/* Groups of as many prompts as the decoder has sequences, one behind the other. *out: also of what
 * was done when it fails or is stopped, and all ids that were made are told, but where telling
 * failed. TR_NONFINITE, when all others are done: a row of logits had no largest one, which ended
 * its sequence. */
tr_status tr_generate(tr_decoder *d, const tr_generation *g, tr_generated *out);

#endif
