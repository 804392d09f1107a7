/* Which backend a run would take, and how its ranks would stand, without asking MPI or a device for
 * more than how many there are. */
#include "trainer/assume.h"

#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "trainer/device.h"
#include "trainer/gpu.h"

static void reason_of_cpus(const tr_config *c, const tr_topology *t, char *reason, size_t room)
{
    if (t->size == 1)
        snprintf(reason, room, "one rank: nothing to reduce");
    else if (c->run.collectives == TR_COLL_MPI)
        snprintf(reason, room, "plain MPI, as run.collectives asks");
    else if (!t->shared)
        snprintf(reason, room, "%d nodes with one rank each: plain MPI", t->nodes);
    else if (t->nodes == 1)
        snprintf(reason, room,
                 "one node, %d ranks share memory (plain MPI where /dev/shm is short)", t->size);
    else
        snprintf(reason, room, "%d nodes, %d ranks share memory on each, MPI between", t->nodes,
                 t->local_size);
}

/* A ring is what NCCL is taken to make, and MPI: no all-reduce sends less. */
static void reason_of_gpus(const tr_config *c, const tr_topology *t, char *reason, size_t room)
{
    char nodes[64] = "one node";
    if (t->size == 1) {
        snprintf(reason, room, "one rank: nothing to reduce");
        return;
    }
    if (t->nodes > 1)
        snprintf(nodes, sizeof nodes, "%d nodes, %d to each", t->nodes, t->local_size);
    snprintf(reason, room, "%d GPUs on %s, %s; a ring: 2 (N - 1) / N of the gradients' bytes",
             t->size, nodes, tr_config_nccl(c) ? "NCCL" : "MPI through pinned host memory");
}

void tr_assume_nodes(const tr_config *c, const tr_assumed *a, int nodes, tr_topology *t,
                     char *reason, size_t room)
{
    const int ranks = a->topology.size, local = (ranks + nodes - 1) / nodes;
    *t = (tr_topology){.size = ranks,
                       .local_size = local,
                       .nodes = nodes,
                       .slices = ranks / nodes,
                       .shared = local > 1 && c->run.collectives != TR_COLL_MPI,
                       .reason = reason};
    (a->backend->host ? reason_of_cpus : reason_of_gpus)(c, t, reason, room);
}

/* Of the CPU backend: its share of this machine's cores. */
static int threads_of(const tr_config *c, int ranks)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (c->run.threads > 0) return (int)c->run.threads;
    return cores > ranks ? (int)cores / ranks : 1;
}

/* Whether a run would go to GPUs, as far as that can be known here. */
static bool takes_gpus(const tr_config *c, tr_assumed *a)
{
    char why[512];
    const tr_backend *gpu = tr_program_gpu.backend;
    if (c->device == TR_DEVICE_CPU || !gpu) return false;
    if (c->device == TR_DEVICE_CUDA || gpu->devices(why, sizeof why) > 0) return true;
    snprintf(a->note, sizeof a->note, "device: auto plans for CPUs here: %s", why);
    return false;
}

tr_status tr_assume(const tr_config *c, int ranks, tr_assumed *out)
{
    tr_status st = TR_OK;
    memset(out, 0, sizeof *out);
    const bool gpus = takes_gpus(c, out);
    TR_TRY(gpus ? tr_config_fits_gpu(c) : tr_config_fits_cpu(c));
    out->backend = gpus ? tr_program_gpu.backend : &tr_cpu_backend;
    out->options = (tr_backend_options){.threads = threads_of(c, ranks)};
    if (gpus) {
        out->options = tr_gpu_options(c, out->options.threads, 0);
        out->options.dry = true;
    }
    out->topology.size = ranks;
    tr_assume_nodes(c, out, 1, &out->topology, out->reason, sizeof out->reason);
out:
    return st;
}
