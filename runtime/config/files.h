/* Files that a config names. Local. */
#ifndef TR_CONFIG_FILES_H
#define TR_CONFIG_FILES_H

#include "runtime/config/config.h"

/* Whether it can be read from where the config's paths begin. */
bool tr_config_file_readable(const tr_config *c, const char *file);
/* Whether it is what is looked for; NULL: a pattern that no file is like. */
typedef bool tr_file_test(void *ctx, const char *path);
/* The key of the first file, or folder, of a source of data that is so; NULL: none is. */
const char *tr_source_find(const tr_config *c, const tr_source_config *s, tr_file_test *is,
                           void *ctx);
/* The key of the first file of a source of data that cannot be read now, or that is like none where
 * the name is a pattern; NULL: there is none. */
const char *tr_unreadable_key(const tr_config *c, const tr_source_config *s);

#endif
