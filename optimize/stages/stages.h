/* The stages that this folder has, one a file. */
#ifndef TR_OPTIMIZE_STAGES_H
#define TR_OPTIMIZE_STAGES_H

#include "optimize/stage.h"

extern const tr_stage tr_stage_finetune;
extern const tr_stage tr_stage_profile;
extern const tr_stage tr_stage_report;

#endif
