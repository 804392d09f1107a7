/* What the planner's files share: lifetimes, packed copies, plans and the session, and the seam
 * that opens a session from graphs made elsewhere (tests build theirs by hand). */
#ifndef TR_PLAN_INTERNAL_H
#define TR_PLAN_INTERNAL_H

#include "runtime/plan/plan.h"

#define TR_ARENA_ALIGN 256 /* what CUDA's libraries like best; a CPU needs 64 */
#define TR_STAGE_ALIGN 256

/* ---- liveness.c ------------------------------------------------------------------------------ */

/* A tensor's, or one op's scratch's, time in the arena: ops first..last inclusive, -1 being "before
 * the run". Only roots (of their alias group) that lie in the arena have one; `nbytes` is that of
 * the group's largest member, rounded up to the alignment. */
typedef struct {
    bool arena; /* this entry takes part in packing */
    int first, last;
    size_t nbytes, offset;
} tr_live;

/* live: [ntensors]. TR_INTERNAL when an op reads what none wrote. */
tr_status tr_liveness(const tr_graph *g, tr_live *live);

/* ---- arena.c --------------------------------------------------------------------------------- */

/* Gives every entry with `arena` set an offset, *nbytes the region they need, and *floor the most
 * bytes that are live at one op. */
tr_status tr_arena_pack(tr_live *live, size_t n, size_t *nbytes, size_t *floor);
/* How many bytes of the region ever belong to one of the first n entries. */
tr_status tr_arena_covered(const tr_live *live, size_t n, size_t *nbytes);

/* ---- The session ----------------------------------------------------------------------------- */

/* A parameter in a kernel's own layout. */
typedef struct {
    tr_packing what; /* of the kernel that asked first; kernels live as long as the session */
    void *data;
    uint64_t version; /* of the parameters it was made from; 0: none yet */
} tr_packed;

typedef struct {
    tr_kernel *kernel;
    int op;
    int npacked, packed[TR_MAX_PACKED]; /* indices into the session's copies */
    int bucket;                         /* last bucket that is final after this step, or -1 */
} tr_step;

/* A kernel's operand that reads an input or the target. */
typedef struct {
    tr_kernel *kernel;
    int operand;
} tr_reader;

/* An input, the target or what a teacher gives: where it lies, and who reads it, also by its
 * views. */
typedef struct {
    int root;      /* tensor, or -1 when the graph has none */
    bool movable;  /* every reader can be pointed elsewhere, and none writes it: not in the arena */
    void *current; /* where the readers read; NULL until that is set */
    size_t nbytes, nreaders;
    tr_reader *readers;
} tr_slot;

/* Places of slots: inputs, the target, weights of samples, what a teacher gives, which lies where
 * the kernels are already. */
enum {
    TR_SLOT_TARGET = TR_MAX_IN,
    TR_SLOT_WEIGHTS,
    TR_SLOT_GIVEN,
    TR_SLOTS = TR_SLOT_GIVEN + TR_MAX_IN
};

struct tr_plan {
    tr_session *session;
    tr_graph *graph;
    tr_live *live;                /* [ntensors + nops]: tensors, then the scratch of each op */
    tr_kernel **kernels;          /* [nops]; NULL for views */
    int (*packed)[TR_MAX_PACKED]; /* [nops]: as in tr_step */
    size_t nsteps;
    tr_step *steps;
    size_t nzero;
    tr_range *zero; /* gradients that no op of a training plan writes */
    bool writes_grads;
    size_t arena_bytes, floor; /* as packed; what is live at once */
    size_t tensors_bytes;      /* of the arena, those that ever belong to a tensor */
    size_t io_bytes;           /* of these, those of inputs and target */
    tr_slot slots[TR_SLOTS];
    bool timed;           /* ops are timed */
    void *marks;          /* for that, of the backend; NULL until asked for */
    double *step_seconds; /* [nsteps], scratch */
};

struct tr_session {
    tr_session_options o; /* keys are not kept */
    bool owns_graphs;
    size_t nplans;
    tr_plan **plans; /* where they are they stay */
    size_t npacked, cap_packed;
    tr_packed *packed;
    uint64_t version; /* of the parameters: counts updates */
    unsigned char *arena;
    void *team;     /* what its kernels share, of the backend */
    void *stage;    /* its batches' way to the device; NULL where there is none */
    void *sections; /* its recordings, of the backend; NULL where nothing is recorded */
    tr_memory_plan memory;
    bool *released; /* [rows] weights whose memory went back; NULL: none */
};

/* Opens a session on graphs that are already there. `owns`: they are closed with the session, and
 * also when opening fails. o->keys is ignored. */
tr_status tr_session_open_graphs(const tr_session_options *o, tr_graph *const *graphs, size_t n,
                                 bool owns, tr_session **out);

/* Bytes of one batch on its way to a device: each part aligned. */
size_t tr_session_stage_bytes(const tr_session *s);
/* Where what plans hold begins: behind all else in the arena. */
unsigned char *tr_session_held_at(const tr_session *s);
/* Fills s->memory, of all plans. */
void tr_session_sum_memory(tr_session *s);
/* Counts the arena's bytes, allocated as activations, by kind; sign -1 undoes it. */
void tr_session_count_arena(const tr_session *s, int64_t sign);
/* The packed copies from the first-th on get their memory. */
tr_status tr_session_allocate_packed(tr_session *s, size_t first);
tr_status tr_session_graph(const tr_session_options *o, tr_plan_key key, tr_graph **out);

/* ---- executor.c ------------------------------------------------------------------------------ */

/* The packed copies that the step reads are made anew where they are out of date. */
tr_status tr_step_pack(tr_session *s, const tr_step *step);

/* ---- prepare.c ------------------------------------------------------------------------------- */

/* Liveness, kernels, packed copies and offsets of one plan: everything that needs no memory yet. */
tr_status tr_plan_prepare(tr_session *s, tr_plan *p, tr_graph *g);
/* Addresses: binds every kernel and lays out the flat list of steps. Also once more, when the arena
 * is another one. */
tr_status tr_plan_bind(tr_session *s, tr_plan *p);
void tr_plan_close(tr_plan *p, bool close_graph);
/* A tensor's address: arena, flat parameter, gradient or state space, or where an input was set to.
 * NULL for -1 and in a dry session. */
void *tr_plan_address(const tr_plan *p, int tensor);

#endif
