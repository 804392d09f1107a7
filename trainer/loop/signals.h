/* Requests to stop: SIGTERM, SIGHUP, SIGINT and SIGUSR1 set a flag that the step loop shares with
 * all ranks; a second SIGINT ends the process at once. */
#ifndef TR_SIGNALS_H
#define TR_SIGNALS_H

#include "collectives/collectives.h"

/* Before MPI starts: its own segments may meet a full file system there already. MPI leaves a
 * handler that it finds. */
void tr_signals_tell_bus_errors(void);
/* After MPI started, which may set handlers of its own. */
void tr_signals_install(void);
/* *Local.* Whether a signal asked this rank to stop (tr_comm_options.stop_asked). */
bool tr_signals_pending(void);
/* *Local.* Whether a signal asked this rank to stop, or, as far as it has heard, any other rank of
 * the job, in whatever group. */
bool tr_signals_ask_stop(tr_comm *comm);

#endif
