/* What of a config decides what comes out. */
#ifndef TR_ESSENCE_H
#define TR_ESSENCE_H

#include "runtime/config/config.h"

/* *Local.* The config as text without what changes no result: name, output, device, run, pipeline,
 * train.recompute, where data lies, and what a limit on memory chose; `model`: that part, too,
 * which a stage finds in the file that it is given. Allocated. */
tr_status tr_config_essence(const tr_config *c, bool model, char **text);

#endif
