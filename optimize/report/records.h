/* The records of a run, metrics.jsonl. All Local. */
#ifndef TR_REPORT_RECORDS_H
#define TR_REPORT_RECORDS_H

#include "runtime/config/tree.h"

/* Those of one event. */
typedef struct {
    size_t count, cap;
    tr_document *records; /* owned */
} tr_records;
/* Records of this event (NULL: of all), in the file's order; a line that is none is passed over. No
 * file: none; TR_DATA of one that cannot be read. */
tr_status tr_records_read(const char *path, const char *event, tr_records *out);
void tr_records_free(tr_records *r);
/* NaN where a record lacks it, or has null. */
double tr_records_real(const tr_document *record, const char *key);
const char *tr_records_text(const tr_document *record, const char *key); /* "" where absent */

#endif
