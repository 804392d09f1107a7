/* What the plots share. Private. */
#ifndef TR_PROFILE_SVG_H
#define TR_PROFILE_SVG_H

#include <stdio.h>

/* Opens a picture of this size, with its title, dark where the reader's page is. */
void tr_svg_open(int width, int height, const char *title, FILE *to);
void tr_svg_close(FILE *to);
/* At most `chars` characters of it, an ellipsis where it is cut. `anchor`: "start", "middle",
 * "end". */
void tr_svg_text(double x, double y, const char *anchor, size_t chars, const char *text, FILE *to);

#endif
