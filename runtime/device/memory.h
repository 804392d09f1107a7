/* Memory: the arrays that kernels work on, and copies between them and the host's. */
#ifndef TR_DEVICE_MEMORY_H
#define TR_DEVICE_MEMORY_H

#include "runtime/base/base.h"

/* A library that allocates a device's memory in a way of its own. */
typedef struct tr_device_lender {
    void *ctx;
    void *(*alloc)(void *ctx, size_t nbytes); /* NULL with an error record */
    void (*free)(void *ctx, void *p);
} tr_device_lender;

/* Set-up only, but for zero, copy and download. */
typedef struct tr_device_memory {
    /* Zeroed, 256-byte aligned (CPU: 64), counted under `kind`; NULL with an error record. */
    void *(*alloc)(void *ctx, tr_mem_kind kind, size_t nbytes);
    /* The same, allocated by `from`, which must live until it is freed. NULL on the host. */
    void *(*borrow)(void *ctx, tr_mem_kind kind, size_t nbytes, const tr_device_lender *from);
    void (*free)(void *ctx, void *p); /* of both; NULL is fine */
    /* Host memory that copies to the device can run from in the background. */
    void *(*host_alloc)(void *ctx, tr_mem_kind kind, size_t nbytes);
    void (*host_free)(void *ctx, void *p);
    tr_status (*zero)(void *ctx, void *p, size_t nbytes); /* in stream order */
    /* Within the backend's memory, in stream order. */
    tr_status (*copy)(void *ctx, void *to, const void *from, size_t nbytes);
    /* In stream order; done when they return. */
    tr_status (*upload)(void *ctx, void *to, const void *host, size_t nbytes);
    tr_status (*download)(void *ctx, void *host, const void *from, size_t nbytes);
} tr_device_memory;

#endif
