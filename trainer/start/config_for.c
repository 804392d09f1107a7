/* A config for data that was looked at, with a comment for each choice. The model is sized to the
 * data: a small convolutional network for images, two hidden layers for vectors and tables. */
#include <string.h>

#include "runtime/config/config.h"
#include "trainer/start/start.h"

/* Rough choices, on which nothing but a good start depends. */
typedef struct {
    bool image, small; /* small: few samples, which are soon learnt by heart */
    int64_t channels, height, width, features;
    int64_t batch, epochs;
} choice;

static int64_t power_below(int64_t n)
{
    int64_t p = 1;
    while (2 * p <= n) p *= 2;
    return p;
}

static int64_t within(int64_t v, int64_t least, int64_t most)
{
    return v < least ? least : v > most ? most : v;
}

/* A sample of two dimensions is a gray image where it holds bytes, or both are long. */
static choice choose(const tr_look *l)
{
    choice c = {.features = 1, .small = l->samples < 2000};
    for (int d = 0; d < l->ndim; d++) c.features *= l->dims[d];
    c.image = l->ndim == TR_LOOK_IMAGE ||
              (l->ndim == TR_LOOK_GRAY && (l->bytes || (l->dims[0] >= 8 && l->dims[1] >= 8)));
    if (c.image) {
        c.channels = l->ndim == TR_LOOK_IMAGE ? l->dims[0] : 1;
        c.height = l->dims[l->ndim - 2];
        c.width = l->dims[l->ndim - 1];
    }
    const int64_t n = (int64_t)l->samples;
    c.batch = within(power_below(n / 40 > 0 ? n / 40 : 1), 16, 256);
    if (c.batch > n) c.batch = n;
    c.epochs = within(2000 * c.batch / n, 10, 60);
    return c;
}

static tr_status quoted(const char *before, const char *text, FILE *to)
{
    char *q = tr_yaml_quoted(text);
    if (!q) return tr_last_status();
    fprintf(to, "%s%s", before, q);
    tr_free(q);
    return TR_OK;
}

static tr_status write_source(const char *key, const tr_look *l, const tr_look_source *s, FILE *to)
{
    tr_status st = TR_OK;
    const char *comma = "";
    fprintf(to, "  %s: {", key);
    if (s->path) {
        TR_TRY(quoted("path: ", s->path, to));
        comma = ", ";
    }
    if (l->format == TR_FORMAT_CIFAR10 || l->format == TR_FORMAT_CIFAR100)
        fprintf(to, ", format: %s", l->format == TR_FORMAT_CIFAR10 ? "cifar10" : "cifar100");
    if (s->inputs) {
        fputs(comma, to);
        TR_TRY(quoted("inputs: ", s->inputs, to));
        comma = ", ";
    }
    for (size_t k = 0; k < l->ncolumns; k++)
        TR_TRY(quoted(k ? ", " : ", inputs: [", l->columns[k].name, to));
    if (l->ncolumns > 0) fputc(']', to);
    if (s->labels) TR_TRY(quoted(", labels: ", s->labels, to));
    for (size_t k = 0; k < l->ntargets; k++)
        TR_TRY(quoted(k ? ", " : ", targets: [", l->targets[k], to));
    fputs(l->ntargets > 0 ? "]}\n" : "}\n", to);
out:
    return st;
}

/* How it is read: texts as categories, whose list training finds. */
static tr_status write_table(const tr_look *l, FILE *to)
{
    tr_status st = TR_OK;
    bool any = l->label_texts;
    const char *before = "    categories: {";
    for (size_t k = 0; k < l->ncolumns; k++) any = any || l->columns[k].texts > 0;
    const bool delimited = l->ncolumns > 0 && l->delimiter != *tr_source_delimiter(l->train.path);
    if (!any && !l->missing && !delimited && !l->no_header) return TR_OK;
    fputs("  table:\n", to);
    if (delimited)
        fprintf(to, "    delimiter: \"%s\"             # between fields\n",
                l->delimiter == '\t' ? "\\t" : (char[]){l->delimiter, 0});
    if (l->no_header)
        fputs("    header: false              # the first line is a sample, and names no columns\n",
              to);
    if (l->missing)
        fputs("    missing: drop              # lines with an empty field are left out; zero: 0 "
              "stands for it\n",
              to);
    if (!any) return TR_OK;
    for (size_t k = 0; k < l->ncolumns; k++) {
        if (l->columns[k].texts == 0) continue;
        TR_TRY(quoted(before, l->columns[k].name, to));
        fputs(": auto", to);
        before = ", ";
    }
    if (l->label_texts) {
        TR_TRY(quoted(before, l->train.labels, to));
        fputs(": auto", to);
    }
    fputs("} # columns of texts; auto: those that are there\n", to);
out:
    return st;
}

