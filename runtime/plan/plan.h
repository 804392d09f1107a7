/* The planner and the executor: graphs get addresses in one arena, prepared kernels and a flat list
 * of steps. A session holds everything one rank computes with: the arena, the packed weights, and
 * one plan for each (mode, batch size) that the run will meet. */
#ifndef TR_PLAN_H
#define TR_PLAN_H

#include "runtime/params/params.h"

typedef struct tr_plan tr_plan;
typedef struct tr_session tr_session;

typedef struct {
    tr_mode mode;
    int64_t batch;         /* 0: the empty share */
    const tr_model *model; /* NULL: the session's; else one of its `shorter` */
} tr_plan_key;

typedef struct {
    const tr_model *model;
    const tr_backend *backend;
    void *backend_ctx;
    const tr_params *params; /* borrowed; NULL in a dry session */
    int threads; /* how many of the host's threads its kernels may use; each session has its own */
    tr_precision precision;
    bool sync_batchnorm;
    bool trained; /* between its runs weights are trained (tr_graph_options) */
    int ranks;
    int recompute;
    int64_t recompute_every;
    const int *recompute_segments; /* as in tr_graph_options; borrowed while the session is open */
    unsigned skip_passes;          /* of the graphs: a set of TR_PASS_IS */
    const tr_plan_key *keys;       /* which plans the run needs */
    size_t nkeys;
    /* Of infer plans: layers whose outputs are wanted; none: the last one's. Borrowed. */
    const char *const *outputs;
    size_t noutputs;
    /* Besides: infer plans that decode `sequences` sequences at a time; they hold the same tensors,
     * so all have one `cache`, and come with the session: tr_session_add forgets what is held. */
    const tr_decode *decodes;
    size_t ndecodes;
    int64_t sequences;
    const tr_distill *distill; /* of train plans; NULL: none. Borrowed */
    bool mixed;                /* of train plans (tr_graph_options) */
    bool dry; /* only plan: nothing is allocated that grows with the model, nothing can be run */
} tr_session_options;

/* *Local*, but every rank must give the same precision and options (kernels that gather are
 * collective when run). All memory is allocated here: running a plan allocates nothing. */
tr_status tr_session_open(const tr_session_options *o, tr_session **out);
void tr_session_close(tr_session *s);
/* What the passes find in the graph that a session of these options would have for the key
 * (tr_graph.found); o->keys is ignored. */
tr_status tr_session_passes(const tr_session_options *o, tr_plan_key key,
                            size_t found[TR_GRAPH_PASSES]);
/* One more plan, as if the session had been opened with it; TR_OK where it has it. Whatever else
 * fails, the session is as before. Plans got before stay where they are; what they have read and
 * computed is gone. */
tr_status tr_session_add(tr_session *s, tr_plan_key key);
/* On the host, for a session whose weights no longer change, and which alone reads them: makes all
 * packed copies, then gives the pages of weights that no kernel reads itself back to the system;
 * they read as zeros. A plan added later makes its copies from those of others (tr_kernel.unpack).
 * Nothing on a device. */
tr_status tr_session_release(tr_session *s);
/* Bytes of weights and states that lie in memory. */
size_t tr_session_weights(const tr_session *s);
/* ---- Batches and recordings: each session has its own, so that any number of them can be open on
 * a context, opened and closed in any order. On the host they do nothing. ---- */
/* The next batch is on its way: once a micro-batch, before its first tr_plan_set_input, also where
 * the share is empty. */
tr_status tr_session_stage(tr_session *s);
/* *done: the caller's copies of all batches may be overwritten, and all that came before the last
 * two is done. Does not wait. */
tr_status tr_session_staged(const tr_session *s, bool *done);
/* What runs between begin and end is the same every time for one key and slot: recorded, then
 * replayed (tr_device_sections). *replay: leave out what stands between. */
