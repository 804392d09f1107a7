/* A page in the making, in HTML or Markdown. */
#ifndef TR_REPORT_INTERNAL_H
#define TR_REPORT_INTERNAL_H

#include "optimize/report/records.h"
#include "optimize/report/report.h"

typedef struct {
    FILE *to;
    bool html;
} tr_page;

void tr_page_begin(const tr_page *p, const char *title);
void tr_page_end(const tr_page *p);
void tr_page_heading(const tr_page *p, int level, const char *text);
void tr_page_text(const tr_page *p, const char *text);
void tr_page_verbatim(const tr_page *p, const char *summary, const char *text);
/* Cells row by row; the first of a row is text, the others are set right, but in a table whose
 * columns have no names: names and what they are. */
void tr_page_table_begin(const tr_page *p, size_t n, const char *const *columns);
void tr_page_row(const tr_page *p, size_t n, const char *const *cells);
void tr_page_table_end(const tr_page *p);
/* Where a plot may stand: HTML alone has them inside. */
static inline bool tr_page_plots(const tr_page *p)
{
    return p->html;
}

#endif
