/* A backend that is open, and small checks on what lies in its memory. */
#ifndef TR_TEST_CUDA_CORE_HARNESS_H
#define TR_TEST_CUDA_CORE_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/core.h"
#include "kernels/cuda/cuda.h"

static const tr_backend *const b = &tr_cuda_backend;

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        if ((expr) != TR_OK) fail_msg("%s: %s", #expr, tr_last_error()->text);                     \
    } while (0)
#define assert_told(expr, wanted, words)                                                           \
    do {                                                                                           \
        assert_int_equal((expr), (wanted));                                                        \
        if (!strstr(tr_last_error()->text, (words)))                                               \
            fail_msg("\"%s\" is not in \"%s\"", (words), tr_last_error()->text);                   \
    } while (0)

static inline tr_cuda *open_with(bool graphs)
{
    void *ctx = NULL;
    const tr_backend_options o = {.graphs = graphs, .workspace = 32 << 20};
    assert_ok(b->open(&o, &ctx));
    return ctx;
}

/* One context's recordings and what it trains with, opened when first asked for. */
static struct {
    tr_cuda *cuda;
    void *sections, *training;
} opened __attribute__((unused));

static inline void *sections_of(tr_cuda *cuda)
{
    if (!opened.sections) assert_ok(b->sections->open(cuda, &opened.sections));
    opened.cuda = cuda;
    return opened.sections;
}

static inline void *training_of(tr_cuda *cuda)
{
    if (!opened.training) assert_ok(b->training->open(cuda, 1, &opened.training));
    opened.cuda = cuda;
    return opened.training;
}

static inline void close_with(tr_cuda *cuda)
{
    if (opened.cuda) assert_ptr_equal(opened.cuda, cuda);
    b->sections->close(opened.sections);
    b->training->close(opened.training);
    memset(&opened, 0, sizeof opened);
    b->close(cuda);
}

/* Bytes that tell where they were meant to be. */
static inline void fill(unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)(seed * 31 + i * 7 + i / 251);
}

static inline void assert_filled(tr_cuda *cuda, const void *device, size_t n, unsigned seed)
{
    unsigned char *is = malloc(n), *should = malloc(n);
    fill(should, n, seed);
    assert_ok(b->memory->download(cuda, is, device, n));
    assert_memory_equal(is, should, n);
    free(is);
    free(should);
}

static inline size_t held(void)
{
    size_t sum = 0;
    for (int k = 0; k < TR_MEM_KINDS; k++) sum += tr_mem_held((tr_mem_kind)k);
    return sum;
}

#endif
