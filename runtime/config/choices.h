/* What keys of the config choose among: an enum each, in the order of the words in its table
 * (schema*.c). */
#ifndef TR_CONFIG_CHOICES_H
#define TR_CONFIG_CHOICES_H

typedef enum { TR_DEVICE_AUTO, TR_DEVICE_CPU, TR_DEVICE_CUDA } tr_device;
typedef enum { TR_PRECISION_FP32, TR_PRECISION_BF16, TR_PRECISION_FP16 } tr_precision;
typedef enum {
    TR_OPT_SGD,
    TR_OPT_ADAMW,
    TR_OPT_LION,
    TR_OPT_ADAM,
    TR_OPT_RMSPROP,
    TR_OPT_LARS,
    TR_OPT_LAMB
} tr_optimizer_kind;
typedef enum {
    TR_SCHEDULE_CONSTANT,
    TR_SCHEDULE_STEP,
    TR_SCHEDULE_COSINE,
    TR_SCHEDULE_LINEAR,
    TR_SCHEDULE_PLATEAU,
    TR_SCHEDULE_ONE_CYCLE,
    TR_SCHEDULE_EXPONENTIAL,
    TR_SCHEDULE_POLYNOMIAL,
    TR_SCHEDULE_RESTARTS
} tr_schedule_kind;
typedef enum { TR_NONFINITE_SKIP, TR_NONFINITE_STOP, TR_NONFINITE_ROLLBACK } tr_on_nonfinite;
typedef enum { TR_COLL_AUTO, TR_COLL_SHARED, TR_COLL_MPI, TR_COLL_NCCL } tr_collectives_kind;
typedef enum { TR_AFFINITY_AUTO, TR_AFFINITY_NONE } tr_affinity_kind;
typedef enum { TR_WIRE_FP32, TR_WIRE_BF16 } tr_wire_kind;
typedef enum { TR_SYNC_ALL, TR_SYNC_NODE, TR_SYNC_NONE } tr_sync_kind; /* who shares statistics */
typedef enum { TR_GRAPH_AUTO, TR_GRAPH_OFF } tr_cuda_graph;
typedef enum { TR_DETERMINISTIC_AUTO, TR_DETERMINISTIC_ON, TR_DETERMINISTIC_OFF } tr_deterministic;
typedef enum { TR_SHARD_AUTO, TR_SHARD_ON, TR_SHARD_OFF } tr_shard_kind;
typedef enum { TR_OFFLOAD_AUTO, TR_OFFLOAD_ON, TR_OFFLOAD_OFF } tr_offload_kind;
typedef enum {
    TR_LOSS_CROSS_ENTROPY,
    TR_LOSS_MSE,
    TR_LOSS_BCE,
    TR_LOSS_L1,
    TR_LOSS_HUBER,
    TR_LOSS_SMOOTH_L1,
    TR_LOSS_FOCAL
} tr_loss_kind;
typedef enum { TR_TARGETS_LABELS, TR_TARGETS_PROBABILITIES } tr_targets_kind;
typedef enum { TR_ANNEAL_COS, TR_ANNEAL_LINEAR } tr_anneal_kind;
/* What evaluations measure beside the loss. */
typedef enum {
    TR_METRIC_ACCURACY,
    TR_METRIC_TOP5,
    TR_METRIC_F1,
    TR_METRIC_AUC,
    TR_METRIC_MAE,
    TR_METRIC_R2,
    TR_METRIC_PERPLEXITY,
    TR_METRIC_BITS_PER_BYTE,
    TR_METRICS
} tr_metric;
/* Whose weights model.h5 holds. auto: ema where train.ema is set, else last. */
typedef enum { TR_RESULT_AUTO, TR_RESULT_LAST, TR_RESULT_BEST, TR_RESULT_EMA } tr_result;
typedef enum {
    TR_RECOMPUTE_NONE,
    TR_RECOMPUTE_BLOCKS,
    TR_RECOMPUTE_EVERY,
    TR_RECOMPUTE_SEGMENTS,
    TR_RECOMPUTE_AUTO /* what run.memory_limit takes; without one: none */
} tr_recompute_kind;
typedef enum {
    TR_FORMAT_AUTO, /* from the extension: .h5 .hdf5; .idx*, *-ubyte, .gz; .npy; .npz; .bin; .csv,
                       .tsv */
    TR_FORMAT_HDF5,
    TR_FORMAT_IDX,
    TR_FORMAT_NPY,
    TR_FORMAT_CIFAR10,
    TR_FORMAT_CIFAR100,
    TR_FORMAT_SYNTHETIC,
    TR_FORMAT_CSV,
    TR_FORMAT_FOLDER, /* of images, by class */
    TR_FORMAT_NPZ,
    TR_FORMAT_TEXT,  /* a file's bytes as ids, in windows of the model's input */
    TR_FORMAT_TOKENS /* numbers of tokens, likewise */
} tr_data_format;
typedef enum { TR_TOKENS_AUTO, TR_TOKENS_U8, TR_TOKENS_U16, TR_TOKENS_U32 } tr_tokens_type;
/* What a table's empty fields are. */
typedef enum { TR_MISSING_ERROR, TR_MISSING_DROP, TR_MISSING_ZERO } tr_missing;

#endif
