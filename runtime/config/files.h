/* Files that a config names. Local. */
#ifndef TR_CONFIG_FILES_H
#define TR_CONFIG_FILES_H

#include "runtime/config/config.h"

/* Whether it can be read from where the config's paths begin. */
bool tr_config_file_readable(const tr_config *c, const char *file);

#endif
