/* Sizes of memory that a config names. Local. */
#ifndef TR_CONFIG_MEMORY_H
#define TR_CONFIG_MEMORY_H

#include "runtime/config/config.h"

/* run.memory_limit in bytes; 0: none; TR_MEMORY_AUTO: what there is. */
#define TR_MEMORY_AUTO SIZE_MAX
size_t tr_memory_limit_of(const tr_config *c);
/* "80GB", "512 MB", "16GiB"; false: it is none. */
bool tr_parse_size(const char *text, size_t *nbytes);

#endif