tr_status tr_session_section_begin(tr_session *s, uint64_t key, bool *replay);
bool tr_session_section_recording(const tr_session *s);
tr_status tr_session_section_recorded(tr_session *s, tr_status st, bool *was);
tr_status tr_session_section_end(tr_session *s, tr_status st);
/* NULL when it was not asked for at open. */
tr_plan *tr_session_plan(tr_session *s, tr_mode mode, int64_t batch);
tr_plan *tr_session_plan_of(tr_session *s, tr_plan_key key);
/* Of options.decodes; NULL: there is none like it. */
tr_plan *tr_session_decoder(tr_session *s, const tr_decode *d);
/* What is held becomes zeros: sequences begin anew. In stream order. */
tr_status tr_session_forget(tr_session *s);
size_t tr_session_held(const tr_session *s); /* bytes, of the arena */
/* A run with params_changed was replayed by the backend, unseen by the plan: what runs next makes
 * the packed copies that it reads anew. */
void tr_session_replayed(tr_session *s);

/* What the next run reads; to be called before every run, after tr_session_stage. `data`:
 * as the graph's tensor says (activation type, ids int32; the target int32 or float32; its shape in
 * its stored layout), 64-byte aligned, of the backend's host_alloc, in place until the run is over
 * (on a device, until tr_session_staged says so). The host reads it where it lies, a device in the
 * slot it is copied to; only where some kernel cannot be pointed elsewhere, or writes over it, is
 * it copied once more (the arena then has room for it). An error is the kernel's, and the plan does
 * not run until another call succeeds. Nothing is looked at for an empty share. */
tr_status tr_plan_set_input(tr_plan *p, size_t input, const void *data);
tr_status tr_plan_set_target(tr_plan *p, const void *data);
/* Of the samples; not looked at where the graph has none. */
tr_status tr_plan_set_weights(tr_plan *p, const float *weights);
/* What a teacher gives (tr_graph.given), where another plan of the same backend left it: nothing is
 * staged. To be called before every run, once that plan has run; within a recorded section with the
 * same place every time. */
tr_status tr_plan_set_given(tr_plan *p, size_t k, void *data);
/* Direct access for tests: a tensor's bytes, only meaningful while it is live. */
void *tr_plan_tensor(const tr_plan *p, int tensor);
const tr_graph *tr_plan_graph(const tr_plan *p);
int64_t tr_plan_batch(const tr_plan *p);

/* Runs every step in order. *Collective* where the graph has collective points (synchronized
 * batchnorm); otherwise Local. A batch of 0 that does not accumulate zeroes the gradients. */
tr_status tr_plan_run(tr_plan *p, const tr_run *run);
/* Whether the next runs measure each op, for the profile. Not within recorded sections. */
tr_status tr_plan_time_ops(tr_plan *p, bool on);
/* Adds the seconds of the last run's ops to seconds[ops of the graph]; waits for a device to be
 * done. What an op takes includes the collectives that it starts. */
tr_status tr_plan_op_seconds(tr_plan *p, double *seconds);

/* What a session takes, by kind: planned, from the same arithmetic whether dry or not. */
typedef struct {
    size_t bytes[TR_MEM_KINDS];
    size_t arena; /* all of activations + workspace + I/O after packing in time, and what is held */
    size_t arena_floor; /* the most that is live at one moment: no packing can be below it */
} tr_memory_plan;
void tr_session_memory(const tr_session *s, tr_memory_plan *out);

/* One row a layer and op, for `trainer plan`. */
typedef struct {
    const char *layer, *op, *impl;
    const char *choice;  /* which of a library's algorithms; "": it has none, or does not say */
    double flops, bytes; /* arithmetic, and operand bytes read and written */
    tr_phase phase;
} tr_plan_row;
size_t tr_plan_rows(const tr_plan *p);
tr_plan_row tr_plan_row_at(const tr_plan *p, size_t i);
/* Where op i's kernel reads its operand j, and how many bytes; of a packed parameter the copy.
 * NULL: an operand that is left out, a view's, or the plan is dry. */
const void *tr_plan_read_at(const tr_plan *p, size_t i, int j, size_t *nbytes);

/* Bytes of the arena, and for which ops they are kept, first and last included; -1: from before the
 * run, ops of the graph: after it. */
typedef struct {
    int tensor; /* the root of its group; -1: scratch of op `first` */
    int first, last;
    size_t nbytes; /* 0: it has none in the arena */
} tr_plan_life;
size_t tr_plan_lives(const tr_plan *p);
tr_plan_life tr_plan_life_at(const tr_plan *p, size_t i);

#endif
