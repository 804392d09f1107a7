/* What evaluations measure beside the loss, for evaluations outside of training too. */
#ifndef TR_CONFIG_MEASURES_H
#define TR_CONFIG_MEASURES_H

#include "runtime/config/config.h"

/* Whether the mean loss over `s` is the mean of -log p[label] and nothing else, so that perplexity and bits per byte
 * are functions of it. */
bool tr_measures_likelihood(const tr_config *c, const tr_source_config *s);

#endif
