/* Names from a file, as they may be printed on a terminal. */
#include "runtime/store/internal.h"

#include <string.h>

#include "runtime/base/visible.h"

void tr_plain_text(const char *s, int max, FILE *to)
{
    const char *end = s + strlen(s);
    for (char shown[TR_VISIBLE]; s < end && max > 0; max--) {
        s += tr_visible_next(s, (size_t)(end - s), shown);
        fputs(shown, to);
    }
}
