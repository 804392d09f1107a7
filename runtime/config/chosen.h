/* What memory chose in a config's keys (run.chosen). Local. */
#ifndef TR_CONFIG_CHOSEN_H
#define TR_CONFIG_CHOSEN_H

#include "runtime/config/config.h"

/* Overrides that take back what memory chose of this config's keys (run.chosen), as another
 * training has other room: "train.micro_batch=auto". Nobody's to release. Returns how many. */
enum { TR_CHOSEN_MOST = 8 };
size_t tr_config_unchoose(const tr_config *c, const char *overrides[TR_CHOSEN_MOST]);
/* What stood where memory chose this key's value ("auto"); NULL: it did not. The config's. */
const char *tr_config_asked(const tr_config *c, const char *path);

#endif
