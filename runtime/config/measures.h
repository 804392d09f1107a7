/* What evaluations measure beside the loss, for evaluations outside of training too. */
#ifndef TR_CONFIG_MEASURES_H
#define TR_CONFIG_MEASURES_H

#include "runtime/config/config.h"

/* Whether the mean loss over `s` is the mean of -log p[label] and nothing else, so that perplexity
 * and bits per byte are functions of it. */
bool tr_measures_likelihood(const tr_config *c, const tr_source_config *s);
/* Bytes of text a label of that source, in the mean; 0: not known. */
double tr_measures_bytes(const tr_config *c, const tr_source_config *s);
/* Of a mean loss over what is evaluated while the config trains. */
double tr_config_bits_per_byte(const tr_config *c, double loss);

#endif
