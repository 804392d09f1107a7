/* Private to the data room: what data.augment changes of images beside cutting them. All Local. */
#ifndef TR_DATA_CHANGE_H
#define TR_DATA_CHANGE_H

#include "runtime/data/augment.h"

/* *out: NULL where there is nothing to do. TR_CONFIG where the images of `p` cannot have it. */
tr_status tr_changes_open(const tr_config *c, const tr_prepare *p, struct tr_changes **out);
/* Input k as planes in the file's values, of type `elem`; true: the result is in `other`. */
bool tr_changes_apply(const tr_prepare *p, int k, tr_elem elem, uint64_t ordinal, float *planes,
                      float *other);
/* Input k as the model sees it, channels-last. */
void tr_changes_erase(const tr_prepare *p, int k, uint64_t ordinal, float *v);

#endif
