/* For tests that compute at length what results are to be. */
#ifndef TR_TEST_PATHS_H
#define TR_TEST_PATHS_H

#include <stdbool.h>
#include <stdlib.h>

/* TRIREME_TEST_PATHS, set by the presets that watch memory (asan, ubsan): the same program without
 * them has looked at the numbers, and here each way through the code is to be gone, once. */
static inline bool test_paths_alone(void)
{
    return getenv("TRIREME_TEST_PATHS") != NULL;
}

#endif
