/* A curve in the terminal: lines from point to point on a grid of dots, an axis with three labels
 * on the left and the range of x below. With Unicode a character holds 2 x 4 dots (braille), else
 * one. Nothing is averaged: where many points share a column it shows all they span, so that no
 * spike is lost. */
#include "runtime/store/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LABEL 10

typedef struct {
    int width, height, across, down; /* characters; dots a character */
    double low, high, left, right;
    unsigned char *cells; /* bit k: dot k */
} grid;

static void dot(grid *g, int column, int row)
{
    /* braille numbers its dots 1 2 3 7 down the left, 4 5 6 8 down the right */
    static const unsigned char bit[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    int cell = (row / g->down) * g->width + column / g->across;
    g->cells[cell] |= bit[column % g->across][row % g->down];
}

static int place(double v, double low, double high, int n)
{
    double t = high > low ? (v - low) / (high - low) : 0.5;
    int i = (int)(t * (n - 1) + 0.5);
    return i < 0 ? 0 : i >= n ? n - 1 : i;
}

static bool range(const double *x, const double *y, size_t n, grid *g)
{
    size_t seen = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i])) continue;
        if (seen == 0 || y[i] < g->low) g->low = y[i];
        if (seen == 0 || y[i] > g->high) g->high = y[i];
        if (seen == 0 || x[i] < g->left) g->left = x[i];
        if (seen == 0 || x[i] > g->right) g->right = x[i];
        seen++;
    }
    return seen > 0 && isfinite(g->high - g->low) && isfinite(g->right - g->left);
}

/* Dots on the straight lines from each finite point to the next. */
static void curve(grid *g, const double *x, const double *y, size_t n)
{
    int columns = g->width * g->across, rows = g->height * g->down;
    int cx = -1, cy = -1;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i])) continue;
        int px = place(x[i], g->left, g->right, columns);
        int py = rows - 1 - place(y[i], g->low, g->high, rows);
        if (cx < 0) cx = px, cy = py;
        int far = abs(px - cx) > abs(py - cy) ? abs(px - cx) : abs(py - cy);
        for (int k = 1; k < far; k++) dot(g, cx + (px - cx) * k / far, cy + (py - cy) * k / far);
        dot(g, px, py);
        cx = px;
        cy = py;
    }
}

static void print_row(const grid *g, int row, bool unicode, FILE *to)
{
    double at = g->high - (g->high - g->low) * row / (g->height - 1);
    if (row == 0 || row == g->height - 1 || row == g->height / 2)
        fprintf(to, "%*.4g %s", LABEL, at, unicode ? "┤" : "+");
    else
        fprintf(to, "%*s %s", LABEL, "", unicode ? "│" : "|");
    int last = g->width - 1;
    while (last >= 0 && g->cells[row * g->width + last] == 0) last--;
    for (int i = 0; i <= last; i++) {
        unsigned char c = g->cells[row * g->width + i];
        if (c == 0)
            fputc(' ', to);
        else if (!unicode)
            fputc('*', to);
        else /* U+2800 + dots, in UTF-8 */
            fprintf(to, "\xe2%c%c", 0xa0 | (c >> 6), 0x80 | (c & 0x3f));
    }
    fputc('\n', to);
}

tr_status tr_plot(const double *x, const double *y, size_t n, int width, int height, bool unicode,
                  const char *x_label, FILE *to)
{
    grid g = {.width = width - LABEL - 2,
              .height = height,
              .across = unicode ? 2 : 1,
              .down = unicode ? 4 : 1};
    if (g.width < 10) g.width = 10;
    if (g.width > 1000) g.width = 1000;
    if (!range(x, y, n, &g)) return TR_OK;
    g.cells = tr_alloc(TR_MEM_OTHER, (size_t)g.width * (size_t)height, 1);
    if (!g.cells) return tr_last_status();
    curve(&g, x, y, n);
    for (int row = 0; row < height; row++) print_row(&g, row, unicode, to);
    fprintf(to, "%*s %s", LABEL, "", unicode ? "└" : "+");
    for (int i = 0; i < g.width; i++) fputs(unicode ? "─" : "-", to);
    char left[32], right[64];
    snprintf(left, sizeof left, "%.10g", g.left);
    snprintf(right, sizeof right, "%s %.10g", x_label, g.right);
    int gap = g.width - (int)strlen(left) - (int)strlen(right);
    fprintf(to, "\n%*s  %s%*s%s\n", LABEL, "", left, gap > 1 ? gap : 1, "", right);
    tr_free(g.cells);
    return TR_OK;
}
