/* What the tests of optimizer steps share: networks with several buckets, and their data. */
#ifndef TR_TESTS_STEP_H
#define TR_TESTS_STEP_H

#include "training.h"

#define MODEL                                                                                      \
    "model:\n  input: [12]\n  layers:\n"                                                           \
    "    - linear: {out: 96, name: one}\n    - batchnorm: {name: norm}\n    - relu\n"              \
    "    - linear: {out: 64, name: two}\n    - relu\n    - linear: {out: 5, name: three}\n"        \
    "  loss: cross_entropy\n"
#define SMALL                                                                                      \
    "model:\n  input: [12]\n  layers:\n"                                                           \
    "    - linear: {out: 96, name: one}\n    - relu\n"                                             \
    "    - linear: {out: 64, name: two}\n    - relu\n    - linear: {out: 5, name: three}\n"        \
    "  loss: cross_entropy\n"
#define DATA "data: {train: {format: synthetic, samples: 60}}\n"

/* Replayed steps call no hooks and count nothing on the host. */
#define SEEN (training_on_gpu ? ", cuda_graph: off" : "")

#endif
