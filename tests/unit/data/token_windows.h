/* Windows of T tokens of a text or a token file, whose tokens are numbers that their places
 * give. */
#ifndef TR_TEST_DATA_TOKEN_WINDOWS_H
#define TR_TEST_DATA_TOKEN_WINDOWS_H

#include "helpers.h"

enum { T = 4, TOKENS = 19 };

/* Reads (T) ids of 256, has (T, 256) classes. */
static inline void open_world(world *w, const char *path, int format)
{
    world_open(w, 1, (int64_t[]){T}, 256);
    w->inputs[0].ids = 256;
    w->m.rows = T;
    w->m.outputs = 256 * T;
    w->m.ndim_target = 1;
    w->m.target_dims[0] = T;
    w->c.data.train = (tr_source_config){
        .path = (char *)path, .format = format, .documents = -1, .present = true};
}

static inline uint32_t token(uint64_t i)
{
    return (uint32_t)(i * 37 % 251);
}

static inline void write_tokens(const world *w, const char *name, size_t size, uint64_t n,
                                const void *head, size_t nhead)
{
    static uint8_t bytes[8192];
    memcpy(bytes, head, nhead);
    for (uint64_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++)
            bytes[nhead + i * size + b] = (uint8_t)((uint64_t)token(i) >> (8 * b));
    write_bytes(w, name, bytes, nhead + n * size);
}

#endif
