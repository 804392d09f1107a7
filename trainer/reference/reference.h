/* What the program takes, as text for other programs: a manual page, completion for shells.
 * All of it comes from the tables that parse configs and command lines. All functions *Local.* */
#ifndef TR_REFERENCE_H
#define TR_REFERENCE_H

#include <stdio.h>

#include "runtime/base/base.h"

/* What `write` prints as a string, the caller's (tr_free); NULL: out of memory. */
char *tr_text_of(void (*write)(FILE *to));
/* trainer(1), for man(1). */
tr_status tr_manual_write(FILE *to);
/* `shell`: bash, zsh or fish; TR_USAGE for others. */
tr_status tr_completion_write(const char *shell, FILE *to);

#endif
