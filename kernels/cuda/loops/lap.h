/* Where a step's time goes, by the device's own clock. */
#ifndef TR_CUDA_LOOPS_LAP_H
#define TR_CUDA_LOOPS_LAP_H

#include "kernels/cuda/launch.h"

/* tr_control_lap in stream order; control in device memory. */
TR_CUDA_C tr_status tr_lap_launch(cudaStream_t stream, tr_control *control, int lap);

#endif
