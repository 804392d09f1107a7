/* Which backend computes: what the config asks for, as far as every rank can have it. */
#include "trainer/device/device.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "trainer/device/gpu.h"

/* *Collective.* Every rank computes with what the weakest CPU has: replicated updates must agree to
 * the bit. */
static tr_status weakest_isa(tr_comm *comm, int *out)
{
    const int size = tr_comm_topology(comm)->size;
    int isa = tr_cpu_isa();
    int *all = tr_alloc(TR_MEM_OTHER, (size_t)size, sizeof *all);
    tr_status st = tr_agree(comm, all ? TR_OK : tr_last_status(), NULL);
    if (st == TR_OK) st = tr_comm_all_gather(comm, &isa, all, sizeof isa);
    for (int r = 0; st == TR_OK && r < size; r++)
        if (all[r] < isa) isa = all[r];
    tr_free(all);
    *out = isa;
    return st;
}

static const tr_node *value_of(const tr_config *c, const char *section, const char *key)
{
    return tr_node_get(tr_node_get(c->document.root, section), key);
}

static tr_status not_for_cpu(const tr_config *c, const char *section, const char *key,
                             const char *what, const char *use, const tr_cpu_reason *r)
{
    const tr_node *at = value_of(c, section, key);
    if (!r) return tr_node_fail(at, "%s.%s: %s; use %s", section, key, what, use);
    return tr_node_fail(at, "%s.%s: %s. %s: %s. Use %s, or %s", section, key, what, r->tried,
                        r->why, use, r->instead);
}

static tr_status not_for_gpu(const tr_config *c, const char *key, const char *what, const char *use)
{
    const char *chosen =
        c->device == TR_DEVICE_AUTO ? ", or device: cpu (device: auto takes GPUs here)" : "";
    return tr_node_fail(value_of(c, "run", key), "run.%s: %s; use %s%s", key, what, use, chosen);
}

tr_status tr_config_fits_cpu(const tr_config *c, const tr_cpu_reason *reason)
{
    if (c->train.precision == TR_PRECISION_FP16)
        return not_for_cpu(c, "train", "precision", "fp16 has no CPU kernels", "bf16 (or fp32)",
                           reason);
    if (c->run.collectives == TR_COLL_NCCL)
        return not_for_cpu(c, "run", "collectives", "nccl is for GPUs", "shared, mpi or auto",
                           reason);
    return TR_OK;
}

tr_status tr_config_fits_gpu(const tr_config *c)
{
    if (c->run.collectives == TR_COLL_SHARED)
        return not_for_gpu(c, "collectives", "shared is for CPUs", "nccl, mpi or auto");
    if (c->run.wire == TR_WIRE_BF16)
        return not_for_gpu(c, "wire", "bf16 is for CPUs, GPUs reduce gradients in fp32", "fp32");
    return TR_OK;
}

bool tr_config_nccl(const tr_config *c)
{
    return c->run.collectives != TR_COLL_MPI;
}

bool tr_config_deterministic(const tr_config *c, bool host)
{
    return host || c->run.deterministic == TR_DETERMINISTIC_ON;
}

tr_backend_options tr_gpu_options(const tr_config *c, int device, bool nccl)
{
    return (tr_backend_options){
        .device = device,
        .tf32 = c->train.tf32,
        .deterministic = tr_config_deterministic(c, false),
        .benchmark = c->run.benchmark,
        .graphs = c->run.cuda_graph == TR_GRAPH_AUTO && nccl,
        .workspace = (size_t)(c->run.workspace_mb * 1e6),
    };
}

void tr_device_describe(const tr_backend *b, void *ctx, int threads, char *buf, size_t size)
{
    b->describe(ctx, buf, size);
    const size_t n = strlen(buf);
    if (b->host) snprintf(buf + n, size - n, ", %d thread%s", threads, threads == 1 ? "" : "s");
}

tr_status tr_device_check(const tr_config *c)
{
    if (c->device == TR_DEVICE_CUDA && !tr_gpu_built())
        return tr_node_fail(
            tr_node_get(c->document.root, "device"),
            "device: cuda is not in this program: build it where nvcc, cuDNN 9 and "
            "NCCL are (launch/setup -DTRIREME_CUDA=ON), or use device: cpu or auto");
    if (c->device == TR_DEVICE_CUDA) return tr_config_fits_gpu(c);
    if (c->device == TR_DEVICE_CPU) return tr_config_fits_cpu(c, NULL);
    const tr_cpu_reason reason = {
        .tried = "device: auto takes CPUs",
        .why = "this program was built without CUDA",
        .instead = "build it where nvcc, cuDNN 9 and NCCL are (launch/setup -DTRIREME_CUDA=ON)",
    };
    return tr_gpu_built() ? TR_OK : tr_config_fits_cpu(c, &reason);
}

/* ---- Choosing ------------------------------------------------------------------------------- */

/* *Collective.* `why`: what stood against GPUs, where they were looked for; else NULL. */
static tr_status choose_cpu(const tr_config *c, tr_comm *comm, tr_log_level level, const char *why,
                            tr_chosen_device *out)
{
    const tr_cpu_reason reason = {
        .tried = "device: auto looked for a GPU for every rank and fell back to the CPU",
        .why = why,
        .instead = "start the job where every rank has a GPU",
    };
    tr_status st = tr_config_fits_cpu(c, why ? &reason : NULL);
    if (st == TR_OK && why && tr_comm_topology(comm)->rank == 0)
        tr_log(level, "device: auto takes the CPU: %s", why);
    TR_TRY(tr_agree(comm, st, NULL));
    *out = (tr_chosen_device){.backend = &tr_cpu_backend};
    TR_TRY(weakest_isa(comm, &out->options.isa));
out:
    return st;
}

