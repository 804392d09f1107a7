/* The table of the config: every key, its type, default, range, unit and meaning. The reader, the
 * writer and the reference page all walk it; nothing else knows the keys. Its larger parts are in
 * schema_data.c and schema_train.c; model layers have tables of their own, with the graph. */
#include "runtime/config/level.h"
#include "runtime/config/schema.h"

#include <assert.h>
#include <string.h>

#define OF(member) offsetof(tr_config, member)
#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
static const char *const affinities[] = {"auto", "none", NULL};
static const char *const collectives[] = {"auto", "shared", "mpi", "nccl", NULL};
static const char *const graphs[] = {"auto", "off", NULL};
static const char *const wires[] = {"fp32", "bf16", NULL};
static const char *const switches[] = {"auto", "on", "off", NULL};
static const tr_field_word booleans[] = {
    {"true", TR_DETERMINISTIC_ON}, {"false", TR_DETERMINISTIC_OFF}, {NULL, 0}};

static const tr_field profile[] = {
    TR_INT("wait", IN(run.profile, wait), "0", 0, 1000000000, "steps",
           "at the start, that are left alone"),
    TR_INT("warmup", IN(run.profile, warmup), "3", 0, 1000000, "steps",
           "then, that are timed and forgotten"),
    TR_INT("active", IN(run.profile, active), "0", 0, 10000, "steps",
           "then, of which every op, reduction, wait and update is recorded; 0: no profile"),
    TR_END,
};

static const tr_field_word none_word[] = {{"none", 0}, {NULL, 0}};

