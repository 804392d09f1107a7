/* Device memory and pinned host memory.
 *
 * Blocks are found by address in a table of 1024 chains (a context has some dozens), so that a free
 * knows size and kind. Each block has its entry from tr_alloc: an allocation on the device counts
 * in tr_mem_calls like any other, and shows where the step loop must not allocate. */
#include "kernels/cuda/core.h"

#include <string.h>

enum { CHAINS = 1024 };
/* Device memory is given out in pieces of 2 MiB. */
#define GRAIN ((size_t)2 << 20)

typedef struct block {
    struct block *next;
    void *p;
    size_t nbytes;
    tr_mem_kind kind;
    bool device;
    const tr_device_lender *from; /* NULL: the CUDA runtime */
} block;

struct tr_cuda_memory {
    block *chains[CHAINS];
};

static size_t chain_of(const void *p)
{
    return (size_t)(((uintptr_t)p >> 8) * 0x9e3779b97f4a7c15ull >> 32) % CHAINS;
}

static tr_status remember(tr_cuda_memory *m, block what)
{
    block *b = TR_NEW(TR_MEM_OTHER, block);
    if (!b) return tr_last_status();
    const size_t chain = chain_of(what.p);
    *b = what;
    b->next = m->chains[chain];
    m->chains[chain] = b;
    tr_mem_count(b->kind, (int64_t)b->nbytes);
    return TR_OK;
}

/* False when `p` is not a block of this context. */
static bool forget(tr_cuda_memory *m, const void *p, block *was)
{
    block **at = &m->chains[chain_of(p)];
    while (*at && (*at)->p != p) at = &(*at)->next;
    block *b = *at;
    if (b) *at = b->next;
    if (!b) return false;
    tr_mem_count(b->kind, -(int64_t)b->nbytes);
    *was = *b;
    tr_free(b);
    return true;
}

/* The device is a matter of the calling thread, and its default may be another. */
static tr_status on_device(const tr_cuda *cuda)
{
    return tr_cuda_check(cudaSetDevice(cuda->o.device), "cudaSetDevice");
}

/* What is under way may still use a block that is freed. Whether or not this works: the pointer
 * says where it lies. */
static void quiet(tr_cuda *cuda)
{
    (void)cudaSetDevice(cuda->o.device);
    if (cuda->stream) (void)cudaStreamSynchronize(cuda->stream);
    tr_cuda_stages_quiet(cuda);
}

/* " for activations"; nothing for what has no name. */
static const char *purpose(tr_mem_kind kind, char buf[32])
{
    buf[0] = 0;
    if (kind != TR_MEM_OTHER) snprintf(buf, 32, " for %s", tr_mem_kind_name(kind));
    return buf;
}

/* Where there is room for it, memory is not what was lacking, and less of it would not help. */
static tr_status device_full(cudaError_t e, tr_mem_kind kind, size_t nbytes)
{
    char asked[32], unused[32], all[32], what[32];
    size_t available = 0, total = 0;
    const tr_status st = tr_cuda_check(e, "cudaMalloc");
    if (st != TR_MEMORY) return st;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) (void)cudaGetLastError();
    tr_format_bytes((double)nbytes, asked, sizeof asked);
    tr_format_bytes((double)available, unused, sizeof unused);
    tr_format_bytes((double)total, all, sizeof all);
    (void)TR_FAIL(TR_MEMORY,
                  "%s of device memory%s could not be allocated, %s of the GPU's %s are free "
                  "(cudaMalloc: %s, %s)",
                  asked, purpose(kind, what), unused, all, cudaGetErrorString(e),
                  cudaGetErrorName(e));
    return tr_fail_hint(TR_MEMORY,
                        nbytes + GRAIN <= available ? TR_HINT_NONE : TR_HINT_DEVICE_MEMORY);
}

/* Sizes are what was asked for: what a granularity adds to it is nobody's. */
static tr_status take(block *b)
{
    const size_t nbytes = b->nbytes > 0 ? b->nbytes : 1;
    if (b->from) {
        b->p = b->from->alloc(b->from->ctx, nbytes);
        return b->p ? TR_OK : tr_last_status();
    }
    const cudaError_t e = cudaMalloc(&b->p, nbytes); /* aligned to 256 bytes */
    if (e == cudaSuccess) return TR_OK;
    b->p = NULL;
    return device_full(e, b->kind, b->nbytes);
}

static void give_back(tr_cuda *cuda, const block *b)
{
    quiet(cuda);
    if (b->from)
        b->from->free(b->from->ctx, b->p);
    else
        (void)cudaFree(b->p);
    (void)cudaGetLastError();
}

static void *allocate(tr_cuda *cuda, block b)
{
    tr_status st = TR_OK;
    TR_TRY(on_device(cuda));
    TR_TRY(take(&b));
    /* Waited for: other streams may be the first to touch it. */
    TR_CUDA_TRY(cudaMemsetAsync(b.p, 0, b.nbytes > 0 ? b.nbytes : 1, cuda->stream));
    TR_CUDA_TRY(cudaStreamSynchronize(cuda->stream));
    TR_TRY(remember(cuda->memory, b));
out:
    if (st == TR_OK) return b.p;
    if (b.p) give_back(cuda, &b);
    return NULL;
}

