/* What the user can do about an error, in the config's own words. */
#ifndef TR_TRAINER_ADVICE_H
#define TR_TRAINER_ADVICE_H

#include "runtime/base/base.h"

/* *Local.* NULL: nothing is known. Static. */
const char *tr_advice(tr_hint hint);
/* *Local.* Logs the thread's error record, with the advice behind it. */
void tr_log_failure(tr_log_level level);

#endif