/* Images of files, of any size, to the model's. */
static void write_images(const tr_look *l, FILE *to)
{
    fprintf(to,
            "  image: {resize: %lld, center_crop: true} # images of any size: the shorter side, "
            "then the middle\n"
            "  augment:                     # random changes of training images\n"
            "    random_resized_crop: {scale: [0.5, 1]} # a part of the image in the place of "
            "data.image\n"
            "    flip: false                # true where left and right do not matter\n",
            (long long)l->resize);
}

static tr_status write_data(const tr_look *l, FILE *to)
{
    tr_status st = TR_OK;
    fputs("\ndata:                          # paths are relative to this file\n", to);
    TR_TRY(write_source("train", l, &l->train, to));
    if (l->eval.labels || l->eval.path)
        TR_TRY(write_source("eval", l, &l->eval, to));
    else {
        const double fraction = l->samples < 1000 ? 0.2 : 0.1;
        fprintf(to, "  split: {fraction: %g%s} # held out of training, to evaluate on\n", fraction,
                l->classes > 0 && l->fewest > 0 ? ", stratify: true" : "");
    }
    fputs("  normalize: auto              # mean and spread of the training part\n", to);
    if (l->classes == 0 && !l->binary)
        fputs("  normalize_targets: auto      # results are in the file's units all the same\n",
              to);
    TR_TRY(write_table(l, to));
    if (l->resize > 0) write_images(l, to);
    for (size_t k = 0; k < l->nnotes; k++) fprintf(to, "  # %s\n", l->notes[k]);
out:
    return st;
}

/* Halved until it is small, with twice the channels each time; large images are halved by a stride
 * first. */
static void write_image_layers(const choice *c, FILE *to)
{
    int64_t side = c->height < c->width ? c->height : c->width, out = side > 16 ? 32 : 16;
    fprintf(to, "  input: [%lld, %lld, %lld]          # channels, height, width\n  layers:\n",
            (long long)c->channels, (long long)c->height, (long long)c->width);
    for (int stage = 0; stage < 5 && (stage < 2 || side >= 8); stage++) {
        const bool strided = stage == 0 && side >= 96;
        fprintf(to,
                "    - conv2d: {out: %lld, kernel: 3, %spadding: 1, bias: false}\n    - batchnorm\n"
                "    - relu\n",
                (long long)out, strided ? "stride: 2, " : "");
        if (side >= 4) fputs("    - maxpool2d: {kernel: 2}\n", to);
        side /= strided ? 4 : side >= 4 ? 2 : 1;
        if (out < 128) out *= 2;
    }
    fputs("    - global_avgpool\n    - flatten\n", to);
}

static void write_vector_layers(const choice *c, FILE *to)
{
    const int64_t hidden = within(2 * power_below(c->features), 16, 512);
    fprintf(to, "  input: [%lld]                  # values a sample\n  layers:\n",
            (long long)c->features);
    for (int i = 0; i < 2; i++)
        fprintf(to, "    - linear: {out: %lld}\n    - relu\n", (long long)hidden);
}

