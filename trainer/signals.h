/* Requests to stop: SIGTERM, SIGHUP, SIGINT and SIGUSR1 set a flag that the step loop shares with all
 * ranks; a second SIGINT ends the process at once. */
#ifndef TR_SIGNALS_H
#define TR_SIGNALS_H

#include "runtime/base/base.h"

void tr_signals_install(void);
/* The signal that asked for a stop, 0 if none did. */
int tr_signals_pending(void);

#endif
