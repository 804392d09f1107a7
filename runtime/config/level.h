/* run.level: presets of other keys, one table for all: what sets them, their reference, what
 * `check` prints. */
#ifndef TR_CONFIG_LEVEL_H
#define TR_CONFIG_LEVEL_H

#include "runtime/config/config.h"

/* tr_config.run.level; custom sets nothing. */
extern const char *const tr_level_names[];
/* *Local.* Sets in the document what its run.level sets, as far as the keys are not there; *set:
 * which rows. Errors in them have the place of run.level. A level that is not known is left to the
 * field's own reader. */
tr_status tr_level_apply(tr_document *doc, uint64_t *set);
/* "# run.level cpu_small sets: device: cpu, ..." and which keys were given; nothing for custom. */
void tr_level_write(const tr_config *c, FILE *to);
/* A table in Markdown: keys by level, and why. */
void tr_level_help(FILE *to);

#endif
