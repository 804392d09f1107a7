/* A report's curves of a training. Local. */
#ifndef TR_REPORT_CURVES_H
#define TR_REPORT_CURVES_H

#include "optimize/report/page.h"

/* The section "Training": the last evaluation, loss, accuracy, learning rate, norm, throughput
 * (which the records of metrics.jsonl's steps have), the confusion matrix. Nothing where the
 * history has no step. */
tr_status tr_report_curves(const tr_page *p, const tr_history *h, const tr_records *steps);

#endif
