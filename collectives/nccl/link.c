/* The communicators of a job: one over which gradients and weights go and, where gathers (SyncBN's
 * statistics) need not queue behind these, one more for them.
 *
 * Two communicators on one device hang where a kernel of each waits, on different ranks, for room
 * that the other one's has. NCCL's rules (user guide, "Using multiple NCCL communicators
 * concurrently"): up to 2.25 all operations must be put in one order by the streams. From 2.26 on
 * NCCL_LAUNCH_ORDER_IMPLICIT has NCCL do it, by the order of the calls on the host, which must be
 * the same on all ranks: reducer_nccl.c sees to that. With CUDA 12.3, or 12.9 for what is recorded
 * (and NCCL 2.27), a kernel then waits only for the start of the one before it, with older ones for
 * its end, which gains nothing.
 *
 *     2.25   bucket 0 ------------| gather 0 |           one stream
 *     2.26   bucket 0 ------------|                      started, then
 *              gather 0 |                                beside it
 *
 * So gathers wait for the start of the bucket that was issued last, thus for the end of the one
 * before it, and no longer for more. Where the library, the driver, or the user
 * (NCCL_LAUNCH_ORDER_IMPLICIT=0) has it otherwise, on one rank or all, there is one stream. */
#include "collectives/nccl/internal.h"
#include "collectives/nccl/nccl.h"

#include <stdlib.h>
#include <string.h>

/* What is gathered is a few kilobytes, and kernels of backward run beside it. */
enum { GATHER_BLOCKS = 2 };

#define ORDER "NCCL_LAUNCH_ORDER_IMPLICIT"

/* Sums that the switch makes (NVLS, of H100 on) differ from call to call, or with what was
 * allocated before (NVIDIA/nccl, issues 1497 and 2360). All ranks have the setting of their job. */
static void keep_order(const tr_comm *c)
{
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    if (!nvls)
        setenv("NCCL_NVLS_ENABLE", "0", 0);
    else if (strcmp(nvls, "0") != 0 && c->topology.rank == 0)
        tr_log(
            TR_LOG_WARN,
            "NCCL_NVLS_ENABLE=%s: another run may end with other bits, although the job asks for "
            "the same ones every time; unset it, or do without",
            nvls);
}

/* major * 10000 + minor * 100 + patch since 2.9 */
static tr_status find_version(tr_nccl_link *l, int *version)
{
    const tr_nccl none = {.c = l->base.c};
    const tr_status st = tr_nccl_check(&none, ncclGetVersion(version), "ncclGetVersion");
    snprintf(l->version, sizeof l->version, "%d.%d.%d", *version / 10000, *version / 100 % 100,
             *version % 100);
    return st;
}

/* This process has a communicator that was opened without the order: NCCL reads the variable once,
 * with the first operation, and later links find it as it was. Global, as what it stands for is:
 * NCCL keeps the setting by process, not by communicator. */
static bool disordered;

/* Kernels of two communicators run beside each other, and cannot wait for each other crosswise. */
static bool orders_itself(int version, bool recorded)
{
    const char *order = getenv(ORDER);
    int driver = 0, runtime = 0;
    if (disordered || (order && strcmp(order, "0") == 0)) return false;
    if (cudaDriverGetVersion(&driver) != cudaSuccess ||
        cudaRuntimeGetVersion(&runtime) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    if (recorded && (version < 22700 || driver < 12090)) return false;
    return version >= 22600 && driver >= 12030 && runtime >= 12030;
}

/* *Collective.* A group of this rank alone needs none. */
static tr_status open_gather(tr_nccl_link *l, tr_comm *gatherers)
{
    tr_status st = TR_OK;
    if (gatherers->topology.size > 1) st = tr_nccl_open(gatherers, GATHER_BLOCKS, &l->gather);
    /* Groups connect side by side; a failure is everybody's. */
    return tr_agree(l->base.c, st, NULL);
}

static tr_status open_all(tr_nccl_link *l, const tr_gpu_link_options *o, int version)
{
    tr_status st = TR_OK;
    tr_comm *c = l->base.c;
    TR_TRY(tr_comm_all(c, o->gathers && orders_itself(version, o->recorded), &l->beside));
    if (l->beside) setenv(ORDER, "1", 1);
    TR_TRY(tr_nccl_open(c, 0, &l->reduce));
    const char *order = getenv(ORDER);
    if (!order || strcmp(order, "1") != 0) disordered = true;
    if (o->gatherers || l->beside)
        TR_TRY(open_gather(l, o->gatherers ? o->gatherers : c));
    else
        l->gather = l->reduce;
out:
    return st;
}

tr_status tr_nccl_connect(tr_comm *c, const tr_gpu_link_options *o, tr_gpu_link **out)
{
    tr_status st = TR_OK;
    int version = 0;
    tr_nccl_link *l = TR_NEW(TR_MEM_OTHER, tr_nccl_link);
    if (l) l->base = (tr_gpu_link){&tr_nccl_reducers, c};
    if (o->deterministic) keep_order(c);
    st = l ? find_version(l, &version) : tr_last_status();
    TR_TRY(tr_agree(c, st, NULL));
    TR_TRY(open_all(l, o, version));
out:
    if (st != TR_OK) {
        const tr_error why = *tr_last_error();
        if (l) tr_nccl_disconnect(&l->base);
        tr_set_error(&why);
        return st;
    }
    *out = &l->base;
    return TR_OK;
}

void tr_nccl_disconnect(tr_gpu_link *opened)
{
    tr_nccl_link *l = (tr_nccl_link *)opened;
    if (l->gather != l->reduce) tr_nccl_close(l->gather);
    tr_nccl_close(l->reduce);
    tr_free(l);
}
