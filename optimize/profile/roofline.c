/* The roofline as a picture: arithmetic a second over arithmetic a byte, both logarithmic, with the
 * machine's peaks and bandwidths as lines and each op that computes as a point, the larger the
 * longer it takes. */
#include "optimize/plot/plot.h"
#include "optimize/profile/profile.h"
#include "optimize/profile/svg.h"

#include <math.h>

enum { WIDTH = 900, HEIGHT = 560, LEFT = 70, RIGHT = 30, TOP = 40, BOTTOM = 50, LABEL = 13 };

/* Powers of ten at the edges. */
typedef struct {
    double x0, x1, y0, y1;
} frame;

static double at_x(const frame *f, double v)
{
    const double t = (log10(v) - f->x0) / (f->x1 - f->x0);
    return LEFT + fmin(fmax(t, 0), 1) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const frame *f, double v)
{
    const double t = (log10(v) - f->y0) / (f->y1 - f->y0);
    return HEIGHT - BOTTOM - fmin(fmax(t, 0), 1) * (HEIGHT - TOP - BOTTOM);
}

static bool computes(const tr_profile_row *r)
{
    return tr_profile_computed(r) > 0 && r->bytes > 0 && r->seconds > 0;
}

static frame frame_of(const tr_profile *p, size_t n, const tr_machine *m)
{
    double x0 = 0.1, x1 = 100, y0 = 1e10, y1 = 1e10;
    for (int k = 0; k < TR_PEAKS; k++) y1 = fmax(y1, m->peak[k]);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < p[i].nrows; k++) {
            const tr_profile_row *r = &p[i].rows[k];
            if (!computes(r)) continue;
            x0 = fmin(x0, tr_profile_computed(r) / r->bytes);
            x1 = fmax(x1, tr_profile_computed(r) / r->bytes);
            y0 = fmin(y0, tr_profile_computed(r) / r->seconds);
            y1 = fmax(y1, tr_profile_computed(r) / r->seconds);
        }
    return (frame){floor(log10(x0)), ceil(log10(x1)), floor(log10(y0)), ceil(log10(y1 * 1.1))};
}

static void draw_axes(const frame *f, FILE *to)
{
    char text[48];
    for (double e = f->x0; e <= f->x1; e++) {
        const double x = at_x(f, pow(10, e));
        fprintf(to, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", x, TOP,
                x, HEIGHT - BOTTOM);
        snprintf(text, sizeof text, "%g", pow(10, e));
        tr_svg_text(x, HEIGHT - BOTTOM + 16, "middle", 12, text, to);
    }
    for (double e = f->y0; e <= f->y1; e++) {
        const double y = at_y(f, pow(10, e));
        fprintf(to, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", LEFT, y,
                WIDTH - RIGHT, y);
        snprintf(text, sizeof text, "%g", pow(10, e - 9));
        tr_svg_text(LEFT - 6, y + 4, "end", 12, text, to);
    }
    tr_svg_text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, "middle", 80,
                "arithmetic a byte (FLOP/B)", to);
    tr_svg_text(8, TOP - 8, "start", 40, "GFLOP/s", to);
}

/* What the bandwidth allows, up to the highest peak. */
static void draw_bandwidth(const frame *f, const char *name, double rate, double peak, FILE *to)
{
    char text[64];
    if (rate <= 0 || peak <= 0) return;
    const double low = fmax(pow(10, f->x0), pow(10, f->y0) / rate),
                 high = fmin(pow(10, f->x1), peak / rate);
    if (high <= low) return;
    fprintf(to,
            "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
            "stroke-width=\"1.5\"/>\n",
            at_x(f, low), at_y(f, low * rate), at_x(f, high), at_y(f, high * rate));
    snprintf(text, sizeof text, "%s %.3g GB/s", name, rate * 1e-9);
    tr_svg_text(at_x(f, low) + 6, at_y(f, low * rate) - 6, "start", 40, text, to);
}

static void draw_peaks(const frame *f, const tr_machine *m, FILE *to)
{
    char text[64];
    double taken[TR_PEAKS]; /* by labels, which do not overlap */
    int n = 0;
    for (int k = 0; k < TR_PEAKS; k++) {
        if (m->peak[k] <= 0) continue;
        const double y = at_y(f, m->peak[k]),
                     from = fmax(pow(10, f->x0), m->peak[k] / fmax(m->cache, 1));
        fprintf(to,
                "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" "
                "stroke-width=\"1.5\"/>\n",
                at_x(f, from), y, WIDTH - RIGHT, y);
        snprintf(text, sizeof text, "%s %.4g GFLOP/s", tr_peak_names[k], m->peak[k] * 1e-9);
        double at =
            floor(y - 4); /* whole pixels: sums of them are exact, so that moved apart is apart */
        for (int i = 0; i < n; i++)
            if (fabs(at - taken[i]) < LABEL) {
                at = taken[i] + LABEL;
                i = -1;
            }
        taken[n++] = at;
        tr_svg_text(WIDTH - RIGHT - 4, at, "end", 40, text, to);
    }
}

static void draw_point(const frame *f, const tr_profile_row *r, FILE *to)
{
    static const char *const colors[] = {"#9a9a9a", "#d1603d", "#5b8fb9"}; /* by what binds it */
    const double x = at_x(f, tr_profile_computed(r) / r->bytes),
                 y = at_y(f, tr_profile_computed(r) / r->seconds);
    fputs("<g><title>", to);
    tr_xml_text(r->layer, to);
    fputc(' ', to);
    tr_xml_text(r->op, to);
    fprintf(to,
            ": %.4f ms, %.1f %% of the time, %.1f %% of the roof, bound by %s</title>"
            "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"%.2f\" fill=\"%s\" fill-opacity=\"0.7\"/>\n",
            r->seconds * 1e3, r->share * 100, r->roof * 100, tr_bound_names[r->bound], x, y,
            3 + 14 * sqrt(r->share), colors[r->bound]);
    if (r->bottleneck) tr_svg_text(x + 12, y + 4, "start", 30, r->layer, to);
    fputs("</g>\n", to);
}

void tr_profile_roofline(const tr_profile *p, size_t n, const tr_machine *m, FILE *to)
{
    const frame f = frame_of(p, n, m);
    double peak = 0;
    for (int k = 0; k < TR_PEAKS; k++) peak = fmax(peak, m->peak[k]);
    tr_svg_open(WIDTH, HEIGHT, m->device, to);
    draw_axes(&f, to);
    draw_bandwidth(&f, "memory", m->memory, peak, to);
    draw_bandwidth(&f, "cache", m->cache, peak, to);
    draw_peaks(&f, m, to);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < p[i].nrows; k++)
            if (computes(&p[i].rows[k])) draw_point(&f, &p[i].rows[k], to);
    tr_svg_close(to);
}
