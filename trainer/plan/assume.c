/* Which backend a run would take, and how its ranks would stand, without asking MPI, nor of devices
 * more than how many there are and whether they know the precision: whether they can be opened is
 * seen when a run does. */
#include "trainer/plan/assume.h"

#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "trainer/device/device.h"
#include "trainer/device/gpu.h"

/* Before a number of ranks a node. */
static const char *most_of(const tr_topology *t)
{
    return t->size % t->nodes == 0 ? "" : "up to ";
}

static void reason_of_cpus(const tr_config *c, const tr_topology *t, char *reason, size_t room)
{
    const char *most = most_of(t);
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
        snprintf(reason, room, "%d nodes, %s%d ranks share memory on each, MPI between", t->nodes,
                 most, t->local_size);
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
        snprintf(nodes, sizeof nodes, "%d nodes, %s%d to each", t->nodes, most_of(t),
                 t->local_size);
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
                       .most = local,
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

/* A run would need more GPUs than this machine has. Where it has none, GPUs elsewhere are meant. */
static void note_too_few(const tr_config *c, tr_assumed *a, int ranks, int gpus)
{
    if (gpus <= 0 || gpus >= ranks) return;
    snprintf(a->note, sizeof a->note,
             "%d ranks need as many GPUs and this machine has %d: the plan is for where there are "
             "enough; started here alone, the job would %s",
             ranks, gpus,
             c->device == TR_DEVICE_CUDA ? "be refused" : "take CPUs (device=cpu plans for them)");
}

/* device: auto: GPUs that this machine has and that know the precision. `why` not: [room]. */
static bool has_gpus(const tr_config *c, const tr_gpu *gpu, int ranks, char *why, size_t room,
                     tr_assumed *a)
{
    tr_status st = TR_OK;
    const int gpus = gpu->backend->devices(why, room);
    note_too_few(c, a, ranks, gpus);
    for (int d = 0; st == TR_OK && d < gpus && d < ranks; d++)
        st = gpu->backend->computes(d, (tr_precision)c->train.precision);
    if (gpus > 0 && st != TR_OK) snprintf(why, room, "%.400s", tr_last_error()->text);
    return gpus > 0 && st == TR_OK;
}

/* The GPU side where a run would go to GPUs, as far as that can be known here; else NULL and, where
 * one was looked for, `why` not: [room]. */
static tr_status takes_gpus(const tr_config *c, tr_assumed *a, int ranks, char *why, size_t room,
                            const tr_gpu **out)
{
    const bool automatic = c->device == TR_DEVICE_AUTO;
    why[0] = 0;
    *out = NULL;
    if (c->device == TR_DEVICE_CPU || !tr_gpu_built()) return TR_OK;
    const tr_status st = tr_gpu_load(automatic, out);
    if (!automatic) {
        if (st == TR_OK && ranks > 1)
            note_too_few(c, a, ranks, (*out)->backend->devices(why, room));
        return st;
    }
    if (st != TR_OK) snprintf(why, room, "%.400s", tr_last_error()->text);
    if (st == TR_OK && has_gpus(c, *out, ranks, why, room, a)) return TR_OK;
    *out = NULL;
    if (st == TR_OK || tr_last_error()->hint != TR_HINT_NO_DRIVER)
        snprintf(a->note, sizeof a->note, "device: auto plans for CPUs here: %s", why);
    return TR_OK;
}

tr_status tr_assume(const tr_config *c, int ranks, int nodes, tr_assumed *out)
{
    tr_status st = TR_OK;
    const tr_gpu *gpu;
    char why[512];
    const int local = (ranks + nodes - 1) / nodes;
    memset(out, 0, sizeof *out);
    TR_TRY(takes_gpus(c, out, local, why, sizeof why, &gpu));
    const tr_cpu_reason reason = {
        .tried = "device: auto looked for a GPU on this machine and plans for CPUs",
        .why = why,
        .instead = "plan for GPUs elsewhere (device=cuda)",
    };
    TR_TRY(gpu ? tr_config_fits_gpu(c) : tr_config_fits_cpu(c, why[0] ? &reason : NULL));
    out->backend = gpu ? gpu->backend : &tr_cpu_backend;
    out->threads = threads_of(c, local);
    if (gpu) {
        out->options = tr_gpu_options(c, 0, tr_config_nccl(c));
        out->options.dry = true;
    }
    out->topology.size = ranks;
    tr_assume_nodes(c, out, nodes, &out->topology, out->reason, sizeof out->reason);
out:
    return st;
}
