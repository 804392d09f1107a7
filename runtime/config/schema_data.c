/* The table of the config, continued: where samples come from, and what is trained. */
#include "runtime/config/schema.h"

#define SOURCE(member) offsetof(tr_source_config, member)

static const char *const formats[] = {"auto",     "hdf5",      "idx", "npy",    "cifar10",
                                      "cifar100", "synthetic", "csv", "folder", "npz",
                                      "text",     "tokens",    NULL};
static const char *const token_types[] = {"auto", "uint8", "uint16", "uint32", NULL};
static const char *const inits[] = {"kaiming", "xavier", "normal", "zeros", "he", NULL};

/* ---- data ---------------------------------------------------------------------------------- */

static const tr_field source[] = {
    TR_TEXT(
        "path", SOURCE(path), "",
        "the file with inputs and labels (hdf5, npz, csv, cifar; several CIFAR files: "
        "comma-separated), "
        "or a folder of images: CLASS/*.png, .jpg, .jpeg (data.predict's need no classes), "
        "or a text, or tokens (several files: comma-separated, or a pattern such as train_*.bin)"),
    TR_CHOICE(
        "format", SOURCE(format), formats, "auto",
        "auto goes by the extension: .h5, .hdf5; .npz; .idx, -ubyte, .gz; .npy; .bin (cifar); "
        ".csv, .tsv; .txt; or a folder. text: the bytes of any file are ids, 0 to 255; tokens: "
        "numbers, of llm.c's .bin files, flat .npy, or plain ones (dtype). Both are cut into "
        "windows as long as the model's input, whose labels are the tokens one on"),
    TR_SHAPED(
        "inputs", SOURCE(inputs), "",
        "hdf5, npz: the dataset of the inputs; idx, npy: their file; csv: columns, a list (where "
        "none are named, data.train's in its order, there all but those of labels, targets and "
        "weights); a map of these "
        "by input name for a model with named inputs",
        TR_SCHEMA_SOURCES),
    TR_TEXT("labels", SOURCE(labels), "",
            "hdf5, npz: the dataset of the labels or target values; idx, npy: their file; csv: the "
            "column; "
            "cifar100: fine (by itself) or coarse"),
    TR_SHAPED("targets", SOURCE(targets), "",
              "csv: columns of values in the place of labels, one for each of the model's outputs, "
              "[a, b]: losses of values, bce and focal, cross_entropy of probabilities",
              "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":[\"string\",\"number\"]}}"),
    TR_TEXT("weights", SOURCE(weights), "",
            "what each sample counts in the loss, one number from 0 on a sample: hdf5, npz: the "
            "dataset; idx, npy: the file; csv: the column; absent: 1"),
    TR_INT("samples", SOURCE(samples), "all", 1, 1e12, "samples",
           "so many, from offset on; synthetic: how many to make", ZERO("all")),
    TR_INT("offset", SOURCE(offset), "0", 0, 1e12, "samples", "leave out so many at the beginning"),
    TR_INT("classes", SOURCE(classes), "auto", 1, 1e9, "classes",
           "synthetic: how many classes; auto: the model's outputs", ZERO("auto")),
    TR_INT(
        "stride", SOURCE(stride), "auto", 1, 1e12, "tokens",
        "text, tokens: from one window to the next; auto: its length, each token once an epoch; "
        "what is left at the end, and makes no window, is not read. Of data.eval all is: the last "
        "window may be shorter, and what two windows have is a target of the first alone, so "
        "that a stride below the length gives each target more tokens before it",
        ZERO("auto")),
    TR_INT("documents", SOURCE(documents), "none", 0, INT32_MAX, "id",
           "text, tokens: the separator at which documents begin, or behind which; a sample is one "
           "document, or a piece of it, filled up with labels that do not count (the loss's "
           "ignore_index); a second input of (1) is how many tokens do",
           .auto_text = "none", .auto_value = -1),
    TR_CHOICE("dtype", SOURCE(dtype), token_types, "auto",
              "tokens: type of the numbers of a file without a header; auto: uint16"),
    TR_REAL("bytes_per_token", SOURCE(bytes_per_token), "none", 0.001, 1e6, "bytes",
            "tokens: bytes of the text a token, in the mean, which bits_per_byte is measured by; "
            "tokenize_text.py says it",
            ZERO("none")),
    TR_END,
};

#define SPLIT(member) offsetof(tr_split_config, member)
static const tr_field split[] = {
    TR_REAL("fraction", SPLIT(fraction), NULL, 0.000001, 0.999999, NULL,
            "of data.train's samples, that are held out: at least one, and not all"),
    TR_INT("seed", SPLIT(seed), "1", 0, 1e15, NULL,
           "which ones; the model's seed has no part in it"),
    TR_BOOL("stratify", SPLIT(stratify), "false", "hold out the same part of each class"),
    TR_INT(
        "stride", SPLIT(stride), "auto", 1, 1e12, "tokens",
        "text, tokens: from one window that is evaluated to the next, as data.eval.stride; auto: "
        "the window's length, whatever data.train.stride is",
        ZERO("auto")),
    TR_END,
};

static const char *const missing[] = {"error", "drop", "zero", NULL};
static const tr_field table[] = {
    TR_TEXT("delimiter", IN(data.table, delimiter), "",
            "between fields: one character; tab: \"\\t\"; absent: a comma, or a tab where "
            "data.train is a .tsv"),
    TR_BOOL(
        "header", IN(data.table, header), "true",
        "the first line names the columns; false: it is a sample, and they are column1, column2, "
        "..."),
    TR_CHOICE("missing", IN(data.table, missing), missing, "error",
              "empty fields, NA, NaN and null in columns that are used: an error, their lines left "
              "out (not of data.predict, where they are an error), or 0 (all 0 of a category; an "
              "error for labels and ids)"),
    TR_SHAPED(
        "categories", IN(data.table, categories), "",
        "columns of texts by name, {colour: [red, green]}: an input of values has a 1 at the "
        "text's place and 0 at the others, one of ids (an embedding's) and labels its number; "
        "auto: the texts of data.train, in order, kept in run files",
        "{\"type\":\"object\",\"additionalProperties\":{\"anyOf\":[{\"const\":\"auto\"},{\"type\":"
        "\"array\",\"minItems\":1,\"items\":{\"type\":[\"string\",\"number\",\"boolean\"]}}]}}"),
    TR_END,
};

static const tr_field image[] = {
    TR_INTS("resize", IN(data.image, resize), "", 1, 65500, "pixels",
            "the shorter side, 256, keeping the shape, or both, [height, width]; bilinear with "
            "antialiasing, in Pillow's arithmetic, and so as torchvision's"),
    TR_BOOL("center_crop", IN(data.image, center_crop), "false",
            "cut the middle, of the model's size; smaller images get zeros around them"),
    TR_END,
};

#define RESIZED(member) offsetof(tr_resized_crop_config, member)
static const tr_field resized_crop[] = {
    TR_REALS("scale", RESIZED(scale), "[0.08, 1]", 1e-6, 1, NULL,
             "least and most of the image's area"),
    TR_REALS("ratio", RESIZED(ratio), "[0.75, 1.3333333333333333]", 1e-3, 1e3, NULL,
             "least and most of width / height"),
    TR_END,
};

#define JITTER(member) offsetof(tr_jitter_config, member)
static const tr_field jitter[] = {
    TR_REAL("brightness", JITTER(brightness), "0", 0, 100, NULL,
            "0.4: a factor from 0.6 to 1.4; none is below 0"),
    TR_REAL("contrast", JITTER(contrast), "0", 0, 100, NULL, "likewise"),
    TR_REAL("saturation", JITTER(saturation), "0", 0, 100, NULL, "likewise; grey images have none"),
    TR_REAL("hue", JITTER(hue), "0", 0, 0.5, NULL,
            "0.1: a shift by -0.1 to 0.1 of the colour circle; grey images have none"),
    TR_END,
};

#define MIX(member) offsetof(tr_mix_config, member)
static const tr_field mix[] = {
    TR_REAL("alpha", MIX(alpha), "1", 0.01, 1000, NULL,
            "the share of a sample that stays is drawn from Beta(alpha, alpha), once a step"),
    TR_REAL("probability", MIX(probability), "1", 0, 1, NULL, "the part of steps that are mixed"),
    TR_END,
};

#define ERASING(member) offsetof(tr_erasing_config, member)
static const tr_field erasing[] = {
    TR_REAL("p", ERASING(p), "0.5", 0, 1, NULL, "the part of images that are erased in"),
    TR_REALS("scale", ERASING(scale), "[0.02, 0.33]", 1e-6, 1, NULL,
             "least and most of the image's area"),
    TR_REALS("ratio", ERASING(ratio), "[0.3, 3.3]", 1e-3, 1e3, NULL,
             "least and most of height / width"),
    TR_REALS("value", ERASING(value), "0", -1e6, 1e6, NULL,
             "what is put there, in the units that the model sees (after data.normalize); one, or "
             "one for each channel"),
    TR_END,
};

static const tr_field augment[] = {
    TR_INT("crop", IN(data.augment, crop), "none", 1, 1024, "pixels",
           "training images get so much zero padding, then a random crop of their own size",
           ZERO("none")),
    TR_BOOL("flip", IN(data.augment, flip), "false",
            "flip training images left to right at random"),
    TR_REAL("rotate", IN(data.augment, rotate), "0", 0, 180, "degrees",
            "turn training images by up to so much to either side; with scale and translate one "
            "bilinear step, torchvision's RandomAffine, zeros (of the file's values) around"),
    TR_REALS("scale", IN(data.augment, scale), "", 0.01, 100, NULL,
             "enlarge them by a factor from [least, most]"),
    TR_REALS("translate", IN(data.augment, translate), "", 0, 1, NULL,
             "shift them by whole pixels, up to this part of the width and the height, one for "
             "both or [width, height]"),
    TR_BLOCK("color_jitter", IN(data.augment, jitter), jitter, "",
             "change brightness, contrast, saturation and hue by random factors, in random order; "
             "torchvision's ColorJitter, on values from 0 to 255 (uint8), to 65535 (uint16), "
             "else to 1"),
    TR_BLOCK("random_erasing", IN(data.augment, erasing), erasing, "",
             "put a value in the place of a random rectangle; torchvision's RandomErasing after "
             "normalizing"),
    TR_BLOCK("random_resized_crop", IN(data.augment, resized_crop), resized_crop, "",
             "folders of images: a random part of the image as it is in its file, resized to the "
             "model's size, in the place of data.image; torchvision's RandomResizedCrop"),
    TR_BLOCK(
        "mixup", IN(data.augment, mixup), mix, "",
        "cross_entropy: each sample is averaged with another one of its step, and so are their "
        "labels; torchvision's MixUp. With cutmix, too, each step draws one of the two"),
    TR_BLOCK("cutmix", IN(data.augment, cutmix), mix, "",
             "likewise: a rectangle of each image is another one's of its step, and labels are "
             "shared by area; torchvision's CutMix"),
    TR_END,
};

const tr_field tr_data_fields[] = {
    TR_TEXT("folder", IN(data, folder), "",
            "where data paths start, itself relative to the config file's folder, which it is when "
            "not given",
            CHANGES(NOTHING)),
    TR_BLOCK("train", IN(data, train), source, NULL, "the training set"),
    TR_BLOCK("eval", IN(data, eval), source, "",
             "the set to evaluate on; its format, inputs, labels, targets, weights, dtype and "
             "documents, where it does not name them, are data.train's where that is a file of the "
             "same format",
             CHANGES(EVALUATIONS)),
    TR_BLOCK("split", IN(data, split), split, "",
             "holds samples of data.train out of training, the same ones in any run; they are what "
             "is evaluated on where there is no data.eval"),
    TR_BLOCK("predict", IN(data, predict), source, "",
             "what `trainer predict` runs on: as the others, and labels may be missing",
             CHANGES(NOTHING)),
    TR_SHAPED("class_names", IN(data, class_names), "",
              "names of the classes, in their order; of a folder of images its folders by name",
              "{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"number\"]}}"),
    TR_SHAPED(
        "normalize", IN(data, normalize.written), "",
        "(input - mean) / std of the file's values (pixels of 8 bits are 0 to 255): auto, computed "
        "over "
        "data.train and kept in run files, or {mean: 0.5, std: 0.25}, each one number, or a list "
        "with one for "
        "each channel of an image, or each feature (the last dimension) of another input. "
        "Where a model has images and other inputs, by their names: {photo: {mean: 127.5, std: "
        "70}, age: {std: 100}}; those not named stay as they are",
        TR_SCHEMA_NORMALIZE),
    TR_SHAPED(
        "normalize_targets", IN(data, normalize_targets.written), "",
        "losses of values: the model learns (target - mean) / std, auto or {mean: , std: } as "
        "above, "
        "one, or a list with one for each channel of an image, or of the last dimension of another "
        "target; losses are of these, while evaluate's MAE, RMSE "
        "and R2 and predictions are in the file's units",
        "{\"anyOf\":[{\"$ref\":\"#/$defs/normalize-one\"},{\"const\":\"auto\"}]}"),
    TR_MAP("table", IN(data, table), table, "", "how CSV files are read"),
    TR_MAP("image", IN(data, image), image, "",
           "what is done to images of folders, which may be of any size, to make them the model's; "
           "they are grey where model.input has 1 channel and RGB where it has 3"),
    TR_MAP("augment", IN(data, augment), augment, "", "random changes of training images"),
    TR_INT("workers", IN(data, workers), "1", 0, 256, "threads",
           "loader threads of a rank; 0 loads in the step loop", CHANGES(NOTHING)),
    TR_INT("prefetch", IN(data, prefetch), "2", 1, 256, "batches", "how far loaders run ahead",
           CHANGES(NOTHING)),
    TR_BOOL("shuffle", IN(data, shuffle), "true",
            "a new order every epoch, the same for any number of ranks"),
    TR_BOOL("drop_last", IN(data, drop_last), "false",
            "leave out the short batch at the end of an epoch"),
    TR_INTS(
        "buckets", IN(data, buckets), "", 1, INT32_MAX, "rows",
        "rising numbers of rows below those of the model's sequences: a step runs at the least "
        "of them that holds its longest sample; with `shuffle` steps are made of samples of like "
        "length"),
    TR_INT("cache_mb", IN(data, cache_mb), "1024", 0, 1e9, "MB",
           "a source up to this size is kept in memory; larger ones stream", CHANGES(NOTHING)),
    TR_END,
};

/* ---- model --------------------------------------------------------------------------------- */

static const char *const target_kinds[] = {"labels", "probabilities", NULL};

static const tr_field cross_entropy[] = {
    TR_REAL("label_smoothing", IN(model.loss, label_smoothing), "0", 0, 1, NULL,
            "share of the target spread evenly over all classes"),
    TR_REALS(
        "class_weights", IN(model.loss, class_weights), "", 0, 1e9, NULL,
        "weight of the loss of samples by class, one a class; balanced: labels / (classes * "
        "labels of the class), of data.train; the class that ignore_index names is none of them",
        .auto_text = "balanced", .auto_value = -1),
    TR_INT("ignore_index", IN(model.loss, ignore_index), "none", INT32_MIN, INT32_MAX, NULL,
           "samples with this label count in no loss, mean or metric, such as -100; none: all "
           "count",
           .auto_text = "none", .auto_value = (double)TR_NO_LABEL),
    TR_CHOICE("targets", IN(model.loss, targets), target_kinds, "labels",
              "labels: a class number a sample; probabilities: one value a class, adding up to 1"),
    TR_REAL("gamma", IN(model.loss, gamma), "0", 0, 100, NULL,
            "focal loss of class labels (Lin et al. 2017, equation 5, alpha: class_weights): "
            "times (1 - p)^gamma, p the label's probability; 0: plain cross entropy"),
    TR_END,
};

static const tr_field huber[] = {
    TR_REAL("delta", IN(model.loss, delta), "1", 1e-9, 1e9, NULL,
            "errors d up to this count d^2 / 2, larger ones delta * (abs(d) - delta / 2)"),
    TR_END,
};

static const tr_field smooth_l1[] = {
    TR_REAL("beta", IN(model.loss, delta), "1", 0, 1e9, NULL,
            "errors d up to this count d^2 / (2 * beta), larger ones abs(d) - beta / 2"),
    TR_END,
};

static const tr_field bce[] = {
    TR_REALS("pos_weight", IN(model.loss, pos_weight), "", 0, 1e9, NULL,
             "weight of the positive part of the loss: one, or one for each output, or channel "
             "of an image; absent: 1"),
    TR_END,
};

static const tr_field focal[] = {
    TR_REAL("gamma", IN(model.loss, gamma), "2", 0, 100, NULL,
            "how much outputs that are right already count less: times (1 - p_t)^gamma"),
    TR_REAL("alpha", IN(model.loss, alpha), "0.25", 0, 1, NULL,
            "weight of positive targets, and 1 - alpha of negative ones; none: both count 1",
            .auto_text = "none", .auto_value = -1),
    TR_END,
};

static const tr_variant_def losses[] = {
    [TR_LOSS_CROSS_ENTROPY] = {.name = "cross_entropy",
                               .fields = cross_entropy,
                               .doc = "Softmax cross entropy over class labels"},
    [TR_LOSS_MSE] = {.name = "mse", .doc = "Mean squared error to target values"},
    [TR_LOSS_L1] = {.name = "l1", .doc = "Mean absolute error to target values"},
    [TR_LOSS_HUBER] = {.name = "huber",
                       .fields = huber,
                       .doc = "Squared error of small errors, absolute error of large ones, "
                              "delta times as steep (Huber 1964)"},
    [TR_LOSS_SMOOTH_L1] = {.name = "smooth_l1",
                           .fields = smooth_l1,
                           .doc = "Absolute error, rounded off below beta (Girshick 2015)"},
    [TR_LOSS_FOCAL] = {.name = "focal",
                       .fields = focal,
                       .doc = "Focal loss of logits and targets from 0 to 1, an output each (Lin "
                              "et al. 2017)"},
    [TR_LOSS_BCE] = {.name = "bce",
                     .fields = bce,
                     .doc =
                         "Binary cross entropy of logits and targets from 0 to 1, an output each"},
    [TR_LOSS_FOCAL + 1] = {.name = NULL}};

const tr_field tr_loss_fields[] = {
    TR_VARIANT("loss", offsetof(tr_loss_config, kind), losses, 0, NULL,
               "what training makes small"),
    TR_END,
};

static const tr_field_word off[] = {{"off", 0}, {NULL, 0}};

static const tr_field sketch[] = {
    TR_SHAPED("match", offsetof(tr_sketch_config, match), "",
              "a pattern of layers' names, or a list of them (* stands for any text); absent: all "
              "whose sketch takes less arithmetic",
              TR_SCHEMA_NAMES),
    TR_INT("terms", offsetof(tr_sketch_config, terms), "1", 1, 4096, NULL,
           "of the sketched layers"),
    TR_INT("rank", offsetof(tr_sketch_config, rank), NULL, 1, 1 << 20, NULL,
           "of the sketched layers"),
    TR_END,
};

const tr_field tr_model_fields[] = {
    TR_INTS("input", IN(model, input), "", 1, 1e9, NULL,
            "dimensions of one sample, channels first; this or inputs"),
    TR_SHAPED("inputs", IN(model, inputs), "",
              "several inputs by name: {image: [1, 8, 8], meta: [4]}", TR_SCHEMA_INPUTS),
    TR_SHAPED(
        "params", IN(model, params), "",
        "parameters of the whole list of layers, {width: 64}: $width stands for the value, "
        "$width * 2 (+ - * / // %, brackets) for the number, ${width} for the text within another",
        TR_SCHEMA_MAP),
    TR_SHAPED(
        "define", IN(model, define), "",
        "blocks, {NAME: {params: {out: , stride: 1}, layers: [...]}}: NAME is then a layer with "
        "these options, name and from; $out in its layers stands for what it is given. A "
        "parameter without a default is required",
        TR_SCHEMA_MAP),
    TR_SHAPED("layers", IN(model, layers), NULL, "the list of layers, in order", TR_SCHEMA_LAYERS),
    TR_VARIANT("loss", IN(model, loss.kind), losses, IN(model, loss), NULL,
               "what training makes small"),
    TR_CHOICE("init", IN(model, init), inits, "kaiming",
              "initial weights, where a layer does not say; kaiming: uniform within 1 / "
              "sqrt(fan_in), biases, too, "
              "as PyTorch's layers are by default; he: normal with deviation sqrt(2 / fan_in) (He "
              "et al. 2015), for "
              "ReLU; xavier: uniform within sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010); "
              "normal: deviation "
              "0.02; with these four biases are 0",
              CHANGES(NOTHING)),
    TR_NODE(
        "init_from", IN(model, init_from), "",
        "values that training starts from: a run file, .safetensors, .npz or .h5 with arrays named "
        "as PyTorch names them, `conv1.weight`, `layer1.0.bn1.running_mean`. Or {file: FILE, "
        "strict: false, map: {\"backbone.*\": \"*\", \"fc.*\": \"\"}}: map changes names of the "
        "file "
        "to the model's, * stands for any text, the first pattern that matches counts, \"\" leaves "
        "an array out; strict (true): every parameter and state of the model and every array of "
        "the "
        "file must find its other, false: what fits is taken, and the log says what was not; "
        "transpose: [\"*.c_attn.weight\"]: patterns of the file's names, matrices that it has as "
        "(in, out). Dimensions of 1 in front do not count; ndim: {\"*.cls_token\": 3} says how "
        "many "
        "dimensions the file has with them, which an export by the same map writes. "
        "A resumed run does not read it again",
        CHANGES(START)),
    TR_BLOCK("sketch", IN(model, sketch), sketch, "",
             "linear layers and convolutions are learned in sketches, wherever they stand "
             "(`sklinear`, `skconv2d`, of the same names): {terms: 2, rank: 64}. Those whose "
             "weight is tied or frozen stay dense"),
    TR_SHAPED("skip_passes", IN(model, skip_passes), "",
              "list of passes over the graph that this model is computed without, in every job "
              "(docs/passes.md); the stage fold writes here those that change its outputs by more "
              "than its bound",
              TR_SCHEMA_NAMES),
    TR_INT(
        "round_dims", IN(model, round_dims), "off", 1, 4096, NULL,
        "widths of hidden layers (outputs of products, embeddings and recurrent layers, values of "
        "attention's heads, ranks of sketches) go up to multiples of so many, and sums, heads and "
        "tied weights agree; auto: to what the device's kernels like, where that adds an eighth at "
        "most. The model's inputs and its output stay. The log, check and plan say what changed, "
        "and the run's config has the numbers",
        .auto_text = "auto", .auto_value = TR_ROUND_AUTO, .words = off),
    TR_END,
};
