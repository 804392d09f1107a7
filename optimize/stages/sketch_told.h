/* What the stage `sketch` says of memory and of layers. Private to the stages. Local. */
#ifndef TR_SKETCH_TOLD_H
#define TR_SKETCH_TOLD_H

#include "optimize/sketch/sketch.h"
#include "optimize/stage.h"

/* TR_MEMORY where this machine, or run.memory_limit, has no room for what the stage is about to do.
 * Every rank does all of the work: those of a machine need its memory together. */
tr_status tr_sketch_room(const tr_stage_job *job, const tr_sketch_options *o);
/* Of chosen layers whose sketch is larger or takes no less arithmetic. To be told before they are
 * fitted, which may take long. */
void tr_sketch_warn_larger(const tr_model *m, const tr_sketch_options *o);
/* Without `match`: why no layer is chosen. */
void tr_sketch_warn_none(const tr_model *m);

#endif
