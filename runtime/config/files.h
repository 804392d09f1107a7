/* Files that a config names. Local. */
#ifndef TR_CONFIG_FILES_H
#define TR_CONFIG_FILES_H

#include "runtime/config/config.h"

/* Whether it can be read from where the config's paths begin. */
bool tr_config_file_readable(const tr_config *c, const char *file);
/* The key of the first file of a source of data that cannot be read now, or that is like none where
 * the name is a pattern; NULL: there is none. */
const char *tr_unreadable_key(const tr_config *c, const tr_source_config *s);

#endif
