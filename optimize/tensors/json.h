/* The JSON of a safetensors header, read from left to right without a tree. Bytes are nobody's we
 * trust: every function fails at the first one that is not what it must be, with its place.
 * Private. */
#ifndef TR_TENSORS_JSON_H
#define TR_TENSORS_JSON_H

#include "runtime/base/base.h"

typedef struct {
    const char *file; /* for errors */
    const char *text;
    size_t at, end;
} tr_json;

/* TR_FILE "FILE: header, byte N: text". */
tr_status tr_json_fail(const tr_json *j, const char *text);
/* Skips space, then takes the character. */
tr_status tr_json_take(tr_json *j, char c);
/* Whether it is the next one behind space; then it is taken. */
bool tr_json_next(tr_json *j, char c);
/* A string of printable UTF-8, escapes resolved, ended by 0; TR_FILE where it takes more than
 * `room` bytes. */
tr_status tr_json_string(tr_json *j, char *to, size_t room);
/* Any string, forgotten. */
tr_status tr_json_skip_string(tr_json *j);
/* A whole number from 0 up to 2^63 - 1. */
tr_status tr_json_count(tr_json *j, uint64_t *out);

#endif
