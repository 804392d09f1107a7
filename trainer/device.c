/* Which backend computes: what the config asks for, as far as every rank can have it. */
#include "trainer/trainer.h"

#include "kernels/cpu/cpu.h"
#include "trainer/gpu.h"

/* *Collective.* Every rank computes with what the weakest CPU has: replicated updates must agree to
 * the bit. */
static tr_status weakest_isa(tr_comm *comm, int *out)
{
    const int size = tr_comm_topology(comm)->size;
    int isa = tr_cpu_isa();
    int *all = tr_alloc(TR_MEM_OTHER, (size_t)size, sizeof *all);
    tr_status st = tr_agree(comm, all ? TR_OK : TR_MEMORY, NULL);
    if (st == TR_OK) st = tr_comm_gather(comm, &isa, all, sizeof isa);
    for (int r = 0; st == TR_OK && r < size; r++)
        if (all[r] < isa) isa = all[r];
    tr_free(all);
    *out = isa;
    return st;
}

tr_status tr_device_check(const tr_config *c)
{
    const tr_node *root = c->document.root;
    if (c->device == TR_DEVICE_CUDA && !tr_program_gpu.backend)
        return tr_node_fail(
            tr_node_get(root, "device"),
            "device: cuda is not in this program: build it where nvcc, cuDNN 9 and "
            "NCCL are (launch/setup -DTRIREME_CUDA=ON), or use device: cpu or auto");
    const bool cpu = c->device == TR_DEVICE_CPU || !tr_program_gpu.backend;
    if (cpu && c->train.precision == TR_PRECISION_FP16)
        return tr_node_fail(tr_node_get(tr_node_get(root, "train"), "precision"),
                            "train.precision: fp16 has no CPU kernels; use bf16 (or fp32)");
    if (!cpu && c->device == TR_DEVICE_CUDA && c->run.collectives == TR_COLL_SHARED)
        return tr_node_fail(tr_node_get(tr_node_get(root, "run"), "collectives"),
                            "run.collectives: shared is for CPUs; use nccl, mpi or auto");
    return TR_OK;
}

static tr_status choose_cpu(const tr_config *c, tr_comm *comm, const tr_affinity *affinity,
                            const tr_backend **out, tr_backend_options *o)
{
    tr_status st = TR_OK;
    const tr_node *root = c->document.root;
    if (c->train.precision == TR_PRECISION_FP16)
        st = tr_node_fail(tr_node_get(tr_node_get(root, "train"), "precision"),
                          "train.precision: fp16 has no CPU kernels; use bf16 (or fp32)");
    else if (c->run.collectives == TR_COLL_NCCL)
        st = tr_node_fail(tr_node_get(tr_node_get(root, "run"), "collectives"),
                          "run.collectives: nccl is for GPUs; use shared, mpi or auto");
    TR_TRY(tr_agree(comm, st, NULL));
    *out = &tr_cpu_backend;
    *o = (tr_backend_options){.threads = affinity->threads};
    TR_TRY(weakest_isa(comm, &o->isa));
out:
    return st;
}

/* *Collective.* TR_OK with the device where every rank has a GPU of its own. */
static tr_status choose_gpu(tr_comm *comm, int *device)
{
    const tr_backend *gpu = tr_program_gpu.backend;
    if (!gpu) return TR_FAIL(TR_UNSUPPORTED, "this program was built without CUDA");
    return tr_gpu_choose(comm, gpu, device);
}

tr_status tr_device_choose(const tr_config *c, tr_comm *comm, const tr_affinity *affinity,
                           const tr_backend **out, tr_backend_options *o)
{
    tr_status st = TR_OK;
    int device = 0;
    if (c->device == TR_DEVICE_CPU) return choose_cpu(c, comm, affinity, out, o);
    st = choose_gpu(comm, &device);
    if (st != TR_OK && c->device == TR_DEVICE_AUTO && !tr_comm_broken(comm)) {
        if (tr_program_gpu.backend && tr_comm_topology(comm)->rank == 0)
            tr_log(TR_LOG_INFO, "device: auto takes the CPU: %s", tr_last_error()->text);
        return choose_cpu(c, comm, affinity, out, o);
    }
    TR_TRY(st);
    *out = tr_program_gpu.backend;
    *o = (tr_backend_options){
        .threads = affinity->threads,
        .device = device,
        .tf32 = c->train.tf32,
        .deterministic = c->run.deterministic,
        .benchmark = c->run.benchmark,
        .graphs = c->run.cuda_graph == TR_GRAPH_AUTO,
        .workspace = (size_t)(c->run.workspace_mb * 1e6),
    };
out:
    return st;
}
