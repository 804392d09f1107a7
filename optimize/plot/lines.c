/* Lines and points over two axes. */
#include "optimize/plot/internal.h"

#include <math.h>
#include <string.h>

#define INNER  236 /* the plot itself, without the legend above it */
#define LEFT   80
#define RIGHT  20
#define TOP    36
#define BOTTOM 48
#define LINE   16

/* Where the plot begins: a legend stands above it, where it hides nothing. */
static int top_of(const tr_plot_lines *p)
{
    return TOP + (p->nseries > 1 ? LINE * (int)p->nseries : 0);
}

static int height_of(const tr_plot_lines *p)
{
    return top_of(p) + INNER + BOTTOM;
}

static bool shown(const tr_plot_lines *p, const tr_plot_series *s, size_t i)
{
    return isfinite(s->x[i]) && isfinite(s->y[i]) && (!p->log_x || s->x[i] > 0) &&
           (!p->log_y || s->y[i] > 0);
}

typedef struct {
    double low[2], high[2]; /* x, y */
} box;

static box bounds(const tr_plot_lines *p)
{
    box b = {{INFINITY, INFINITY}, {-INFINITY, -INFINITY}};
    for (size_t k = 0; k < p->nseries; k++)
        for (size_t i = 0; i < p->series[k].n; i++) {
            const double v[2] = {p->series[k].x[i], p->series[k].y[i]};
            for (int d = 0; d < 2 && shown(p, &p->series[k], i); d++) {
                b.low[d] = fmin(b.low[d], v[d]);
                b.high[d] = fmax(b.high[d], v[d]);
            }
        }
    if (p->from_zero && !p->log_y && b.low[1] > 0) b.low[1] = 0;
    return b;
}

static void axes(const tr_plot_lines *p, const tr_axis *x, const tr_axis *y, FILE *to)
{
    char label[32];
    const int top = top_of(p), height = height_of(p);
    for (int i = 0; i < y->nticks; i++) {
        const double at = tr_axis_at(y, y->ticks[i]);
        fprintf(to,
                "<path class=\"g\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%s</text>\n",
                LEFT, at, TR_PLOT_WIDTH - RIGHT, LEFT - 6, at + 4,
                tr_axis_label(y->ticks[i], label));
    }
    for (int i = 0; i < x->nticks; i++) {
        const double at = tr_axis_at(x, x->ticks[i]);
        fprintf(to,
                "<path class=\"g\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%s</text>\n",
                at, top, height - BOTTOM, at, height - BOTTOM + 16,
                tr_axis_label(x->ticks[i], label));
    }
    fprintf(to, "<path class=\"a\" d=\"M%d %dV%dH%d\"/>\n", LEFT, top, height - BOTTOM,
            TR_PLOT_WIDTH - RIGHT);
    fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">",
            (LEFT + TR_PLOT_WIDTH - RIGHT) / 2, height - 10);
    tr_xml_text(p->x_label, to);
    fprintf(to, "</text>\n<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\">",
            (top + height - BOTTOM) / 2);
    tr_xml_text(p->y_label, to);
    fputs("</text>\n", to);
}

static size_t color(const tr_plot_lines *p, size_t which)
{
    return (p->series[which].color > 0 ? (size_t)p->series[which].color - 1 : which) % 8;
}

/* Where more points fall on a pixel than two, its lowest and highest are drawn. */
static void line(const tr_plot_lines *p, size_t which, const tr_axis *x, const tr_axis *y, FILE *to)
{
    const tr_plot_series *s = &p->series[which];
    const bool thin = s->n > 4000 && !s->steps;
    double column = -1, low = 0, high = 0;
    bool begun = false;
    fprintf(to, "<path class=\"l s%zu\" d=\"", color(p, which));
    for (size_t i = 0; i < s->n; i++) {
        if (!shown(p, s, i)) {
            begun = false;
            continue;
        }
        const double px = tr_axis_at(x, s->x[i]), py = tr_axis_at(y, s->y[i]);
        if (thin && begun && floor(px) == column && py >= low && py <= high) continue;
        if (floor(px) != column) low = high = py;
        low = fmin(low, py);
        high = fmax(high, py);
        column = floor(px);
        if (begun && s->steps) fprintf(to, "H%.1f", px);
        fprintf(to, "%c%.1f %.1f", begun ? 'L' : 'M', px, py);
        begun = true;
    }
    fputs("\"/>\n", to);
}

enum { RADIUS = 3, RADIUS_MOST = 9 };

static double radius(const tr_plot_lines *p, const tr_plot_series *s, size_t i)
{
    double most = 0;
    if (!s->sizes) return RADIUS;
    for (size_t k = 0; k < p->nseries; k++)
        for (size_t j = 0; p->series[k].sizes && j < p->series[k].n; j++)
            if (shown(p, &p->series[k], j)) most = fmax(most, p->series[k].sizes[j]);
    return fmax(RADIUS_MOST * sqrt(s->sizes[i] / most), 1);
}

static void points(const tr_plot_lines *p, size_t which, const tr_axis *x, const tr_axis *y,
                   FILE *to)
{
    const tr_plot_series *s = &p->series[which];
    for (size_t i = 0; i < s->n; i++) {
        if (!shown(p, s, i)) continue;
        fprintf(to, "<circle class=\"l s%zu%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.4g\"",
                color(p, which), s->filled ? " p" : "", tr_axis_at(x, s->x[i]),
                tr_axis_at(y, s->y[i]), radius(p, s, i));
        if (s->notes) {
            fputs("><title>", to);
            tr_xml_text(s->notes[i], to);
            fputs("</title></circle>\n", to);
        } else {
            fputs("/>\n", to);
        }
    }
}

static void legend(const tr_plot_lines *p, FILE *to)
{
    for (size_t k = 0; k < p->nseries && p->nseries > 1; k++) {
        const tr_plot_series *s = &p->series[k];
        const int y = TOP + LINE * (int)k, x = LEFT;
        if (s->points)
            fprintf(to, "<circle class=\"l s%zu%s\" cx=\"%d\" cy=\"%d\" r=\"4\"/>", color(p, k),
                    s->filled ? " p" : "", x + 10, y);
        else
            fprintf(to, "<path class=\"l s%zu\" d=\"M%d %dh20\"/>", color(p, k), x, y);
        fprintf(to, "<text x=\"%d\" y=\"%d\">", x + 26, y + 4);
        tr_xml_text(s->name, to);
        fputs("</text>\n", to);
    }
}

tr_status tr_svg_lines(const tr_plot_lines *p, FILE *to)
{
    const box b = bounds(p);
    const tr_axis x = tr_axis_of(b.low[0], b.high[0], p->log_x, LEFT, TR_PLOT_WIDTH - RIGHT);
    const tr_axis y = tr_axis_of(b.low[1], b.high[1], p->log_y, top_of(p) + INNER, top_of(p));
    tr_svg_begin(p->title, TR_PLOT_WIDTH, height_of(p), to);
    axes(p, &x, &y, to);
    for (size_t k = 0; k < p->nseries; k++) (p->series[k].points ? points : line)(p, k, &x, &y, to);
    legend(p, to);
    return tr_svg_end(to);
}
