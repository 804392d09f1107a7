/* The parameter store: where every row of a model's table lies (weight, gradient, state, optimizer
 * slots) and which ranges of the flat space this rank owns, which is to say updates. All Local.
 *
 * Weights span the flat parameter space, states the flat state space. What is learned lies in
 * buckets, frozen rows behind them: these have weights alone. Slots (moments, the moving average)
 * hold only what this rank owns of the buckets: its ranges one behind the other, ascending.
 *
 *     weights       [ ......AAAA....BB......|ffff ]     owned: A, B
 *     gradients     [ ......AAAA....BB...... ]
 *     a slot        [ AAAABB ]                          held: 6; A at 0, B at 4
 *
 * Where the arrays lie is decided above: with ranks that share the work some of them are windows
 * that these ranks map (collectives), else they are the backend's, allocated here. */
#ifndef TR_PARAMS_H
#define TR_PARAMS_H

#include "runtime/device/backend.h"

#define TR_PARAM_SLOTS 4

typedef struct {
    const tr_model *model; /* the table; not owned. NULL: no row will be asked for */
    size_t count;          /* elements of the flat space: a multiple of 16 */
    /* Of what is learned, in the order they become ready: [begin, end) multiples of 16, ascending,
     * gapless, from 0. */
    const tr_range *buckets;
    size_t nbuckets;
    /* Of the buckets, ascending, apart, multiples of 16: weights that kernels read in `type` alone,
     * bfloat16 or float16. Whoever does not own them may hold them rounded to it. */
    const tr_range *rounded;
    size_t nrounded;
    tr_dtype type;
    size_t state_count;
    int nslots;
    const char *slot_names[TR_PARAM_SLOTS]; /* static texts */
    bool offload; /* the slots lie in the host's memory; the backend's updater streams them */
    const tr_backend *backend; /* whose memory the arrays lie in; NULL: the host's */
    void *backend_ctx;
} tr_params_options;

/* Arrays that are handed in, and how they are given back. Those that are NULL are allocated. */
typedef struct {
    float *weights, *grads;       /* [count], [tr_params_learned] */
    float *slots[TR_PARAM_SLOTS]; /* [held] */
    void *ctx;
    void (*release)(void *ctx); /* may be NULL */
} tr_params_memory;

typedef struct tr_params {
    tr_params_options o; /* buckets, rounded: the store's own copies */
    float *weights, *grads, *states, *slots[TR_PARAM_SLOTS];
    tr_range *owned; /* [nowned] ascending, not empty, multiples of 16 */
    size_t *slot_at; /* [nowned] where each lies in a slot */
    size_t nowned;
    size_t held; /* elements of a slot: of all owned ranges */
    /* Of the frozen rows' weights, what this rank writes when values come: all, but where ranks
     * share them. */
    tr_range frozen;
    tr_params_memory memory;
} tr_params;

/* Elements that have gradients: those of all buckets. */
static inline size_t tr_params_learned(const tr_params_options *o)
{
    return o->nbuckets ? o->buckets[o->nbuckets - 1].end : 0;
}
/* Arrays that are allocated start zeroed. `owned` is copied. `memory` (may be NULL) is the
 * store's, which releases it when it is closed; not when this fails. */
tr_status tr_params_open(const tr_params_options *o, const tr_range *owned, size_t nowned,
                         const tr_params_memory *memory, tr_params **out);
void tr_params_close(tr_params *p);
/* Of a row of the table. */
float *tr_params_weight(const tr_params *p, size_t row);
float *tr_params_grad(const tr_params *p, size_t row); /* not of a frozen one */
float *tr_params_state(const tr_params *p, size_t row);
/* The i-th owned range, cut down to `within`; *at: where it lies in a slot. False: nothing is
 * left. */
bool tr_params_part(const tr_params *p, size_t i, tr_range within, tr_range *part, size_t *at);
/* The slot of this name; -1: none. */
int tr_params_slot(const tr_params *p, const char *name);
/* Elements [at, at + n) of what is held of slot k, wherever it lies, to and from the host; in
 * stream order, done when they return. */
tr_status tr_params_slot_get(const tr_params *p, int k, size_t at, size_t n, float *to);
tr_status tr_params_slot_set(tr_params *p, int k, size_t at, size_t n, const float *from);
tr_status tr_params_slot_zero(tr_params *p, int k);

#endif
