/* Memory that NCCL can reach from other GPUs without copying through its own buffers: ncclMemAlloc,
 * registered with the communicator (NCCL's user guide, "User Buffer Registration"; both from 2.19
 * on). Recorded operations are registered by NCCL itself, where the memory is of this kind. Either
 * must be so on all ranks or on none, so callers agree. ncclMemAlloc rounds up to the device's
 * granularity, 2 MiB as a rule; what counts is what was asked for.
 *
 * A library older than the headers lacks the functions: they are weak. */
#include "collectives/nccl/internal.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)

extern __typeof__(ncclMemAlloc) ncclMemAlloc __attribute__((weak));
extern __typeof__(ncclMemFree) ncclMemFree __attribute__((weak));
extern __typeof__(ncclCommRegister) ncclCommRegister __attribute__((weak));
extern __typeof__(ncclCommDeregister) ncclCommDeregister __attribute__((weak));

void *tr_nccl_alloc(void *job, size_t nbytes)
{
    tr_status st = TR_OK;
    const tr_nccl none = {0};
    void *p = NULL;
    (void)job;
    TR_NEED(ncclMemAlloc && ncclMemFree && ncclCommRegister && ncclCommDeregister, TR_UNSUPPORTED,
            "this NCCL has no memory of its own, 2.19 has");
    TR_TRY(tr_nccl_check(&none, ncclMemAlloc(&p, nbytes), "ncclMemAlloc"));
    TR_NEED(p, TR_MEMORY, "ncclMemAlloc gives no memory");
out:
    return st == TR_OK ? p : NULL;
}

/* NCCL may still use what it could not be made to let go: that is left to the end of the
 * process. */
void tr_nccl_free(void *job, void *p)
{
    if (!((const tr_job *)job)->lingers) (void)ncclMemFree(p);
}

tr_status tr_nccl_register(const tr_nccl *n, void *p, size_t nbytes, void **handle)
{
    *handle = NULL;
    return nbytes
               ? tr_nccl_check(n, ncclCommRegister(n->comm, p, nbytes, handle), "ncclCommRegister")
               : TR_OK;
}

void tr_nccl_deregister(const tr_nccl *n, void *handle)
{
    if (n->comm && handle) (void)ncclCommDeregister(n->comm, handle);
}

#else

void *tr_nccl_alloc(void *job, size_t nbytes)
{
    (void)job, (void)nbytes;
    (void)TR_FAIL(TR_UNSUPPORTED, "built with an NCCL that has no memory of its own, 2.19 has");
    return NULL;
}

void tr_nccl_free(void *job, void *p)
{
    (void)job, (void)p;
}

tr_status tr_nccl_register(const tr_nccl *n, void *p, size_t nbytes, void **handle)
{
    (void)n, (void)p, (void)nbytes;
    *handle = NULL;
    return TR_OK;
}

void tr_nccl_deregister(const tr_nccl *n, void *handle)
{
    (void)n, (void)handle;
}

#endif
