/* What every plot begins and ends with, text in XML, and axes. Colors: the eight of Okabe and Ito,
 * which the color-blind can tell apart ("Color Universal Design", 2008); text and axes take the
 * page's color. */
#include "optimize/plot/internal.h"

#include <math.h>
#include <string.h>

static const char style[] =
    ".tr{font:12px system-ui,sans-serif;color:#1a1a1a}"
    ".tr text{fill:currentColor}.tr .t{font-size:14px;font-weight:600}"
    ".tr .a{stroke:currentColor;stroke-width:1;fill:none}"
    ".tr .g{stroke:currentColor;stroke-opacity:.15;fill:none}"
    ".tr .l{fill:none;stroke-width:1.8;stroke-linejoin:round}"
    ".tr .s0{stroke:#0072b2}.tr .s1{stroke:#d55e00}.tr .s2{stroke:#009e73}.tr .s3{stroke:#cc79a7}"
    ".tr .s4{stroke:#e69f00}.tr .s5{stroke:#56b4e9}.tr .s6{stroke:#999999}.tr .s7{stroke:#b59f00}"
    ".tr .p{fill-opacity:.6}.tr .p.s0{fill:#0072b2}.tr .p.s1{fill:#d55e00}.tr .p.s2{fill:#009e73}"
    ".tr .p.s3{fill:#cc79a7}.tr .p.s4{fill:#e69f00}.tr .p.s5{fill:#56b4e9}.tr .p.s6{fill:#999999}"
    ".tr .p.s7{fill:#b59f00}"
    ".tr .b{fill:#0072b2;fill-opacity:.75}.tr .c{fill:#0072b2}"
    "@media(prefers-color-scheme:dark){.tr{color:#e8e8e8}}"
    "@media print{.tr{color:#000}}";

void tr_xml_text(const char *text, FILE *to)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '<')
            fputs("&lt;", to);
        else if (*p == '>')
            fputs("&gt;", to);
        else if (*p == '&')
            fputs("&amp;", to);
        else if (*p == '"')
            fputs("&quot;", to);
        else
            fputc(*p < ' ' && *p != '\n' && *p != '\t' ? '?' : *p, to);
    }
}

void tr_svg_begin(const char *title, int width, int height, FILE *to)
{
    fprintf(
        to,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tr\" role=\"img\" viewBox=\"0 0 %d %d\" "
        "width=\"%d\" height=\"%d\"><style>%s</style>\n<title>",
        width, height, width, height, style);
    tr_xml_text(title, to);
    fputs("</title>\n<text class=\"t\" x=\"12\" y=\"20\">", to);
    tr_xml_text(title, to);
    fputs("</text>\n", to);
}

tr_status tr_svg_end(FILE *to)
{
    fputs("</svg>\n", to);
    return ferror(to) ? TR_FAIL(TR_IO, "a plot could not be written") : TR_OK;
}

static void linear_ticks(tr_axis *a)
{
    const double span = a->high - a->low, raw = span / 5, size = pow(10, floor(log10(raw)));
    const double part = raw / size, step = (part < 1.5 ? 1
                                            : part < 3 ? 2
                                            : part < 7 ? 5
                                                       : 10) *
                                           size;
    a->low = floor(a->low / step + 1e-9) * step;
    a->high = ceil(a->high / step - 1e-9) * step;
    for (double v = a->low; v < a->high + step / 2 && a->nticks < 16; v += step)
        a->ticks[a->nticks++] = fabs(v) < step / 1e6 ? 0 : v;
}

/* Decades; within one, 1, 2 and 5. */
static void log_ticks(tr_axis *a)
{
    const double decades = a->high - a->low;
    static const double all[] = {1, 2, 5}, one[] = {1};
    const double *parts = decades > 3 ? one : all;
    const int n = decades > 3 ? 1 : 3, every = decades > 12 ? (int)(decades / 8) : 1;
    a->low = floor(a->low * 10) / 10;
    a->high = ceil(a->high * 10) / 10;
    for (int d = (int)floor(a->low); d <= (int)ceil(a->high); d += every)
        for (int i = 0; i < n && a->nticks < 16; i++) {
            const double v = parts[i] * pow(10, d), at = log10(v);
            if (at >= a->low - 1e-9 && at <= a->high + 1e-9) a->ticks[a->nticks++] = v;
        }
    if (a->nticks >= 2) return;
    /* less than an octave: as on a linear axis */
    tr_axis plain = {.low = pow(10, a->low), .high = pow(10, a->high)};
    linear_ticks(&plain);
    a->nticks = 0;
    for (int i = 0; i < plain.nticks; i++)
        if (plain.ticks[i] > 0 && log10(plain.ticks[i]) >= a->low &&
            log10(plain.ticks[i]) <= a->high)
            a->ticks[a->nticks++] = plain.ticks[i];
}

tr_axis tr_axis_of(double low, double high, bool log, double from, double to)
{
    tr_axis a = {.log = log, .from = from, .to = to};
    if (!(high >= low)) low = log ? 1 : 0, high = log ? 10 : 1;
    if (high == low) {
        const double around = low == 0 ? 1 : fabs(low) / 2;
        high = low + around;
        low = log ? low / 2 : low - around;
    }
    a.low = log ? log10(low) : low;
    a.high = log ? log10(high) : high;
    if (log)
        log_ticks(&a);
    else
        linear_ticks(&a);
    return a;
}

double tr_axis_at(const tr_axis *a, double value)
{
    const double v = a->log ? log10(value) : value;
    return a->from + (v - a->low) / (a->high - a->low) * (a->to - a->from);
}

const char *tr_axis_label(double value, char buf[32])
{
    const double size = fabs(value);
    if (size >= 1e9)
        snprintf(buf, 32, "%.4gG", value / 1e9);
    else if (size >= 1e6)
        snprintf(buf, 32, "%.4gM", value / 1e6);
    else if (size >= 1e4)
        snprintf(buf, 32, "%.4gk", value / 1e3);
    else
        snprintf(buf, 32, "%.4g", value);
    return buf;
}
