/* Values of JSON, as every file and report writes them. Local. */
#ifndef TR_BASE_JSON_H
#define TR_BASE_JSON_H

#include "runtime/base/base.h"

void tr_json_text(const char *s, FILE *to); /* quoted; bad UTF-8 becomes U+FFFD */
void tr_json_real(double v, FILE *to);      /* the shortest; NaN and infinities are null */

#endif