static const tr_field run[] = {
    TR_CHOICE("level", IN(run, level), tr_level_names, "custom",
              "a preset of other keys, those of the table at the end of this reference; keys that "
              "are given, in the file or on the command line, win. `trainer check` prints which "
              "ones it set; custom: none",
              CHANGES(NOTHING)), /* what it sets is compared by itself */
    TR_INT("threads", IN(run, threads), "auto", 1, 4096, "threads",
           "of a rank; auto: one for each of its cores (affinity)", ZERO("auto"), CHANGES(THREADS)),
    TR_INT("nice", IN(run, nice), "0", -20, 19, NULL,
           "priority of every process, from 19 (takes what others leave) to -20 (needs the right "
           "to); 0: as it was started",
           CHANGES(NOTHING)),
    TR_CHOICE("affinity", IN(run, affinity), affinities, "auto",
              "auto: bind ranks and loader threads to cores; masks that no other rank's overlap "
              "are kept, what ranks of a node may use together is dealt out, near their GPUs; "
              "none: leave all masks",
              CHANGES(THREADS)),
    TR_CHOICE("collectives", IN(run, collectives), collectives, "auto",
              "how ranks exchange gradients. CPUs: shared memory within a node (shared: or fail), "
              "or MPI; GPUs: NCCL (nccl: or fail), or MPI through host memory",
              CHANGES(SUMS)),
    TR_CHOICE("cuda_graph", IN(run, cuda_graph), graphs, "auto",
              "GPUs: record a training step once and replay it; auto: wherever it can be recorded",
              CHANGES(NOTHING)),
    TR_ENTRY("deterministic", CHOICE, IN(run, deterministic), "auto",
             "on: the same bits in every run with as many ranks, and micro-batches (memory_limit). "
             "GPUs then take only algorithms "
             "that promise it: no sums of split products but those added in a fixed order, no "
             "timed choice (benchmark), NCCL without NVLS, the sums that NVLink switches make; "
             "off: the fastest that the libraries name; auto: off on GPUs, on on CPUs, where it "
             "costs nothing and off changes nothing; true is on, false off. A resumed run whose "
             "config does not say keeps what it was started with",
             .choices = switches, .words = booleans, CHANGES(KERNELS)),
    TR_BOOL("benchmark", IN(run, benchmark), "false",
            "GPUs: time the candidates for each product, convolution and attention at the start, "
            "instead of "
            "taking the library's first that runs; a resumed run may then choose otherwise, so it "
            "excludes "
            "deterministic: on",
            CHANGES(KERNELS)),
    TR_REAL("workspace_mb", IN(run, workspace_mb), "256", 1, 65536, "MB",
            "GPUs: the most scratch memory that one product or convolution may use",
            CHANGES(KERNELS)),
    TR_REAL("bucket_mb", IN(run, bucket_mb), "auto", 0.001, 4096, "MB",
            "gradients that are reduced together; auto: 4.2, on GPUs 26.2 (25 MiB), the first of a "
            "step 1.05. "
            "A bucket is as much larger as its last parameter makes it",
            ZERO("auto"), CHANGES(SUMS)),
    TR_CHOICE("wire", IN(run, wire), wires, "fp32",
              "type of gradients between nodes; bf16: CPUs only"),
    TR_CHOICE("shard_optimizer", IN(run, shard_optimizer), switches, "auto",
              "on: each rank keeps and updates its share of the optimizer's moments and the moving "
              "average (ZeRO-1), with as many bytes on the wire, in mixed precision fewer; off: "
              "all nodes, and ranks that "
              "share no memory, keep all of them; auto: on with several nodes of CPUs or several "
              "GPUs. Ranks that share a node's memory share them either way. Checkpoints are the "
              "same",
              CHANGES(SUMS)),
    TR_CHOICE("offload", IN(run, offload), switches, "auto",
              "GPUs: on: the optimizer's moments and the moving average lie in pinned host memory, "
              "and each update passes them through the GPU, part by part, beside its arithmetic: "
              "the same bits, for bytes over the link twice a step; auto: where a run under "
              "run.memory_limit, or micro_batch: max, fits the GPU in no other way; off: never. On "
              "CPUs there is nothing to offload: on is refused",
              CHANGES(NOTHING)),
    TR_SHAPED("skip_passes", IN(run, skip_passes), "",
              "list of passes over the graph that are left out, to compare (docs/passes.md)",
              TR_SCHEMA_NAMES),
    TR_BOOL("overcommit_memory", IN(run, overcommit_memory), "false",
            "train also where the job's ranks need more memory than their node has, which is told "
            "before anything is allocated; else such a job is refused. What trainer plan counts is "
            "set against what the node has left, or the control group (container, Slurm step)",
            CHANGES(NOTHING)),
    TR_TEXT("memory_limit", IN(run, memory_limit), "none",
            "what training may take: of a node's memory, which its ranks share, programs and all, "
            "or of each rank's GPU: 8GiB, 512MB; auto: what the node has left (less 5 %), its "
            "control group (container, Slurm step) regarded, or the GPU (less 5 %, at the least "
            "512 MiB). Where a step is too large, train.micro_batch: auto becomes the largest that "
            "fits, of models without batchnorm, and train.recompute: auto the segments that cost "
            "least, whichever takes less time together; train.eval.batch: auto is lowered where "
            "evaluations are too large. What was chosen stands in config.yaml of the run folder; a "
            "run that is resumed under a limit keeps its micro-batches. Gradients of other "
            "micro-batches are other sums in their last bits: the same limit gives the same bits "
            "where programs take about as much at their start (in steps of 32 MiB), auto where as "
            "much is left. What cannot fit is refused, with the smallest limit that would do",
            CHANGES(NOTHING)),
    TR_SHAPED(
        "chosen", IN(run, chosen), "",
        "not to be written by hand: of the run folder's config and of models, what stood in the "
        "place of values that memory_limit, or micro_batch: max, chose: {train: {micro_batch: "
        "auto}}. The run's own config keeps these values; another training of the model "
        "(finetune) chooses anew. A key that is set again is the user's",
        TR_SCHEMA_MAP, CHANGES(NOTHING)), /* likewise */
    TR_REAL(
        "memory_warn", IN(run, memory_warn), "auto", 0.01, 1, NULL,
        "a warning, once a node, where a rank finds more than this share of memory_limit in use "
        "there, or on its GPU; auto: " TEXT(
            TR_MEMORY_WARN_AUTO) "; none: no warning, nor is there one without a limit. "
                                 "Swapping is always told",
        .auto_text = "auto", .auto_value = -1, .words = none_word, CHANGES(NOTHING)),
    TR_REAL(
        "timeout", IN(run, timeout), "300", 1, 1e7, "s",
        "how long a rank waits for its peers before it gives up, and names those that did not "
        "come; while one of them is busy (a file, a measurement) and runs, nobody counts: after "
        "that time a warning says who. One that is stopped counts. So does one that is alone on "
        "another node and not heard of, after ten times as long",
        CHANGES(NOTHING)),
    TR_REAL("start_timeout", IN(run, start_timeout), TR_START_TIMEOUT, 1, 1e7, "s",
            "how long MPI may take to start, to make communicators and to end. It starts before "
            "the config is read: what is given on the command line counts from the beginning, "
            "what stands in the file from when it is known",
            CHANGES(NOTHING)),
    TR_MAP("profile", IN(run, profile), profile, "",
           "steps of the training that are written to trace.json in the run folder, those of all "
           "ranks on one clock (Perfetto opens it), and rank 0's, op by op, to profile.txt, "
           "profile.folded, profile.flame.svg and profile.roofline.svg, which a report shows, and "
           "to the log; the losses stay the same",
           CHANGES(NOTHING)),
    TR_END,
};

