/* The peaks of a roofline. Private to this room. */
#ifndef TR_PROFILE_PROBE_H
#define TR_PROFILE_PROBE_H

#include "optimize/profile/profile.h"

/* Sets m->peak and m->by; a type that the device lacks has a peak of 0. */
tr_status tr_probe_peaks(const tr_backend *b, void *ctx, int threads, tr_machine *m);

#endif
