/* Attention as graphs and kernels, on hosts and devices, see it: its attributes, where its operands
 * have what, which keys a query sees. */
#ifndef TR_GRAPH_ATTENTION_H
#define TR_GRAPH_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/graph/kinds.h"

typedef struct {
    int64_t heads, kv_heads; /* heads / kv_heads queries' heads share one of keys and values */
    int64_t window;          /* keys j with |i - j| below it; 0: any */
    bool causal;             /* keys j <= i */
    bool alibi; /* each head's slope times the distance is taken off (Press et al. 2022) */
    double dropout, scale; /* of the probabilities; 0: 1 / sqrt(D) */
} tr_attention_attrs;

/* Where attention and its gradient find what: a position's row has so many elements, and in a
 * packed one the keys and values begin behind its first. Operands of the op; -1: none. */
typedef struct {
    size_t samples, queries, keys, heads, kv_heads, D;
    size_t q_pitch, kv_pitch, k_at, v_at;
    bool packed;
    int q, k, v, lengths;
    int keys_held; /* keys of the rows before, too, and behind them values: in a graph that decodes
                    */
    float scale;
} tr_attention_shape;

/* Operands of attention in a graph that decodes. */
enum {
    TR_ATTENTION_PAST = 4,
    TR_ATTENTION_COUNT,
    TR_ATTENTION_KEYS_HELD,
    TR_ATTENTION_VALUES_HELD
};

typedef struct {
    int64_t begin, end; /* equal: none */
} tr_key_range;

/* Keys that query i of a sample with that many keys sees. Both ends grow with i. */
TR_ON_BOTH static inline tr_key_range tr_attention_keys(int64_t i, int64_t keys, bool causal,
                                                        int64_t window)
{
    tr_key_range r = {0, keys};
    if (causal && i + 1 < r.end) r.end = i + 1;
    if (window > 0 && i + window < r.end) r.end = i + window;
    if (window > 0 && i - window + 1 > 0) r.begin = i - window + 1;
    if (r.begin > r.end) r.begin = r.end;
    return r;
}

/* Which random numbers drop the probabilities of a query: its own, whatever the number of queries,
 * which differs between plans of one model. As long as samples * heads stay below 2^40 and queries
 * below 2^24. */
TR_ON_BOTH static inline uint64_t tr_attention_draw(uint64_t ordinal, uint64_t heads, uint64_t head,
                                                    uint64_t query)
{
    return ((ordinal * heads + head) << 24) + query;
}

/* Head h's slope is 2 to the power of this (Press, Smith and Lewis 2022): -8 (h + 1) / heads; where
 * heads is no power of two, of the next lower one p for the first p heads, then every other one of
 * 2p heads. */
TR_ON_BOTH static inline float tr_attention_slope_power(int h, int heads)
{
    int p = 1;
    while (2 * p <= heads) p *= 2;
    return h < p ? -8.0f * (float)(h + 1) / (float)p
                 : -8.0f * (float)(2 * (h - p) + 1) / (float)(2 * p);
}

#endif
