/* SVG as the plots of a profile need it: text in the page's own fonts, no scripts. */
#include "optimize/profile/svg.h"

#include <string.h>

#include "optimize/plot/plot.h"

void tr_svg_open(int width, int height, const char *title, FILE *to)
{
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" "
            "font-family=\"system-ui, sans-serif\" font-size=\"11\">\n"
            "<style>.page{fill:#fff}text{fill:#222}.frame "
            "text{fill:#111}.axis{stroke:#888}.grid{stroke:#8884}"
            "@media (prefers-color-scheme: dark){.page{fill:#15171a}text{fill:#ddd}}</style>\n"
            "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n",
            width, height, width, height, width, height);
    fputs("<title>", to);
    tr_xml_text(title, to);
    fputs("</title>\n", to);
    fputs("<g font-size=\"14\">", to);
    tr_svg_text(width / 2.0, 20, "middle", 200, title, to);
    fputs("</g>\n", to);
}

void tr_svg_close(FILE *to)
{
    fputs("</svg>\n", to);
}

void tr_svg_text(double x, double y, const char *anchor, size_t chars, const char *text, FILE *to)
{
    char cut[256];
    const size_t n = strlen(text);
    if (chars < 3) return;
    if (chars > sizeof cut - 1) chars = sizeof cut - 1;
    snprintf(cut, sizeof cut, "%.*s%s", (int)(n > chars ? chars - 2 : n), text,
             n > chars ? ".." : "");
    fprintf(to, "<text x=\"%.2f\" y=\"%.2f\" text-anchor=\"%s\">", x, y, anchor);
    tr_xml_text(cut, to);
    fputs("</text>\n", to);
}
