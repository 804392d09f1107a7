/* Streams and events: the order in which a device works, what is recorded and replayed of it,
 * batches copied beside it, and the time that it takes. */
#ifndef TR_DEVICE_STREAM_H
#define TR_DEVICE_STREAM_H

#include "runtime/base/base.h"

/* The stream itself. A device whose calls return when their work is done has none. */
typedef struct tr_device_stream {
    tr_status (*finish)(void *ctx); /* returns when all that was put into the stream is done */
    /* Between kernels. *done: the device has come near enough that the next ones can be put into
     * the stream without the call waiting for room. Does not wait. */
    tr_status (*poll)(void *ctx, bool *done);
    void *(*handle)(void *ctx); /* the library's own, for collectives that work on the device */
} tr_device_stream;

/* Sections: what is put into the stream between begin and end is the same every time for one key.
 * The first time it runs as it comes, the second time it is recorded, from then on replayed. Each
 * set of recordings has its own keys; one section is open at a time. */
typedef struct tr_device_sections {
    tr_status (*open)(void *ctx, void **sections);
    void (*close)(void *sections); /* forgets what was recorded, when it has run; NULL is fine */
    /* *replay: leave out what stands between. TR_HINT_RECORDING: the device refuses to record; the
     * section is closed. */
    tr_status (*begin)(void *sections, uint64_t key, bool *replay);
    /* Whether the section begun last was to be recorded, which depends on the calls so far
     * alone. */
    bool (*recording)(const void *sections);
    /* What stands between is over, and went as `st` says. *was: it was to be recorded, which
     * depends on the calls so far alone. Then TR_OK: `end` launches it; TR_HINT_RECORDING: the
     * device refuses what was recorded, nothing has run, and the section is closed, as after any
     * other error. */
    tr_status (*recorded)(void *sections, tr_status st, bool *was);
    /* st: how what stood between went; returned, or the launch's error. Without `recorded` before
     * it, that as well. */
    tr_status (*end)(void *sections, tr_status st);
    /* Forgets all that was recorded in the context, when it has run: each key's next time is a
     * first one. To be called before anything is closed whose work was recorded: NCCL waits for
     * such recordings to go. */
    void (*drop)(void *ctx);
    void (*disable)(void *ctx); /* drop, and all sections run as they come from now on */
} tr_device_sections;

/* Batches on their way to the device, copied beside the kernels into the one of two slots that the
 * run before last has read. Each session has its own stage. A device that reads batches where the
 * host has them has none. */
typedef struct tr_device_staging {
    /* nbytes: of a slot. */
    tr_status (*open)(void *ctx, size_t nbytes, void **stage);
    void (*close)(void *stage);      /* waits for copies that are under way; NULL is fine */
    tr_status (*begin)(void *stage); /* the next slot; once a micro-batch, an empty one too */
    /* The next part of a batch, from host_alloc'ed memory: where kernels put into the stream from
     * now on find it (256-byte aligned). */
    tr_status (*part)(void *stage, const void *data, size_t nbytes, void **where);
    /* *done: the host's copies of all batches may be overwritten, and all that came before the last
     * two is done. Does not wait. */
    tr_status (*poll)(void *stage, bool *done);
    int (*slot)(const void *stage); /* of the batch begun last, 0 or 1: addresses depend on it */
} tr_device_staging;

/* Time by op. */
typedef struct tr_device_marks {
    tr_status (*open)(void *ctx, size_t n, void **marks);
    void (*close)(void *marks);              /* NULL is fine */
    tr_status (*set)(void *marks, size_t i); /* in stream order */
    /* seconds[i]: from mark i to i + 1, of n + 1 marks; waits. */
    tr_status (*read)(void *marks, double *seconds, size_t n);
} tr_device_marks;

#endif
