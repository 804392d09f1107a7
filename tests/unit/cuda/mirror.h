/* The CUDA backend seen as one of the host: every kernel has copies of its operands on the device,
 * which are filled before and fetched after each run. So the tests of the CPU's kernels, which look
 * at memory directly, hold for the CUDA kernels too:
 *
 *     #include "tests/unit/cuda/mirror.h"
 *     #include "tests/unit/cpu/test_layernorm.c"
 *
 * Operands that share their bytes on the host share them on the device. rebind goes to and fro
 * between two copies. */
#ifndef TR_TEST_MIRROR_H
#define TR_TEST_MIRROR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "runtime/graph/ops.h"
#include "runtime/device/host.h"

#define TEST_MIRROR
#define tr_cpu_backend mirror_backend

enum { MIRROR_OPERANDS = TR_MAX_IN + TR_MAX_OUT };

typedef struct {
    tr_kernel base;
    tr_kernel *inner;
    void *ctx;
    const tr_graph *g;
    const tr_op *op;
    tr_binding host, device;
    void *spare[TR_MAX_IN];         /* the other copy of an input that is rebound */
    bool owned[MIRROR_OPERANDS];    /* inputs, then outputs */
    size_t nbytes[MIRROR_OPERANDS]; /* 0: absent */
    void *poison;                   /* for the workspace */
    tr_control *control;
    double *tally;
    int64_t *confusion;
    size_t cells;
    const tr_hooks *hooks; /* the test's, while it runs */
    tr_hooks ours;
    void *gathered; /* host memory for collectives */
    size_t gathered_size;
} mirror_kernel;

static inline void mirror_try(tr_status st, const char *what)
{
    if (st != TR_OK) fail_msg("%s: %s", what, tr_last_error()->text);
}

static inline void *mirror_alloc(mirror_kernel *k, size_t nbytes)
{
    void *p = tr_cuda_backend.memory->alloc(k->ctx, TR_MEM_OTHER, nbytes);
    if (!p) fail_msg("%s", tr_last_error()->text);
    return p;
}

static inline void **mirror_host(mirror_kernel *k, int i)
{
    return i < TR_MAX_IN ? &k->host.in[i] : &k->host.out[i - TR_MAX_IN];
}

static inline void **mirror_device(mirror_kernel *k, int i)
{
    return i < TR_MAX_IN ? &k->device.in[i] : &k->device.out[i - TR_MAX_IN];
}

static inline tr_status mirror_bind(tr_kernel *base, const tr_binding *b)
{
    mirror_kernel *k = (mirror_kernel *)base;
    k->host = *b;
    k->device.adds = b->adds;
    k->device.overwrites = b->overwrites;
    for (int i = 0; i < MIRROR_OPERANDS; i++) {
        void *host = *mirror_host(k, i);
        if (!host || k->nbytes[i] == 0) continue;
        size_t nbytes = k->nbytes[i];
        int same = 0;
        for (int j = 0; j < MIRROR_OPERANDS; j++)
            if (*mirror_host(k, j) == host && k->nbytes[j] > nbytes) nbytes = k->nbytes[j];
        while (same < i && *mirror_host(k, same) != host) same++;
        if (!*mirror_device(k, i))
            *mirror_device(k, i) = same < i ? *mirror_device(k, same) : mirror_alloc(k, nbytes);
        k->owned[i] = same == i;
    }
    if (k->inner->workspace && !k->device.workspace) {
        k->device.workspace = mirror_alloc(k, k->inner->workspace);
        k->poison = tr_alloc(TR_MEM_OTHER, k->inner->workspace, 1);
        assert_non_null(k->poison);
        memset(k->poison, 0xff, k->inner->workspace);
    }
    for (int i = 0; i < k->inner->npacked; i++)
        if (!k->device.packed[i]) k->device.packed[i] = mirror_alloc(k, k->inner->packed[i].nbytes);
    return k->inner->bind ? k->inner->bind(k->inner, &k->device) : TR_OK;
}

static inline void mirror_upload(mirror_kernel *k)
{
    for (int i = 0; i < MIRROR_OPERANDS; i++)
        if (*mirror_device(k, i))
            mirror_try(tr_cuda_backend.memory->upload(k->ctx, *mirror_device(k, i),
                                                      *mirror_host(k, i), k->nbytes[i]),
                       "upload");
    if (k->poison)
        mirror_try(tr_cuda_backend.memory->upload(k->ctx, k->device.workspace, k->poison,
                                                  k->inner->workspace),
                   "upload");
}

