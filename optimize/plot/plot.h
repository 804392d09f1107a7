/* Plots as SVG: for browsers, on paper and in dark mode, inside a page or alone. All Local. A value
 * that is not finite, or not above 0 on a logarithmic axis, is left out. */
#ifndef TR_PLOT_H
#define TR_PLOT_H

#include "runtime/base/base.h"

/* One line, or points. */
typedef struct {
    const char *name; /* in the legend, where there are several */
    size_t n;
    const double *x, *y; /* [n] */
    bool points;         /* not joined */
    bool filled;         /* points */
    bool steps;          /* a line that goes along the axes: x first */
    /* [n]; NULL: points are of one size. Else the largest has the largest area, and others as much
     * less */
    const double *sizes;
    const char *const *notes; /* [n], of points, shown under the pointer; NULL: none */
    int color;                /* 0: by the place in the list; else number color - 1 */
} tr_plot_series;

typedef struct {
    const char *title, *x_label, *y_label;
    bool log_x, log_y;
    bool from_zero; /* the y axis begins at 0 */
    size_t nseries; /* up to 8 have colors of their own */
    const tr_plot_series *series;
} tr_plot_lines;
tr_status tr_svg_lines(const tr_plot_lines *p, FILE *to);

/* Horizontal bars, one a name, each with its value as text. */
typedef struct {
    const char *title, *unit;
    size_t n;
    const char *const *names; /* [n] */
    const double *values;     /* [n] from 0 */
} tr_plot_bars;
tr_status tr_svg_bars(const tr_plot_bars *p, FILE *to);

/* Counts as shades: row i of `n` has the true class i. */
tr_status tr_svg_confusion(const char *title, size_t n, const int64_t *counts, FILE *to);

/* A text as it may stand in XML: control characters and what has a meaning there replaced. */
void tr_xml_text(const char *text, FILE *to);

#endif
