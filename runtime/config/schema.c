/* The table of the config: every key, its type, default, range, unit and meaning. The reader, the
 * writer and the reference page all walk it; nothing else knows the keys. Its larger parts are in
 * schema_data.c and schema_train.c; model layers have tables of their own, with the graph. */
#include "runtime/config/schema.h"

#define OF(member) offsetof(tr_config, member)

static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
static const char *const affinities[] = {"auto", "none", NULL};
static const char *const collectives[] = {"auto", "shared", "mpi", "nccl", NULL};
static const char *const graphs[] = {"auto", "off", NULL};
static const char *const wires[] = {"fp32", "bf16", NULL};

static const tr_field run[] = {
    {.key = "threads",
     .kind = TR_FIELD_INT,
     .offset = IN(run, threads),
     .dflt = "auto",
     ZERO("auto"),
     .min = 1,
     .max = 4096,
     .unit = "threads",
     .doc = "of a rank; auto: one for each of its cores (affinity)"},
    {.key = "affinity",
     .kind = TR_FIELD_CHOICE,
     .offset = IN(run, affinity),
     .choices = affinities,
     .dflt = "auto",
     .doc = "auto: bind ranks and loader threads to cores; masks that no other rank's overlap are "
            "kept, what ranks of a node may use together is dealt out, near their GPUs; none: "
            "leave all masks"},
    {.key = "collectives",
     .kind = TR_FIELD_CHOICE,
     .offset = IN(run, collectives),
     .choices = collectives,
     .dflt = "auto",
     .doc = "how ranks exchange gradients. CPUs: shared memory within a node (shared: or fail), or "
            "MPI; "
            "GPUs: NCCL (nccl: or fail), or MPI through host memory"},
    {.key = "cuda_graph",
     .kind = TR_FIELD_CHOICE,
     .offset = IN(run, cuda_graph),
     .choices = graphs,
     .dflt = "auto",
     .doc = "GPUs: record a training step once and replay it; auto: wherever it can be recorded"},
    {.key = "deterministic",
     .kind = TR_FIELD_BOOL,
     .offset = IN(run, deterministic),
     .dflt = "true",
     .doc = "GPUs: only kernels that give the same bits every time, and NCCL without NVLS, the "
            "sums that "
            "NVLink switches make"},
    {.key = "benchmark",
     .kind = TR_FIELD_BOOL,
     .offset = IN(run, benchmark),
     .dflt = "false",
     .doc = "GPUs: time the candidates for each product and convolution at the start, instead of "
            "taking "
            "the library's first; a resumed run may then choose otherwise, so it needs "
            "deterministic: false"},
    {.key = "workspace_mb",
     .kind = TR_FIELD_REAL,
     .offset = IN(run, workspace_mb),
     .dflt = "256",
     .min = 1,
     .max = 65536,
     .unit = "MB",
     .doc = "GPUs: the most scratch memory that one product or convolution may use"},
    {.key = "bucket_mb",
     .kind = TR_FIELD_REAL,
     .offset = IN(run, bucket_mb),
     .dflt = "auto",
     ZERO("auto"),
     .min = 0.001,
     .max = 4096,
     .unit = "MB",
     .doc = "gradients that are reduced together"},
    {.key = "wire",
     .kind = TR_FIELD_CHOICE,
     .offset = IN(run, wire),
     .choices = wires,
     .dflt = "fp32",
     .doc = "type of gradients between nodes; bf16: CPUs only"},
    {.key = "timeout",
     .kind = TR_FIELD_REAL,
     .offset = IN(run, timeout),
     .dflt = "300",
     .min = 1,
     .max = 1e7,
     .unit = "s",
     .doc = "how long a rank waits for its peers before it gives up; ten times that where "
            "it cannot see whether they are busy, as on other nodes"},
    {.key = NULL}};

static const tr_field config[] = {
    {.key = "name", .kind = TR_FIELD_STRING, .offset = OF(name), .doc = "of the experiment"},
    {.key = "seed",
     .kind = TR_FIELD_INT,
     .offset = OF(seed),
     .dflt = "0",
     .min = 0,
     .max = 9.3e18,
     .doc = "of every random choice"},
    {.key = "output",
     .kind = TR_FIELD_STRING,
     .offset = OF(output),
     .dflt = "",
     .doc = "the run folder, relative to where the job starts; runs/NAME when not given"},
    {.key = "device",
     .kind = TR_FIELD_CHOICE,
     .offset = OF(device),
     .choices = devices,
     .dflt = "auto",
     .doc = "what computes; auto: GPUs where every rank can have one of its own, else CPUs"},
    {.key = "data",
     .kind = TR_FIELD_MAP,
     .offset = OF(data),
     .fields = tr_data_fields,
     .doc = "where samples come from"},
    {.key = "model",
     .kind = TR_FIELD_MAP,
     .offset = OF(model),
     .fields = tr_model_fields,
     .doc = "what is trained"},
    {.key = "train",
     .kind = TR_FIELD_MAP,
     .offset = OF(train),
     .fields = tr_train_fields,
     .doc = "how it is trained"},
    {.key = "run",
     .kind = TR_FIELD_MAP,
     .offset = OF(run),
     .fields = run,
     .dflt = "",
     .doc = "how the machines are used"},
    {.key = "pipeline",
     .kind = TR_FIELD_NODE,
     .offset = OF(pipeline),
     .dflt = "",
     .doc = "the stages to run, in order; [train] when not given"},
    {.key = NULL}};

const tr_field *tr_config_fields(void)
{
    return config;
}