static const tr_field config[] = {
    TR_TEXT("name", OF(name), NULL, "of the experiment", CHANGES(NOTHING)),
    TR_INT("seed", OF(seed), "0", 0, 9.3e18, NULL, "of every random choice"),
    TR_TEXT("output", OF(output), "",
            "the run folder, relative to where the job starts; runs/NAME when not given",
            CHANGES(NOTHING)),
    TR_CHOICE("device", OF(device), devices, "auto",
              "what computes; auto: GPUs where every rank can have one of its own, else CPUs",
              CHANGES(MACHINE)),
    TR_MAP("data", OF(data), tr_data_fields, NULL, "where samples come from"),
    TR_MAP("model", OF(model), tr_model_fields, NULL, "what is trained"),
    TR_MAP("train", OF(train), tr_train_fields, NULL, "how it is trained"),
    TR_MAP("run", OF(run), run, "", "how the machines are used", CHANGES(MACHINE)),
    TR_LIST("pipeline", OF(pipeline), NULL,
            "the stages to run, in order, each by its name or as a map of its name to its options",
            CHANGES(NOTHING)),
    TR_END,
};

tr_change tr_config_change(const char *path)
{
    tr_change found = TR_CHANGE_NUMBERS;
    for (const tr_field *f = config; f && f->key;) {
        const size_t n = strcspn(path, ".");
        if (strncmp(f->key, path, n) != 0 || f->key[n]) {
            f++;
            continue;
        }
        if (f->change != TR_CHANGE_AS_ABOVE) found = f->change;
        if (!path[n]) break;
        path += n + 1;
        f = f->fields;
    }
    return found;
}

const tr_field *tr_config_fields(const tr_variant_def *stages, tr_config_table *t)
{
    static const tr_variant_def none[] = {{.name = NULL}};
    tr_field *pipeline = &t->fields[TR_COUNT(config) - 2];
    static_assert(TR_COUNT(config) <= TR_COUNT(t->fields), "tr_config_table holds all keys");
    memcpy(t->fields, config, sizeof config);
    if (stages && stages->name) snprintf(t->first, sizeof t->first, "[%s]", stages->name);
    pipeline->variants = stages ? stages : none;
    pipeline->dflt = stages && stages->name ? t->first : "";
    return t->fields;
}