static inline tr_status mirror_pack(tr_kernel *base, int i)
{
    mirror_kernel *k = (mirror_kernel *)base;
    mirror_upload(k);
    const tr_status st = k->inner->pack(k->inner, i);
    if (st != TR_OK) return st;
    return tr_cuda_backend.memory->download(k->ctx, k->host.packed[i], k->device.packed[i],
                                            k->inner->packed[i].nbytes);
}

static inline tr_status mirror_gather(void *ctx, const void *send, void *recv, size_t nbytes)
{
    mirror_kernel *k = ctx;
    const size_t size = (size_t)k->hooks->size;
    char *at = k->gathered;
    assert_true((size + 1) * nbytes <= k->gathered_size);
    mirror_try(tr_cuda_backend.memory->download(k->ctx, at, send, nbytes), "download");
    const tr_status st = k->hooks->gather(k->hooks->ctx, at, at + nbytes, nbytes);
    if (st != TR_OK) return st;
    return tr_cuda_backend.memory->upload(k->ctx, recv, at + nbytes, size * nbytes);
}

static inline tr_status mirror_run(tr_kernel *base, const tr_run *run)
{
    mirror_kernel *k = (mirror_kernel *)base;
    const tr_backend *cuda = &tr_cuda_backend;
    const tr_control control = {.in.ordinal = run->ordinal, .loss_scale = run->loss_scale};
    tr_run r = *run;
    mirror_upload(k);
    for (int i = 0; i < k->inner->npacked; i++)
        mirror_try(cuda->memory->upload(k->ctx, k->device.packed[i], k->host.packed[i],
                                        k->inner->packed[i].nbytes),
                   "upload");
    mirror_try(cuda->memory->upload(k->ctx, k->control, &control, sizeof control), "upload");
    r.control = k->control;
    if (run->tally) {
        mirror_try(cuda->memory->upload(k->ctx, k->tally, run->tally, TR_TALLY * sizeof(double)),
                   "upload");
        r.tally = k->tally;
    }
    if (run->confusion && k->cells) {
        mirror_try(cuda->memory->upload(k->ctx, k->confusion, run->confusion, k->cells * 8),
                   "upload");
        r.confusion = k->confusion;
    }
    k->hooks = run->hooks;
    if (run->hooks) {
        k->ours = (tr_hooks){
            .ctx = k, .rank = run->hooks->rank, .size = run->hooks->size, .gather = mirror_gather};
        r.hooks = &k->ours;
    }
    const tr_status st = k->inner->run(k->inner, &r);
    mirror_try(cuda->stream->finish(k->ctx), "finish");
    if (st != TR_OK) return st;
    for (int i = 0; i < TR_MAX_OUT; i++)
        if (k->device.out[i])
            mirror_try(cuda->memory->download(k->ctx, k->host.out[i], k->device.out[i],
                                              k->nbytes[TR_MAX_IN + i]),
                       "download");
    for (int i = 0; i < k->op->nin; i++) { /* running statistics, and what is held */
        const int id = k->op->in[i];
        const tr_role role = id < 0 ? TR_ROLE_INPUT : k->g->tensors[id].role;
        if (k->device.in[i] && (role == TR_ROLE_STATE || role == TR_ROLE_HELD))
            mirror_try(cuda->memory->download(k->ctx, k->host.in[i], k->device.in[i], k->nbytes[i]),
                       "download");
    }
    if (run->tally)
        mirror_try(cuda->memory->download(k->ctx, run->tally, k->tally, TR_TALLY * sizeof(double)),
                   "download");
    if (run->confusion && k->cells)
        mirror_try(cuda->memory->download(k->ctx, run->confusion, k->confusion, k->cells * 8),
                   "download");
    return TR_OK;
}

static inline tr_status mirror_rebind(tr_kernel *base, int operand, void *data)
{
    mirror_kernel *k = (mirror_kernel *)base;
    if (operand < 0 || operand >= TR_MAX_IN || k->nbytes[operand] == 0)
        return k->inner->rebind(k->inner, operand, data);
    if (!k->spare[operand]) k->spare[operand] = mirror_alloc(k, k->nbytes[operand]);
    void *next = k->spare[operand];
    const tr_status st = k->inner->rebind(k->inner, operand, next);
    if (st != TR_OK) return st;
    if (!k->device.in[operand]) k->owned[operand] = true; /* bound for the first time */
    k->spare[operand] = k->device.in[operand];
    k->device.in[operand] = next;
    k->host.in[operand] = data;
    return TR_OK;
}