/* Two ranks have instances of one GPU (MIG), which NCCL refuses, up to 2.30 as "Duplicate GPU". */
static bool goes_over_nccl(const tr_config *c, const tr_comm *comm, const tr_gpu_choice *choice)
{
    if (!tr_config_nccl(c)) return false;
    if (!choice->instances || c->run.collectives == TR_COLL_NCCL) return true;
    if (tr_comm_topology(comm)->rank == 0)
        tr_log(TR_LOG_INFO,
               "ranks have instances (MIG) of one GPU, which NCCL does not connect: gradients go "
               "through MPI and host memory (run.collectives: nccl tries it)");
    return false;
}

/* *Collective.* TR_OK with the device where every rank has a GPU of its own, none of out->without,
 * and for device: auto one that knows the precision. */
static tr_status choose_gpu(const tr_config *c, tr_comm *comm, tr_chosen_device *out)
{
    const bool automatic = c->device == TR_DEVICE_AUTO;
    const tr_precision precision = (tr_precision)c->train.precision;
    const tr_gpu *gpu;
    tr_status st;
    tr_gpu_choice choice;
    TR_TRY(tr_agree(comm, tr_gpu_load(automatic, &gpu), NULL));
    TR_TRY(tr_gpu_choose(comm, gpu->backend, out->without, &choice));
    if (automatic) TR_TRY(tr_agree(comm, gpu->backend->computes(choice.device, precision), NULL));
    const bool nccl = goes_over_nccl(c, comm, &choice);
    *out = (tr_chosen_device){gpu->backend, gpu->reducers, tr_gpu_options(c, choice.device, nccl),
                              nccl, out->without};
out:
    return st;
}

tr_status tr_device_choose(const tr_config *c, tr_comm *comm, bool trains, tr_chosen_device *out)
{
    tr_status st = TR_OK;
    *out = (tr_chosen_device){0};
    if (c->device == TR_DEVICE_CPU) return choose_cpu(c, comm, TR_LOG_INFO, NULL, out);
    st = choose_gpu(c, comm, out);
    if (st != TR_OK && c->device == TR_DEVICE_AUTO && !tr_comm_broken(comm)) {
        const tr_error why = *tr_last_error();
        const bool said = trains || why.hint != TR_HINT_NO_DRIVER;
        return choose_cpu(c, comm, said ? TR_LOG_INFO : TR_LOG_DEBUG,
                          tr_gpu_built() ? why.text : NULL, out);
    }
    if (st == TR_USAGE) st = tr_fail_behind(st, ", or set device: cpu");
    TR_TRY(st);
    TR_TRY(tr_agree(comm, tr_config_fits_gpu(c), NULL));
out:
    return st;
}

/* What ranks tell each other when some could not use their GPU. */
enum { FINE, FAILED, HOPELESS };

/* *Collective.* How many failed, in *failed; -1: there is no point in another try. */
static tr_status count_failed(tr_comm *comm, char mine, int *failed)
{
    const int size = tr_comm_topology(comm)->size;
    char *all = tr_alloc(TR_MEM_OTHER, (size_t)size, 1);
    tr_status st = tr_agree(comm, all ? TR_OK : tr_last_status(), NULL);
    if (st == TR_OK) st = tr_comm_all_gather(comm, &mine, all, 1);
    *failed = 0;
    for (int r = 0; st == TR_OK && r < size; r++) {
        if (all[r] == HOPELESS || *failed < 0)
            *failed = -1;
        else
            *failed += all[r] == FAILED;
    }
    tr_free(all);
    return st;
}

/* What fails on every rank while they connect, or on none that says so, is no GPU's fault. */
static bool worth_another(const tr_comm *comm, int failed, bool connecting)
{
    return failed > 0 && !(connecting && failed == tr_comm_topology(comm)->size);
}

tr_status tr_device_next(const tr_config *c, tr_comm *comm, tr_status st, tr_device_failure how,
                         tr_chosen_device *d)
{
    enum { BITS = 64 };
    const tr_error why = *tr_last_error();
    const bool marked = d->options.device < BITS;
    int failed;
    if (st == TR_OK || c->device != TR_DEVICE_AUTO || d->backend->host || tr_comm_broken(comm))
        return st;
    if (how.here && marked) d->without |= (uint64_t)1 << d->options.device;
    TR_TRY(count_failed(comm, how.here ? marked ? FAILED : HOPELESS : FINE, &failed));
    if (worth_another(comm, failed, how.connecting)) {
        st = choose_gpu(c, comm, d);
        if (st == TR_OK && tr_comm_topology(comm)->rank == 0)
            tr_log(TR_LOG_WARN, "device: auto takes another GPU: %s", why.text);
        if (st == TR_OK || tr_comm_broken(comm)) return st;
    }
    return choose_cpu(c, comm, TR_LOG_WARN, why.text, d); /* something is broken */
out:
    return st;
}
