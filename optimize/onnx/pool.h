/* The memory of a file that is written or read: released at once. Private. */
#ifndef TR_ONNX_POOL_H
#define TR_ONNX_POOL_H

#include <onnx.pb-c.h>

#include "runtime/base/base.h"

typedef struct {
    void *blocks;      /* a list */
    unsigned char *at; /* what is left of the last block for small pieces */
    size_t left;
    size_t held, most; /* bytes; most 0: any number */
    tr_status st;      /* of the first failure; afterwards nothing is allocated */
} tr_pool;

void tr_pool_close(tr_pool *p);
/* Zeroed; NULL on failure, which the pool keeps. */
void *tr_pool_get(tr_pool *p, size_t count, size_t size);
char *tr_pool_text(tr_pool *p, const char *fmt, ...) TR_PRINTF(2, 3);
char *tr_pool_copy(tr_pool *p, const char *text);
/* Appends `item` to the list of pointers at *list. NULL is not appended. */
void tr_pool_push(tr_pool *p, void *list, size_t *n, void *item);
/* A message with its init value. */
#define TR_MESSAGE(p, type, init) ((type *)tr_pool_message((p), sizeof(type), &(const type)init))
void *tr_pool_message(tr_pool *p, size_t size, const void *init);

#endif
