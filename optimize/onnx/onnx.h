/* Networks as ONNX files, and ONNX files as networks. All Local. */
#ifndef TR_ONNX_H
#define TR_ONNX_H

#include "optimize/network/network.h"

#define TR_ONNX_OPSET_MIN 13
#define TR_ONNX_OPSET     17
#define TR_ONNX_OPSET_MAX 21

typedef struct {
    int64_t opset;    /* 13 to 21; 0: 17 */
    tr_dtype weights; /* TR_F32, or TR_F16: stored as float16, cast to float32 in the graph */
    /* Whose resolved text the file carries, with what its inputs are; its data.normalize where
     * `normalize`. NULL: none of these. */
    const tr_config *config;
    /* `sequence` is no dimension, even where it can be (tr_onnx_find_sequence). */
    bool fixed_sequence;
    bool normalize; /* the graph takes values as they are in the data files, and gives targets so */
    const char *source_sha256; /* of the run file that the values are of; NULL: not said */
    /* From so many bytes of values on they are in a file of their own, PATH.data; 0: where the
     * format demands it: where all in one file would have 2 GB or more. */
    uint64_t external_over;
    uint64_t
        message_max; /* bytes that PATH may have; 0: what the format allows. Tests have less. */
} tr_onnx_options;

/* Writes the network in evaluate mode, as `path`, whole or not at all: inputs (batch, ...) of the
 * model's, or (batch, sequence, ...), one output, the last layer's, without the loss. Names: inputs
 * and outputs of layers as in the model, values as in run files (conv2d1.weight). TR_UNSUPPORTED
 * names the layer that ONNX has no word for. */
tr_status tr_onnx_write(const char *path, const tr_network *n, const tr_onnx_options *o);
/* What is to be fed to a file that is written so, in words that follow "takes inputs", as the file
 * says it (`trireme.inputs`). *out: to be freed by tr_free. o->config must be there. */
tr_status tr_onnx_inputs_text(const tr_model *m, const tr_onnx_options *o, char **out);
/* The same of what it gives, where there is data.normalize_targets (`trireme.outputs`); *out NULL:
 * there is none. */
#define TR_ONNX_TARGETS                                                                            \
    "targets as the data files have them; data.normalize_targets is in the graph"
tr_status tr_onnx_outputs_text(const tr_onnx_options *o, char **out);
/* The dimension `sequence`: of inputs that are sequences, (rows) of ids or (rows, features), and of
 * what is made of them; the model's own rows are the most that a file takes. Models whose layers
 * take any number of rows have it. Inputs as long as the first that no layer needs to be so in each
 * call (queries apart from keys) have one of their own: `sequence_NAME`. */
#define TR_ONNX_SEQUENCE "sequence"
typedef struct {
    int64_t rows;          /* of the first input that is a sequence; 0: none is */
    const tr_layer *layer; /* the first that needs one length, and why; NULL: none */
    const char *why;
} tr_onnx_sequence;
tr_status tr_onnx_find_sequence(const tr_model *m, tr_onnx_sequence *out);
/* Why a layer type cannot be exported; NULL: it can. */
const char *tr_onnx_missing(const char *type);

typedef struct {
    /* What the network is to be trained towards, which the file does not say; NULL: cross_entropy
     * for an output of two or more features, else mse. */
    const tr_loss_config *loss;
    const char *output; /* of several, the one that counts; NULL: there must be one */
} tr_onnx_import;

/* Layers of one type that the file says with several nodes each, as docs/passes.md lists them. */
typedef struct {
    char layer[TR_NAME];
    size_t count;
} tr_onnx_together;
#define TR_ONNX_TOGETHER_MAX 64

/* What a file says beside its network. */
typedef struct {
    char *normalize; /* data.normalize that stands for the graph's first nodes, as YAML; or NULL */
    char *normalize_targets; /* the same for its last ones, of a file that we wrote; or NULL */
    char *config;            /* that the file carries, if we wrote it; or NULL */
    size_t nodes, constants; /* of the graph; of these, those that were computed as it was read */
    size_t ntogether;        /* in the order in which they were met */
    tr_onnx_together together[TR_ONNX_TOGETHER_MAX];
} tr_onnx_found;
void tr_onnx_found_free(tr_onnx_found *f);

/* The network of an ONNX file whose nodes are layers that we have, in what an exporter writes them
 * with: constants are folded, what does nothing is left out, layers that were taken apart
 * (GELU, layernorm, a bias after MatMul) are put together again. TR_UNSUPPORTED names every node
 * that is none; TR_DATA: the file is damaged. Files with values beside it are only taken below its
 * folder. Layers are named as in the file where that is possible. *found: to be freed; may be
 * NULL. */
tr_status tr_onnx_read(const char *path, const tr_onnx_import *o, tr_network **out,
                       tr_onnx_found *found);

#endif
