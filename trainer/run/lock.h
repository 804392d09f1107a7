/* A file that says, as long as its process lives, that a job is at work. Local. */
#ifndef TR_LOCK_H
#define TR_LOCK_H

#include "runtime/base/base.h"

/* Opens and locks the file, which is made where there is none: *made. TR_USAGE: another job holds
 * it, and so `what`. On file systems without locks none is ever held. *again, and *fd is as it was:
 * a folder of the path is not there, or whoever held the file removed it meanwhile. Who removes it
 * does so while holding it: a lock on a file without a name holds nothing. */
tr_status tr_lock_take(const char *path, const char *what, int *fd, bool *made, bool *again);

#endif