static void write_model(const tr_look *l, const choice *c, FILE *to)
{
    fputs("\nmodel:\n", to);
    (c->image ? write_image_layers : write_vector_layers)(c, to);
    if (c->small) fputs("    - dropout: {p: 0.2}           # samples are few\n", to);
    fprintf(to, "    - linear: {out: %lld, name: head} # %s\n",
            (long long)(l->classes > 0 ? l->classes : l->outputs),
            l->classes > 0 ? "one output a class" : "one output a value");
    fputs(l->classes > 0
              ? "  loss: cross_entropy          # classes; rare ones: {class_weights: balanced}\n"
          : l->binary
              ? "  loss: bce                    # 0 or 1 each, several at once\n"
              : "  loss: mse                    # values; 0 or 1 each, several at once: bce\n",
          to);
}

static void write_train(const choice *c, bool image, FILE *to)
{
    fprintf(to,
            "\ntrain:\n"
            "  epochs: %lld                   # passes over the samples\n"
            "  batch: %lld                   # samples a step, of all ranks together\n"
            "  precision: fp32              # bf16: faster where the machine knows it\n"
            "  clip_norm: 1.0               # the gradient's norm at most\n"
            "  optimizer: {adamw: {lr: %s, weight_decay: 0.01}} # try lr three times larger and "
            "smaller first\n"
            "  schedule: {cosine: {warmup: 5%%}} # the rate rises, then falls to 0\n"
            "  eval: {every_epochs: 1}\n"
            "  checkpoint: {every_epochs: 1, keep: 2} # --resume goes on from the newest\n",
            (long long)c->epochs, (long long)c->batch, image ? "0.002" : "0.003");
}

static tr_status write_head(const char *name, const char *file, FILE *to)
{
    char *q = tr_yaml_quoted(name); /* null and 12 are names as well */
    if (!q) return tr_last_status();
    fprintf(to,
            "# mpirun -np 2 trainer %s, or without mpirun on one rank. Every key:\n"
            "# trainer check --help-config. Any of them can be set behind the file: "
            "train.batch=32\n"
            "name: %s\n"
            "seed: 1                        # of every random choice: the same seed, the same run\n"
            "output: runs/%s # the run folder: metrics.jsonl, checkpoints/, model.h5\n"
            "device: auto                   # GPUs where every rank has one, else CPUs\n",
            file, q, name);
    tr_free(q);
    return TR_OK;
}

/* What is trained where no data is named: made samples, so that it runs. */
static void write_general(FILE *to)
{
    fputs(
        "\ndata:                          # paths are relative to this file\n"
        "  # of your own, with trainer new --data FILE, or by hand:\n"
        "  #   train: {path: d.h5, inputs: x, labels: y}       HDF5: two datasets\n"
        "  #   train: {inputs: x.npy, labels: y.npy}           NPY, IDX: two files\n"
        "  #   train: {path: t.csv, inputs: [a, b], labels: c} CSV: columns; targets: [c, d]: "
        "several\n"
        "  #   train: {path: d.npz, inputs: x, labels: y}      NPZ: two arrays\n"
        "  #   train: {path: photos}                           photos/CLASS/*.png, .jpg\n"
        "  #   split: {fraction: 0.1, stratify: true}          in the place of eval\n"
        "  #   normalize: auto\n"
        "  train: {format: synthetic, samples: 2048} # made: each class has a pattern of its own\n"
        "  eval: {format: synthetic, samples: 256}\n",
        to);
}

tr_status tr_new_config(const tr_look *look, const char *name, const char *file, FILE *to)
{
    tr_status st = TR_OK;
    const tr_look made = {
        .samples = 2048, .ndim = 3, .dims = {3, 32, 32}, .classes = 10, .fewest = 1};
    const tr_look *l = look ? look : &made;
    const choice c = choose(l);
    TR_TRY(write_head(name, file, to));
    if (l->vocabulary > 0) return tr_new_language_model(l, to);
    if (look)
        TR_TRY(write_data(l, to));
    else
        write_general(to);
    write_model(l, &c, to);
    write_train(&c, c.image, to);
    fputs("\n# Behind training, each optional: trainer help STAGE says what it does.\n"
          "# pipeline: [train, fold, {prune: {amount: 0.3}}, finetune, quantize, benchmark, "
          "export, report]\n",
          to);
out:
    return st;
}
