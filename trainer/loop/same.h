/* What must be the same on all ranks, though each of them found it by itself. */
#ifndef TR_SAME_H
#define TR_SAME_H

#include "collectives/collectives.h"

/* *Collective.* TR_OK where all ranks bring the same text; else `blame` on those whose text is not rank 0's, with
 * the first line that differs, as it is on both, and who they are; agreed. `what`: what the text is about. */
tr_status tr_same_text(tr_comm *comm, tr_status blame, const char *what, const char *text);

#endif