void *tr_cuda_alloc(void *ctx, tr_mem_kind kind, size_t nbytes)
{
    return allocate(ctx, (block){.nbytes = nbytes, .kind = kind, .device = true});
}

void *tr_cuda_borrow(void *ctx, tr_mem_kind kind, size_t nbytes, const tr_device_lender *from)
{
    return allocate(ctx, (block){.nbytes = nbytes, .kind = kind, .device = true, .from = from});
}

void tr_cuda_free(void *ctx, void *p)
{
    tr_cuda *cuda = ctx;
    block b;
    if (!p) return;
    if (!forget(cuda->memory, p, &b)) {
        tr_log(TR_LOG_ERROR, "%p is freed, which is no device memory of this context", p);
        return;
    }
    give_back(cuda, &b);
}

static tr_status host_full(cudaError_t e, tr_mem_kind kind, size_t nbytes)
{
    char asked[32], left[32], what[32];
    const size_t available = tr_mem_available();
    const tr_status st = tr_cuda_check(e, "cudaHostAlloc");
    if (st != TR_MEMORY) return st;
    tr_format_bytes((double)nbytes, asked, sizeof asked);
    tr_format_bytes((double)available, left, sizeof left);
    (void)TR_FAIL(
        TR_MEMORY,
        "%s of pinned host memory%s could not be allocated, %s of the host's memory are free "
        "(cudaHostAlloc: %s, %s)",
        asked, purpose(kind, what), available == SIZE_MAX ? "an unknown part" : left,
        cudaGetErrorString(e), cudaGetErrorName(e));
    return tr_fail_hint(TR_MEMORY, TR_HINT_PINNED_MEMORY);
}

void *tr_cuda_host_alloc(void *ctx, tr_mem_kind kind, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    void *p = NULL;
    TR_TRY(on_device(cuda));
    const cudaError_t e = cudaHostAlloc(&p, nbytes > 0 ? nbytes : 1, cudaHostAllocDefault);
    if (e != cudaSuccess) {
        p = NULL;
        TR_TRY(host_full(e, kind, nbytes));
    }
    memset(p, 0, nbytes > 0 ? nbytes : 1);
    TR_TRY(remember(cuda->memory, (block){.p = p, .nbytes = nbytes, .kind = kind}));
out:
    if (st != TR_OK) {
        if (p) (void)cudaFreeHost(p);
        return NULL;
    }
    return p;
}

void tr_cuda_host_free(void *ctx, void *p)
{
    tr_cuda *cuda = ctx;
    block b;
    if (!p) return;
    if (!forget(cuda->memory, p, &b)) {
        tr_log(TR_LOG_ERROR, "%p is freed, which is no pinned memory of this context", p);
        return;
    }
    quiet(cuda);
    (void)cudaFreeHost(p);
    (void)cudaGetLastError();
}

tr_status tr_cuda_zero(void *ctx, void *p, size_t nbytes)
{
    tr_cuda *cuda = ctx;
    if (nbytes == 0) return TR_OK;
    return tr_cuda_check(cudaMemsetAsync(p, 0, nbytes, cuda->stream), "cudaMemsetAsync");
}

tr_status tr_cuda_copy(void *ctx, void *to, const void *from, size_t nbytes)
{
    tr_cuda *cuda = ctx;
    if (nbytes == 0) return TR_OK;
    return tr_cuda_check(cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDeviceToDevice, cuda->stream),
                         "cudaMemcpyAsync on the device");
}

tr_status tr_cuda_finish(void *ctx)
{
    tr_cuda *cuda = ctx;
    return tr_cuda_check(cudaStreamSynchronize(cuda->stream), "cudaStreamSynchronize");
}

size_t tr_cuda_memory_held(const tr_cuda *cuda)
{
    tr_cuda_memory *m = cuda->memory;
    size_t sum = 0;
    for (int i = 0; i < CHAINS; i++)
        for (const block *b = m->chains[i]; b; b = b->next)
            if (b->device && b->kind != TR_MEM_OTHER) sum += b->nbytes;
    return sum;
}

tr_status tr_cuda_memory_open(tr_cuda *cuda)
{
    cuda->memory = TR_NEW(TR_MEM_OTHER, tr_cuda_memory);
    if (!cuda->memory) return tr_last_status();
    return TR_OK;
}

void tr_cuda_memory_close(tr_cuda *cuda)
{
    tr_cuda_memory *m = cuda->memory;
    size_t left = 0;
    if (!m) return;
    for (int i = 0; i < CHAINS; i++) {
        while (m->chains[i]) {
            block *b = m->chains[i];
            m->chains[i] = b->next;
            left += b->nbytes;
            tr_mem_count(b->kind, -(int64_t)b->nbytes);
            tr_free(b);
        }
    }
    if (left > 0) tr_log(TR_LOG_ERROR, "%zu bytes of device or pinned memory were not freed", left);
    tr_free(m);
    cuda->memory = NULL;
}
