/* Arguments of the commands that take a config, and reading that config. */
#ifndef TR_ARGUMENTS_H
#define TR_ARGUMENTS_H

#include "collectives/collectives.h"
#include "runtime/graph/graph.h"

typedef struct tr_arguments tr_arguments;
struct tr_arguments {
    const char *config;
    const char **overrides; /* allocated; the texts are argv's */
    size_t noverrides;
    bool sweep;    /* `config` is a sweep's file */
    bool run_file; /* `config` is a run file, whose own config counts */
    /* *Collective.* What is done with a run file, as tr_stage.run; NULL: a config's pipeline. */
    tr_status (*on_run_file)(const tr_arguments *a, tr_comm *comm, const tr_config *c,
                             bool *agreed);
    const char *stage;        /* by hand, on a run file */
    const char *from, *until; /* stages; NULL: not given */
    char **owned;             /* of the overrides, those that are not argv's; NULL at the end */
    char *found;              /* `config` where that was a run's folder; else NULL */
    const char *output;       /* file; NULL: not given */
    const char *data;         /* predict: which block; NULL: not given */
    int64_t top;              /* predict: classes a sample; 0: not given */
    const void *options;      /* what the command alone takes, for its on_run_file; NULL: nothing */
    bool resume, force, quiet, help_config, check_data, schema, json, raw, summary, largest;
    bool accept_unverified;               /* tr_store_accept_unverified */
    int64_t ranks, nodes, ranks_per_node; /* 0: not given */
    size_t memory;                        /* bytes; 0: not given */
};

/* Flags and overrides may stand in any order. `flags`: which of them the command takes, e.g.
 * "--resume --force". TR_USAGE names the argument and what was expected. */
tr_status tr_arguments_parse(int argc, char **argv, const char *flags, tr_arguments *out);
/* Of `trainer COMMAND FILE ...` that takes a config or a run file, which is looked at:
 * out->run_file, as below. A run's folder stands for its run file (tr_run_file_of), here and
 * below. */
tr_status tr_arguments_parse_either(int argc, char **argv, const char *flags, tr_arguments *out);
/* Of `trainer STAGE FILE ...`, argv[0] being the stage: keys that the stage has are its options,
 * all others the config's. out->on_run_file is the caller's to set, here and below. */
tr_status tr_arguments_parse_stage(int argc, char **argv, tr_arguments *out);
/* Of `trainer COMMAND FILE ...`, which works on a run file: flags as above, all keys are the
 * config's. */
tr_status tr_arguments_parse_run_file(int argc, char **argv, const char *flags, tr_arguments *out);
void tr_arguments_free(tr_arguments *a);

/* *Collective.* Overrides and flags are each rank's own: they must be the same. */
tr_status tr_arguments_agree(const tr_arguments *a, tr_comm *comm);
/* *Local.* The text of a config's file; `run_file`: the config in it. TR_USAGE where a run file is
 * given in the place of a text, with what takes one. */
tr_status tr_read_config(const char *file, bool run_file, char **text, size_t *nbytes);
/* *Collective.* That, read by rank 0; *text, the caller's, is the same on all ranks. */
tr_status tr_read_shared(const char *file, bool run_file, tr_comm *comm, char **text,
                         size_t *nbytes);
/* *Collective.* A config's text likewise. A rank to which a file of its own is given, or of its
 * host, must have the same there, or none. */
tr_status tr_read_config_shared(const char *file, tr_comm *comm, char **text, size_t *nbytes);
/* *Collective* (Local with comm NULL), with arguments that are agreed. Rank 0 reads the file, of a
 * command on a run file the config in it; all ranks parse the same bytes. */
tr_status tr_arguments_config(const tr_arguments *a, tr_comm *comm, tr_config **out);
/* Local. What a config that is run, by itself or as a trial, must not ask for, though models of it
 * that are there may. */
tr_status tr_check_run(const tr_config *c);

/* Local. What overrides say of run.start_timeout, before there is a config; else its default. */
double tr_arguments_start_timeout(const tr_arguments *a);
/* Local. The rank that the launcher gave this process, known before MPI is; 0 without a
 * launcher. */
int tr_launched_rank(void);

/* Local. The end of a command that runs without MPI: sees that what it printed was written (else
 * TR_IO), prints the thread's error once a job (as rank 0 of the launcher's ranks), and returns the
 * exit status of `st`. */
int tr_command_end(tr_status st);

#endif
