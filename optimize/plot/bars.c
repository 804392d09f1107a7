/* Bars and confusion matrices. */
#include "optimize/plot/internal.h"

#include <math.h>

#define ROW  18
#define TOP  34
#define NAME 190

tr_status tr_svg_bars(const tr_plot_bars *p, FILE *to)
{
    double most = 0;
    char label[32];
    for (size_t i = 0; i < p->n; i++)
        if (isfinite(p->values[i])) most = fmax(most, p->values[i]);
    tr_svg_begin(p->title, TR_PLOT_WIDTH, TOP + ROW * (int)p->n + 12, to);
    for (size_t i = 0; i < p->n; i++) {
        const int y = TOP + ROW * (int)i;
        const double share = most > 0 && isfinite(p->values[i]) ? p->values[i] / most : 0;
        const double width = share * (TR_PLOT_WIDTH - NAME - 110);
        fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", NAME - 8, y + 13);
        tr_xml_text(p->names[i], to);
        fprintf(to, "</text><rect class=\"b\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>",
                NAME, y + 2, width, ROW - 4);
        fprintf(to, "<text x=\"%.1f\" y=\"%d\">%s ", NAME + width + 6, y + 13,
                isfinite(p->values[i]) ? tr_axis_label(p->values[i], label) : "-");
        tr_xml_text(p->unit, to);
        fputs("</text>\n", to);
    }
    return tr_svg_end(to);
}

/* Shades by the share of the row: classes may be of very different sizes. */
tr_status tr_svg_confusion(const char *title, size_t n, const int64_t *counts, FILE *to)
{
    const int cell = n <= 12 ? 34 : n <= 30 ? 18 : 8, left = 40, top = 54;
    const int wide = left + cell * (int)n + 20, least = 340; /* the title */
    tr_svg_begin(title, wide > least ? wide : least, top + cell * (int)n + 20, to);
    fprintf(to,
            "<text x=\"%d\" y=\"%d\">predicted</text><text transform=\"translate(12 %d) "
            "rotate(-90)\" text-anchor=\"middle\">true</text>\n",
            left, top - 18, top + cell * (int)n / 2);
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t k = 0; k < n; k++) sum += (double)counts[i * n + k];
        if (cell > 8)
            fprintf(to,
                    "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%zu</text><text x=\"%d\" y=\"%d\" "
                    "text-anchor=\"middle\">%zu</text>\n",
                    left - 4, top + cell * (int)i + cell / 2 + 4, i,
                    left + cell * (int)i + cell / 2, top - 4, i);
        for (size_t k = 0; k < n; k++) {
            const int64_t v = counts[i * n + k];
            const int x = left + cell * (int)k, y = top + cell * (int)i;
            if (v == 0) continue;
            fprintf(to,
                    "<rect class=\"c\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                    "fill-opacity=\"%.3f\"><title>%zu as %zu: %lld</title></rect>\n",
                    x, y, cell - 1, cell - 1, 0.08 + 0.6 * (double)v / sum, i, k, (long long)v);
            if (cell > 20)
                fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%lld</text>\n",
                        x + cell / 2, y + cell / 2 + 4, (long long)v);
        }
    }
    return tr_svg_end(to);
}
