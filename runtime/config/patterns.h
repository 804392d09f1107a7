/* Patterns of names, in which a * stands for any text. All Local. */
#ifndef TR_CONFIG_PATTERNS_H
#define TR_CONFIG_PATTERNS_H

#include <stdio.h>

#include "runtime/config/tree.h"

#define TR_PATTERN_STARS 4 /* in a pattern; each * stands for any text */
typedef struct {
    const char *at;
    size_t n;
} tr_capture;
size_t tr_pattern_stars(const char *pattern);
/* Takes one way in which a pattern is all of a name; true: no more of them. */
typedef bool tr_pattern_take(void *arg, const tr_capture *caps);
/* Calls take for each way, the first * as short as can be first; whether it took one with true. */
bool tr_pattern_each(const char *pattern, const char *name, tr_pattern_take *take, void *arg);
/* Whether the pattern is all of the name; caps: [TR_PATTERN_STARS] what each * of it stands for, as
 * short as can be from the left. */
bool tr_pattern_match(const char *pattern, const char *name, tr_capture *caps);
/* Whether one of a pattern, or a list of them, is. NULL: none is. */
bool tr_patterns_match(const tr_node *patterns, const char *name);
/* They are texts of at most TR_PATTERN_STARS *; TR_CONFIG at its place: "KEY: ...". */
tr_status tr_patterns_check(const tr_node *patterns, const char *key);
/* Each matches one of the names; TR_CONFIG at its place with the nearest, or the first few: "KEY:
 * there is no WHAT ...". */
tr_status tr_patterns_find(const tr_node *patterns, const char *key, const char *what,
                           const char *const *names, size_t count);
/* Those of them that match one of the names, as a list in one line of YAML; the others, in words,
 * to `gone` (", " between). */
void tr_patterns_left(const tr_node *patterns, const char *const *names, size_t count, FILE *left,
                      FILE *gone);

#endif
