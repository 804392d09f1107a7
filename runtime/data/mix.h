/* Private to the data room: samples of a step mixed with others of it. What is drawn is apart from
 * what is done with it. All Local. */
#ifndef TR_DATA_MIX_H
#define TR_DATA_MIX_H

#include "runtime/data/image.h"

typedef enum { TR_MIX_NONE, TR_MIX_UP, TR_MIX_CUT } tr_mix_kind;

/* What is done to all samples of a step: `share` of each stays, the rest is its partner's; of
 * TR_MIX_CUT the partner's is the box, and `share` what is around it, of the area. */
typedef struct {
    tr_mix_kind kind;
    float share;
    tr_box box;
} tr_mix;

/* Can the model's inputs be mixed as the config says? TR_CONFIG where not. m->on false: nothing to
 * do. */
tr_status tr_mixing_take(const tr_config *c, const tr_prepare *p, const tr_model *model,
                         tr_mixing *m);
/* Of a global step: the same for every rank, micro-batch and thread. */
tr_mix tr_mix_draw(const tr_mixing *m, uint64_t seed, uint64_t step);
/* torchvision's CutMix.make_params: about (down, right) a box of 1 - share of the area, as far as
 * it lies in the image. */
tr_mix tr_mix_cut(double share, int64_t down, int64_t right, int64_t height, int64_t width);
/* From Beta(alpha, alpha). */
double tr_beta_draw(double alpha, uint64_t seed, uint64_t step);
/* Which of the n places of the step is mixed into place i: a permutation of all of them. */
uint64_t tr_mix_partner(uint64_t seed, uint64_t step, uint64_t n, uint64_t i);
/* Input k as the model sees it: `other` into `own`. */
void tr_mix_input(const tr_mix *x, const tr_prepare *p, int k, float *own, const float *other);

#endif
