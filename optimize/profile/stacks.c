/* Profiles as stacks: run, part, layer, op. Folded into lines, or drawn as a flame graph (B. Gregg,
 * "The Flame Graph", CACM 59(6), 2016) that grows downwards, in the order things run. */
#include "optimize/plot/plot.h"
#include "optimize/profile/profile.h"
#include "optimize/profile/svg.h"

#include <string.h>

enum { DEPTH = 4, WIDTH = 1200, MARGIN = 10, TOP = 36, HIGH = 22, GAP = 14 };

/* A row of a profile, by the names on its way. */
typedef struct {
    char title[64];
    const char *name[DEPTH]; /* of the frame at each depth */
    const tr_profile_row *row;
} stack;

static stack *stacks_of(const tr_profile *p, size_t n, size_t *count)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += p[i].nrows;
    stack *s = tr_alloc(TR_MEM_OTHER, total, sizeof *s);
    *count = 0;
    for (size_t i = 0; s && i < n; i++)
        for (size_t k = 0; k < p[i].nrows; k++) {
            stack *to = &s[(*count)++];
            to->row = &p[i].rows[k];
            tr_profile_title(&p[i], to->title, sizeof to->title);
            to->name[0] = to->title;
            to->name[1] = tr_part_names[to->row->part];
            to->name[2] = to->row->layer;
            to->name[3] = to->row->op;
        }
    return s;
}

/* A name between semicolons: none in it, nor anything that ends the line. */
static void fold(const char *name, FILE *to)
{
    for (; *name; name++) fputc(*name == ';' || (unsigned char)*name < ' ' ? '_' : *name, to);
}

void tr_profile_folded(const tr_profile *p, size_t n, FILE *to)
{
    size_t count;
    stack *s = stacks_of(p, n, &count);
    for (size_t i = 0; s && i < count; i++) {
        for (int d = 0; d < DEPTH; d++) {
            if (d > 0) fputc(';', to);
            fold(s[i].name[d], to);
        }
        fprintf(to, " %.0f\n", s[i].row->seconds * 1e9);
    }
    tr_free(s);
}

/* ---- The picture ----------------------------------------------------------------------------- */

/* Of one profile: where it begins, pixels a second, seconds of the whole. */
typedef struct {
    int y;
    double scale, all;
} band_of;

static void draw_frame(const band_of *b, const stack *s, int depth, double x, double seconds,
                       FILE *to)
{
    static const char *const colors[] = {"#e8a33d", "#7fb069", "#d1603d", "#5b8fb9",
                                         "#b58db6", "#d9c55a", "#6bb5a8", "#c98484"};
    const double y = b->y + depth * HIGH, width = seconds * b->scale;
    uint32_t hash = 5381;
    for (const char *c = s->name[depth]; *c; c++) hash = hash * 33 + (unsigned char)*c;
    fputs("<g class=\"frame\"><title>", to);
    tr_xml_text(s->name[depth], to);
    fprintf(to, ": %.4f ms, %.1f %%", seconds * 1e3, b->all > 0 ? seconds / b->all * 100 : 0);
    if (depth == DEPTH - 1)
        fprintf(to, ", %.4g GFLOP/s, %.4g GB/s, bound by %s",
                seconds > 0 ? tr_profile_computed(s->row) / seconds * 1e-9 : 0,
                seconds > 0 ? s->row->bytes / seconds * 1e-9 : 0, tr_bound_names[s->row->bound]);
    fprintf(
        to,
        "</title><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" rx=\"2\" fill=\"%s\"/>\n",
        x, y, width > 0.6 ? width - 0.5 : width, HIGH - 1, colors[hash % TR_COUNT(colors)]);
    if (depth == 0) {
        char text[128];
        snprintf(text, sizeof text, "%s: %.4g ms", s->name[0], seconds * 1e3);
        tr_svg_text(x + 4, y + 15, "start", 100, text, to);
    } else if (width > 24)
        tr_svg_text(x + 4, y + 15, "start", (size_t)((width - 6) / 6.4), s->name[depth], to);
    fputs("</g>\n", to);
}

/* Stacks [from, to) share all frames above; neighbours with one name are one frame. */
static void draw(const band_of *b, const stack *s, size_t from, size_t end, int depth, double x,
                 FILE *to)
{
    while (depth < DEPTH && from < end) {
        double seconds = 0;
        size_t next = from;
        for (; next < end && strcmp(s[next].name[depth], s[from].name[depth]) == 0; next++)
            seconds += s[next].row->seconds;
        const double width = seconds * b->scale;
        if (width > 0.05) {
            draw_frame(b, &s[from], depth, x, seconds, to);
            draw(b, s, from, next, depth + 1, x, to);
        }
        x += width;
        from = next;
    }
}

/* Each profile has the whole width to itself: inference beside a training step would be a line. A
 * frame's percent is of its own profile. */
void tr_profile_flame(const tr_profile *p, size_t n, FILE *to)
{
    const int band = DEPTH * HIGH + GAP;
    tr_svg_open(WIDTH, TOP + (int)n * band + MARGIN - GAP,
                n > 1 ? "time by part, layer and op, each run over the whole width"
                      : "time by part, layer and op",
                to);
    for (size_t i = 0; i < n; i++) {
        size_t count;
        double all = 0;
        stack *s = stacks_of(&p[i], 1, &count);
        for (size_t k = 0; s && k < count; k++) all += s[k].row->seconds;
        const band_of b = {.y = TOP + (int)i * band,
                           .scale = all > 0 ? (WIDTH - 2 * MARGIN) / all : 0,
                           .all = all};
        if (s) draw(&b, s, 0, count, 0, MARGIN, to);
        tr_free(s);
    }
    tr_svg_close(to);
}
