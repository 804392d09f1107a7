/* Which GPU is whose: a rank takes the one at its place among the ranks of its node, counted round
 * the devices that it sees. A launcher may show all GPUs to every rank, or one (or some) to each
 * by CUDA_VISIBLE_DEVICES; either way no two ranks of a node may end at one GPU, which NCCL refuses
 * and which would train at half the speed. So GPUs are told apart by where they sit on the PCI bus,
 * not by number. Every rank looks at all cards and comes to the same answer. */
#include "collectives/internal.h"

#include <string.h>

typedef struct {
    int32_t node, local_rank, count;
    char host[64], id[64], why[256];
} tr_gpu_card;

static tr_status fill(tr_gpu_card *mine, const tr_topology *t, const tr_backend *gpu, int *device)
{
    mine->node = t->node;
    mine->local_rank = t->local_rank;
    memcpy(mine->host, t->host, sizeof(mine->host));
    mine->count = gpu->devices(mine->why, sizeof(mine->why));
    if (mine->count <= 0) return TR_OK; /* all shall hear why */
    *device = t->local_rank % mine->count;
    if (gpu->device_id) return gpu->device_id(*device, mine->id, sizeof(mine->id));
    snprintf(mine->id, sizeof(mine->id), "device %d", *device);
    return TR_OK;
}

/* GPUs that the ranks of a node have, each counted once, and how many ranks there are. */
static int distinct(const tr_gpu_card *all, int size, int node, int *ranks)
{
    int n = 0;
    *ranks = 0;
    for (int r = 0; r < size; r++) {
        if (all[r].node != node) continue;
        bool seen = false;
        for (int k = 0; k < r && !seen; k++)
            seen = all[k].node == node && strcmp(all[k].id, all[r].id) == 0;
        n += !seen;
        ++*ranks;
    }
    return n;
}

static tr_status judge(const tr_gpu_card *all, int size)
{
    int without = 0, first = size;
    for (int r = size - 1; r >= 0; r--)
        if (all[r].count <= 0) without++, first = r;
    if (without > 0 && size == 1) return TR_FAIL(TR_KERNEL, "no GPU: %s", all[0].why);
    if (without > 0)
        return TR_FAIL(TR_KERNEL, "no GPU for %d of %d ranks, the first of them %d on %s: %s",
                       without, size, first, all[first].host, all[first].why);
    for (int r = 0; r < size; r++) {
        int ranks;
        if (all[r].local_rank != 0) continue;
        int gpus = distinct(all, size, all[r].node, &ranks);
        if (gpus < ranks)
            return TR_FAIL(TR_USAGE,
                           "node %s has %d GPU%s for %d ranks: start %d rank%s on it (mpirun "
                           "--map-by ppr:%d:node)",
                           all[r].host, gpus, gpus == 1 ? "" : "s", ranks, gpus,
                           gpus == 1 ? "" : "s", gpus);
    }
    return TR_OK;
}

tr_status tr_gpu_choose(tr_comm *c, const tr_backend *gpu, int *device)
{
    tr_status st = TR_OK;
    const tr_topology *t = &c->topology;
    int mine = 0;
    tr_gpu_card card = {0};
    tr_gpu_card *all = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof(*all));
    st = all ? fill(&card, t, gpu, &mine) : tr_last_error()->status;
    TR_TRY(tr_agree(c, st, NULL));
    TR_TRY(tr_comm_gather(c, &card, all, sizeof(card)));
    TR_TRY(judge(all, t->size));
    *device = mine;
out:
    tr_free(all);
    return st;
}
