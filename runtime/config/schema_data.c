/* The table of the config, continued: where samples come from, and what is trained. */
#include "runtime/config/schema.h"

#define SOURCE(member) offsetof(tr_source_config, member)

static const char *const formats[] = {"auto",    "hdf5",     "idx",       "npy",
                                      "cifar10", "cifar100", "synthetic", NULL};
static const char *const inits[] = {"kaiming", "xavier", "normal", "zeros", NULL};

/* ---- data ---------------------------------------------------------------------------------- */

static const tr_field source[] = {
    TR_TEXT("path", SOURCE(path), "",
            "the file with inputs and labels (hdf5, cifar; several CIFAR files: comma-separated)"),
    TR_CHOICE("format", SOURCE(format), formats, "auto",
              "auto goes by the extension: .h5, .hdf5; .idx, -ubyte, .gz; .npy; .bin"),
    TR_NODE("inputs", SOURCE(inputs), "",
            "hdf5: the dataset of the inputs; idx, npy: their file; a map of these by input name "
            "for a model with named inputs"),
    TR_TEXT("labels", SOURCE(labels), "",
            "hdf5: the dataset of the labels or target values; idx, npy: their file"),
    TR_INT("samples", SOURCE(samples), "all", 1, 1e12, "samples",
           "the first so many; synthetic: how many to make", ZERO("all")),
    TR_INT("classes", SOURCE(classes), "auto", 1, 1e9, "classes",
           "synthetic: how many classes; auto: the model's outputs", ZERO("auto")),
    TR_END,
};

static const tr_field augment[] = {
    TR_INT("crop", IN(data.augment, crop), "none", 1, 1024, "pixels",
           "training images get so much zero padding, then a random crop of their own size",
           ZERO("none")),
    TR_BOOL("flip", IN(data.augment, flip), "false",
            "flip training images left to right at random"),
    TR_END,
};

const tr_field tr_data_fields[] = {
    TR_TEXT("folder", IN(data, folder), "",
            "where data paths start, itself relative to the config file's folder, which it is when "
            "not given"),
    TR_BLOCK("train", IN(data, train), source, NULL, "the training set"),
    TR_BLOCK("eval", IN(data, eval), source, "", "the set to evaluate on"),
    TR_NODE("normalize", IN(data, normalize.written), "",
            "(input - mean) / std: {mean: 0.5, std: 0.25}, each one number, or a list with one for "
            "each channel of an image, or each feature (the last dimension) of another input. "
            "Where a model has images and other inputs, by their names: {photo: {mean: 127.5, std: "
            "70}, age: {std: 100}}; those not named stay as they are"),
    TR_MAP("augment", IN(data, augment), augment, "", "random changes of training images"),
    TR_INT("workers", IN(data, workers), "1", 0, 256, "threads",
           "loader threads of a rank; 0 loads in the step loop"),
    TR_INT("prefetch", IN(data, prefetch), "2", 1, 256, "batches", "how far loaders run ahead"),
    TR_BOOL("shuffle", IN(data, shuffle), "true",
            "a new order every epoch, the same for any number of ranks"),
    TR_BOOL("drop_last", IN(data, drop_last), "false",
            "leave out the short batch at the end of an epoch"),
    TR_INT("cache_mb", IN(data, cache_mb), "1024", 0, 1e9, "MB",
           "a source up to this size is kept in memory; larger ones stream"),
    TR_END,
};

/* ---- model --------------------------------------------------------------------------------- */

static const tr_field cross_entropy[] = {
    TR_REAL("label_smoothing", IN(model.loss, label_smoothing), "0", 0, 1, NULL,
            "share of the target spread evenly over all classes"),
    TR_REALS("class_weights", IN(model.loss, class_weights), "", 0, 1e9, NULL,
             "weight of the loss of samples by class, one a class"),
    TR_END,
};

static const tr_variant_def losses[] = {
    [TR_LOSS_CROSS_ENTROPY] = {.name = "cross_entropy",
                               .fields = cross_entropy,
                               .doc = "Softmax cross entropy over class labels"},
    [TR_LOSS_MSE] = {.name = "mse", .doc = "Mean squared error to target values"},
    [TR_LOSS_BCE] = {.name = "bce",
                     .doc =
                         "Binary cross entropy of logits and targets from 0 to 1, an output each"},
    {.name = NULL}};

const tr_field tr_model_fields[] = {
    TR_INTS("input", IN(model, input), "", 1, 1e9, NULL,
            "dimensions of one sample, channels first; this or inputs"),
    TR_NODE("inputs", IN(model, inputs), "",
            "several inputs by name: {image: [1, 8, 8], meta: [4]}"),
    TR_NODE("layers", IN(model, layers), NULL, "the list of layers, in order"),
    TR_VARIANT("loss", IN(model, loss.kind), losses, IN(model, loss), NULL,
               "what training makes small"),
    TR_CHOICE("init", IN(model, init), inits, "kaiming",
              "initial weights, where a layer does not say"),
    TR_END,
};
