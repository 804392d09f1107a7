/* What the plots share. */
#ifndef TR_PLOT_INTERNAL_H
#define TR_PLOT_INTERNAL_H

#include "optimize/plot/plot.h"

#define TR_PLOT_WIDTH 640

/* The root element with its style and title; closed by tr_svg_end. */
void tr_svg_begin(const char *title, int width, int height, FILE *to);
tr_status tr_svg_end(FILE *to);

/* An axis from values to pixels. */
typedef struct {
    double low, high; /* of the values; of their logarithms where `log` */
    double from, to;  /* pixels */
    bool log;
    int nticks;
    double ticks[16]; /* values */
} tr_axis;
/* Round ticks around [low, high], which they may widen. */
tr_axis tr_axis_of(double low, double high, bool log, double from, double to);
double tr_axis_at(const tr_axis *a, double value);
/* "1.5 k", "0.002", "3e-07" */
const char *tr_axis_label(double value, char buf[32]);

#endif