static inline void mirror_close_kernel(tr_kernel *base)
{
    mirror_kernel *k = (mirror_kernel *)base;
    const tr_backend *cuda = &tr_cuda_backend;
    for (int i = 0; i < MIRROR_OPERANDS; i++)
        if (k->owned[i]) cuda->memory->free(k->ctx, *mirror_device(k, i));
    for (int i = 0; i < TR_MAX_IN; i++) cuda->memory->free(k->ctx, k->spare[i]);
    cuda->memory->free(k->ctx, k->device.workspace);
    for (int i = 0; i < TR_MAX_PACKED; i++) cuda->memory->free(k->ctx, k->device.packed[i]);
    cuda->memory->free(k->ctx, k->control);
    cuda->memory->free(k->ctx, k->tally);
    cuda->memory->free(k->ctx, k->confusion);
    k->inner->close(k->inner);
    tr_free(k->poison);
    tr_free(k->gathered);
    tr_free(k);
}

static inline size_t mirror_classes(const tr_op *op)
{
    if (strcmp(tr_op_name(op), "cross_entropy") != 0 || !op->attrs) return 0;
    return ((const tr_cross_entropy_attrs *)op->attrs)->classes;
}

static inline tr_status mirror_prepare(void *ctx, const tr_graph *g, const tr_op *op,
                                       tr_kernel **out)
{
    tr_kernel *inner;
    const tr_status st = tr_cuda_backend.kernels->prepare(ctx, g, op, &inner);
    if (st != TR_OK) return st;
    mirror_kernel *k = TR_NEW(TR_MEM_OTHER, mirror_kernel);
    assert_non_null(k);
    k->inner = inner;
    k->ctx = ctx;
    k->g = g;
    k->op = op;
    k->base = *inner;
    k->base.bind = mirror_bind;
    k->base.pack = inner->pack ? mirror_pack : NULL;
    k->base.run = mirror_run;
    k->base.rebind = inner->rebind ? mirror_rebind : NULL;
    k->base.close = mirror_close_kernel;
    size_t most = 64;
    for (int i = 0; i < MIRROR_OPERANDS; i++) {
        const bool in = i < TR_MAX_IN;
        const int id = in ? (i < op->nin ? op->in[i] : -1)
                          : (i - TR_MAX_IN < op->nout ? op->out[i - TR_MAX_IN] : -1);
        k->nbytes[i] = id >= 0 ? g->tensors[id].nbytes : 0;
        if (k->nbytes[i] > most) most = k->nbytes[i];
    }
    k->cells = mirror_classes(op) * mirror_classes(op);
    k->control = mirror_alloc(k, sizeof *k->control);
    k->tally = mirror_alloc(k, TR_TALLY * sizeof(double));
    if (k->cells) k->confusion = mirror_alloc(k, k->cells * sizeof(int64_t));
    k->gathered_size = 9 * most;
    k->gathered = tr_alloc(TR_MEM_OTHER, k->gathered_size, 1);
    assert_non_null(k->gathered);
    *out = &k->base;
    return TR_OK;
}

#ifndef MIRROR_WORKSPACE /* 0: no library's plan that needs some */
#define MIRROR_WORKSPACE ((size_t)64 << 20)
#endif
/* With which contexts are opened. */
static tr_backend_options mirror_options = {.deterministic = true, .workspace = MIRROR_WORKSPACE};

static inline tr_status mirror_open(const tr_backend_options *o, void **ctx)
{
    tr_backend_options cuda = mirror_options;
    cuda.device = o->device;
    return tr_cuda_backend.open(&cuda, ctx);
}

static inline void mirror_close(void *ctx)
{
    tr_cuda_backend.close(ctx);
}

static inline const char *mirror_unsupported(void *ctx, const tr_op_def *def, tr_dtype type)
{
    return tr_cuda_backend.kernels->unsupported(ctx, def, type);
}

static const tr_device_kernels mirror_kernels = {.unsupported = mirror_unsupported,
                                                 .prepare = mirror_prepare};
static const __attribute__((unused)) tr_backend mirror_backend = {.name = "cuda, mirrored",
                                                                  .host = true,
                                                                  .open = mirror_open,
                                                                  .close = mirror_close,
                                                                  .memory = &tr_host_memory,
                                                                  .kernels = &mirror_kernels};

#endif
