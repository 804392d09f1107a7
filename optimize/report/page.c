#include "optimize/report/page.h"

#include "optimize/plot/plot.h"

static const char style[] =
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "background:#fff;color:#1a1a1a}"
    "h1{font-size:1.7rem;margin:0 0 .2rem}h2{font-size:1.25rem;margin:2.2rem 0 .6rem;"
    "border-bottom:1px solid #8884}h3{font-size:1.05rem;margin:1.4rem 0 .4rem}"
    "table{border-collapse:collapse;font-size:.88rem;margin:.5rem "
    "0;font-variant-numeric:tabular-nums}"
    "th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8883}"
    "th:first-child,td:first-child{text-align:left;white-space:nowrap}th{font-weight:600}"
    ".pairs td{text-align:left}"
    ".wide{overflow-x:auto}svg{display:block;max-width:100%;height:auto;margin:.5rem 0}"
    "pre{font-size:.8rem;overflow-x:auto;padding:.8rem;background:#8881;border-radius:4px}"
    "@media(prefers-color-scheme:dark){body{background:#15171a;color:#e8e8e8}}"
    "@media print{body{background:#fff;color:#000;max-width:none;margin:0}"
    /* paper does not scroll: cells break, tables of many columns are small; what is folded opens */
    "h2,h3{break-after:avoid}tr,svg{break-inside:avoid}.wide,pre{overflow:visible}"
    "pre{white-space:pre-wrap}th,td{padding:.15rem .3rem;overflow-wrap:anywhere}"
    ".many{font-size:6pt}.many th,.many td{padding:.1rem .15rem}.many th:first-child,.many "
    "td:first-child{white-space:normal}}"
    "@media print{details::details-content{content-visibility:visible}}";

/* In Markdown a bar ends a cell. */
static void text(const tr_page *p, const char *s)
{
    if (p->html) {
        tr_xml_text(s, p->to);
        return;
    }
    for (; *s; s++) {
        if (*s == '|' || *s == '<' || *s == '*') fputc('\\', p->to);
        fputc((unsigned char)*s < ' ' ? ' ' : *s, p->to);
    }
}

void tr_page_begin(const tr_page *p, const char *title)
{
    if (p->html) {
        fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
              "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
              p->to);
        text(p, title);
        fprintf(p->to, "</title><style>%s</style></head><body>\n", style);
    }
    tr_page_heading(p, 1, title);
}

void tr_page_end(const tr_page *p)
{
    if (p->html) fputs("</body></html>\n", p->to);
}

void tr_page_heading(const tr_page *p, int level, const char *s)
{
    if (p->html)
        fprintf(p->to, "<h%d>", level);
    else
        fprintf(p->to, "\n%.*s ", level, "###");
    text(p, s);
    fprintf(p->to, p->html ? "</h%d>\n" : "\n\n", level);
}

void tr_page_text(const tr_page *p, const char *s)
{
    if (p->html) fputs("<p>", p->to);
    text(p, s);
    fputs(p->html ? "</p>\n" : "\n\n", p->to);
}

void tr_page_verbatim(const tr_page *p, const char *summary, const char *s)
{
    if (p->html) {
        fputs("<details><summary>", p->to);
        text(p, summary);
        fputs("</summary><pre>", p->to);
        text(p, s);
        fputs("</pre></details>\n", p->to);
    } else {
        text(p, summary);
        fputs(":\n\n", p->to);
        for (const char *end; *s; s = *end ? end + 1 : end) {
            for (end = s; *end && *end != '\n'; end++) {
            }
            fprintf(p->to, "    %.*s\n", (int)(end - s), s);
        }
    }
}

void tr_page_table_begin(const tr_page *p, size_t n, const char *const *columns)
{
    enum { MANY = 8 };
    bool named = !p->html; /* Markdown has no table without a head */
    for (size_t i = 0; i < n; i++) named |= columns[i][0] != 0;
    if (p->html)
        fprintf(p->to, "<div class=\"wide\"><table%s>",
                !named      ? " class=\"pairs\""
                : n >= MANY ? " class=\"many\""
                            : "");
    if (!named) {
        fputs("<tbody>\n", p->to);
        return;
    }
    fputs(p->html ? "<thead><tr>" : "|", p->to);
    for (size_t i = 0; i < n; i++) {
        fputs(p->html ? "<th>" : " ", p->to);
        text(p, columns[i]);
        fputs(p->html ? "</th>" : " |", p->to);
    }
    fputs(p->html ? "</tr></thead><tbody>\n" : "\n|", p->to);
    for (size_t i = 0; i < n && !p->html; i++) fputs(i ? " ---: |" : " --- |", p->to);
    if (!p->html) fputc('\n', p->to);
}

void tr_page_row(const tr_page *p, size_t n, const char *const *cells)
{
    fputs(p->html ? "<tr>" : "|", p->to);
    for (size_t i = 0; i < n; i++) {
        fputs(p->html ? "<td>" : " ", p->to);
        text(p, cells[i]);
        fputs(p->html ? "</td>" : " |", p->to);
    }
    fputs(p->html ? "</tr>\n" : "\n", p->to);
}

void tr_page_table_end(const tr_page *p)
{
    fputs(p->html ? "</tbody></table></div>\n" : "\n", p->to);
}
