/* A run folder as one page: HTML that needs nothing but itself, and the same in Markdown. Local. */
#ifndef TR_REPORT_PAGE_H
#define TR_REPORT_PAGE_H

#include "runtime/config/config.h"
#include "runtime/store/store.h"

typedef struct {
    const char *folder; /* where metrics.jsonl and stages/ are looked for */
    const char *model;  /* a run file, for its history */
    const char *last;   /* the file of the last stage, for its size */
    const tr_config *config;
    const tr_lineage *lineage;   /* stages so far */
    const char *html, *markdown; /* files to write, whole or not at all; NULL: not wanted */
} tr_report_options;

tr_status tr_report_write(const tr_report_options *o);

#endif
