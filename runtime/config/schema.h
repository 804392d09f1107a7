/* Private to the schema: its table is in three files, one a part of the config. */
#ifndef TR_CONFIG_SCHEMA_H
#define TR_CONFIG_SCHEMA_H

#include "runtime/config/internal.h"

/* Offset of a member within the nested struct `outer` of tr_config. */
#define IN(outer, member) (offsetof(tr_config, outer.member) - offsetof(tr_config, outer))
/* What another value does to a training that goes on: NOTHING, SUMS, ... */
#define CHANGES(what) .change = TR_CHANGE_##what
/* The word that stands for 0. */
#define ZERO(text) .auto_text = (text), .auto_value = 0

extern const tr_field tr_data_fields[];      /* offsets in tr_config.data */
extern const tr_field tr_model_fields[];     /* in tr_config.model */
extern const tr_field tr_train_fields[];     /* in tr_config.train */
extern const tr_field tr_normalize_fields[]; /* in tr_normalize_config */
extern const tr_field tr_group_fields[];     /* in tr_group_config */

#endif
