/* What the stage `quantize` says of what it made, and of layers that keep floats. */
#ifndef TR_QUANTIZE_TOLD_H
#define TR_QUANTIZE_TOLD_H

#include "optimize/quantize/quantize.h"
#include "optimize/stage.h"

/* *Local.* Why no layer can be computed in 8 bits, to stand behind that: ": ..."; "": for no other
 * reason. `could`: so many could but for the stages before. Returns `text`, or a text that
 * stays. */
const char *tr_quantize_why_none(const tr_stage_outlook *o, size_t could, char text[TR_ERROR_TEXT]);
/* *Local.* Rank 0 logs which layers keep floats for what they are. `int8`: as of
 * tr_quantize_floats. */
void tr_quantize_tell_floats(const tr_stage_job *job, bool int8);

/* What was asked for, as far as it decides what there is to say. */
typedef struct {
    bool all;      /* layers: all; else they were chosen */
    bool refined;  /* beyond rounding to the nearest */
    bool equalize; /* pairs of layers */
    bool dynamic;  /* no scales of what layers read */
    bool outputs;  /* they were measured */
    int64_t batch; /* samples of a call that was timed */
} tr_quantize_asked;
/* *Local.* The findings: the table of layers, found[layers of the parent], and the story. Rank 0
 * warns of what may surprise. `made`: the network is another one. */
tr_status tr_quantize_tell(const tr_stage_job *job, const tr_quantize_asked *o,
                           const tr_int8_layer *found, const tr_int8_story *story, bool made);

#endif
