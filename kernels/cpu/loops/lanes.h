/* Vectors of the level's width by gcc's own type, for loops whose sums it would else keep in
 * memory. */
#ifndef TR_CPU_LOOPS_LANES_H
#define TR_CPU_LOOPS_LANES_H

#include "kernels/cpu/loops/vec.h"

#if defined __AVX512F__
#define TR_LANE_BYTES 64
#elif defined __AVX2__
#define TR_LANE_BYTES 32
#else
#define TR_LANE_BYTES 16
#endif
enum { TR_LANES = TR_LANE_BYTES / 4 };

/* At any address of floats. */
typedef float tr_lanes __attribute__((vector_size(TR_LANE_BYTES), aligned(4), may_alias));

#endif
